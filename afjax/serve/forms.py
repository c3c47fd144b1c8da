"""Pads adapters, fusions and heads to common forms, so that tasks share arrays.

Adapters have the same form if one program can compute all of them with different parameters. Smaller adapters are
widened, smaller fusions are padded with adapters that get no attention, and smaller heads are padded with outputs. None
of this changes their results.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from afjax.adapters.kinds import adapter_layers, kind_of
from afjax.config.adapters import Adapter, AdapterConfig, OnTop
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.display.words import counted
from afjax.fusion.checks import is_factored
from afjax.fusion.folded import with_absent_adapters
from afjax.fusion.pruning import keep_adapters
from afjax.model.model import Model
from afjax.tasks.kind import Reads
from afjax.trees import Tree, pad_axis
from afjax.trunk.config import TrunkConfig
from afjax.trunk.layers import stack_layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadForm:
    """The form of heads in a bank.

    Attributes:
      config: The architecture, without dropout.
      reads: Whether the heads' input is one pooled vector per row or every token.
      num_outputs: The largest number of outputs.
    """

    config: HeadConfig
    reads: Reads
    num_outputs: int

    def key(self) -> "HeadForm":
        """Returns a grouping key: heads with the same key fit in the same arrays."""
        return dataclasses.replace(self, num_outputs=1)

    def takes(self, form: "HeadForm") -> bool:
        """Whether a head with the form ``form`` can be padded to this form."""
        return form.key() == self.key() and form.num_outputs <= self.num_outputs

    def __str__(self) -> str:
        return f"{self.config} on {self.reads} hidden states with {counted(self.num_outputs, 'output')}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotForm:
    """The form of adapters or fusions in a bank.

    Attributes:
      model: A model with one adapter or one fusion of the largest size.
      layers: The trunk layers in which any adapter or fusion in the bank fills slots, in ascending order.
    """

    model: Model
    layers: tuple[int, ...]

    @property
    def configs(self) -> list[Adapter]:
        """The architecture of the adapter or of each fused adapter."""
        return [config for _, config in self.model.adapters]

    @property
    def size(self) -> int | None:
        """Number of inner activations per adapter, or None if the adapters cannot be widened."""
        config = self.configs[0]
        can_widen = kind_of(config).widening is not None and len(set(self.configs)) == 1
        return _size(config, self.model.trunk) if can_widen else None

    @property
    def num_adapters(self) -> int:
        """The number of fused adapters, or 1 without a fusion."""
        return len(self.model.adapters)

    @property
    def takes_fewer_adapters(self) -> bool:
        """Whether a fusion of fewer adapters can be padded to this form."""
        return bool(self.model.fusion_name) and self.size is not None

    def resized(self, size: int, num_adapters: int) -> "SlotForm":
        """Changes the form's size and, for fusions, its number of adapters.

        If the adapters cannot be widened, the form is returned unchanged.
        """
        if self.size is None:
            return self
        number = num_adapters if self.takes_fewer_adapters else 1
        adapters = tuple((str(index), _resized(self.configs[0], size)) for index in range(number))
        return dataclasses.replace(self, model=dataclasses.replace(self.model, adapters=adapters))

    def key(self) -> "SlotForm":
        """Returns a grouping key: forms with the same key fit in the same arrays."""
        return dataclasses.replace(self.resized(1, 1), layers=())

    def takes(self, form: "SlotForm") -> bool:
        """Whether an adapter or fusion with the form ``form`` can be widened to this form."""
        return (
            form.key() == self.key()
            and (form.size or 1) <= (self.size or 1)
            and form.num_adapters <= self.num_adapters
            and set(form.layers) <= set(self.layers)
        )

    def __str__(self) -> str:
        architectures = ", ".join(map(str, dict.fromkeys(self.configs)))
        text = f"fusion of {self.num_adapters} x {architectures}" if self.model.fusion_name else architectures
        return f"{text} in the layers {', '.join(map(str, self.layers))}" if self.layers else text


def slot_form(model: Model) -> SlotForm | None:
    """Determines the form of a model's adapter or fusion; None if it has neither."""
    if not model.adapters:
        return None
    configs = model.fused_configs() if model.fusion_name else [config for _, config in model.adapters]
    configs = [_in_all_layers(config) for config in configs]
    sizes = [_size(config, model.trunk) for config in configs]
    same_size = [_resized(config, max(sizes)) for config in configs]
    # If fused adapters differ in more than their sizes, their sizes are kept.
    wide = (
        same_size
        if len(set(same_size)) == 1
        else [_resized(config, size) for config, size in zip(configs, sizes, strict=True)]
    )
    fusion = FusionConfig(temperature=model.fusion.temperature)
    if model.fusion_name and not is_factored(wide):
        fusion = dataclasses.replace(fusion, value=model.fusion.value)
    return SlotForm(
        model=Model(
            trunk=model.trunk,
            head_name="head",
            adapters=tuple((str(number), config) for number, config in enumerate(wide)),
            fusion_name="fusion" if model.fusion_name else "",
            fusion=fusion,
        ),
        layers=adapter_layers(model.adapters[0][1], model.trunk.num_layers),
    )


def head_form(model: Model, num_outputs: int) -> HeadForm:
    """Determines the form of a model's head."""
    config = dataclasses.replace(model.head, dropout=0.0)
    if model.reads == "tokens":
        # Token heads ignore these settings.
        config = dataclasses.replace(config, pooling="first", pooler="none")
    return HeadForm(config=config, reads=model.reads, num_outputs=num_outputs)


def widest_slot_form(forms: Sequence[SlotForm]) -> SlotForm:
    """Returns the smallest form that takes all given forms, which share a key."""
    largest = forms[0].resized(max(form.size or 1 for form in forms), max(form.num_adapters for form in forms))
    return dataclasses.replace(largest, layers=tuple(sorted({layer for form in forms for layer in form.layers})))


def slot_entry(form: SlotForm, model: Model, params: Tree, *, dtype: str = "float32") -> Tree:
    """Converts a task's adapter or fusion to an entry of a bank.

    Args:
      form: The bank's form. It must take the form of the model's adapter or fusion.
      model: The task's model.
      params: The task's tree with the roots ``adapters`` and ``fusion``.
      dtype: The trunk's dtype, in which dense layers are computed and therefore stored.

    Returns:
      A tree of NumPy arrays with the keys ``layers``, ``shared``, ``norms`` and ``top``. ``layers`` has one tree per
      layer of the form, ``{"0": {"contents": contents of the slots, "present": whether the task has any}, ...}``.
      ``shared`` has leaves shared by all layers. ``norms`` (the adapter's own LayerNorms) and ``top`` (a module on top
      of the encoder) are missing unless the form has them.
    """
    (_, config), *_ = model.adapters
    trees = [params["adapters"][name] for name, _ in model.adapters]
    if model.fusion_name:
        contents, shared = _fused_contents(form, model, params, trees)
    else:
        contents, shared = _contents(form, model, trees[0])
    entry: Tree = {"layers": {}, "shared": _on_host(shared)}
    if isinstance(config, OnTop):
        entry["top"] = _on_host(trees[0]["top"])
    else:
        own_layers = adapter_layers(config, model.trunk.num_layers)
        entry["layers"] = {str(layer): _layer_entry(contents, own_layers, layer) for layer in form.layers}
    entry = _dense_in(dtype, entry)
    if isinstance(config, AdapterConfig) and config.layer_norms:
        entry["norms"] = _on_host(trees[0]["layer_norms"])
    return entry


def head_entry(form: HeadForm, head: Tree) -> Tree:
    """Converts a head to a bank's entry: NumPy arrays, with zeros for missing outputs."""
    output = {name: pad_axis(leaf, -1, form.num_outputs) for name, leaf in head["output"].items()}
    return _on_host({**head, "output": output})


def _contents(form: SlotForm, model: Model, tree: Tree) -> tuple[Tree, Any]:
    """Returns an adapter's slot contents, stacked over layers, and its shared leaves."""
    filled = form.model.filled_slots({"adapters": {"0": _widened(form, model.adapters[0][1], tree)}})
    assert type(filled.contents) is dict, "stored trees are stacked"
    return filled.contents, filled.shared


def _fused_contents(form: SlotForm, model: Model, params: Tree, trees: list[Tree]) -> tuple[Tree, Any]:
    """Returns a folded fusion's slot contents, stacked, and its shared leaves."""
    configs = model.fused_configs()
    if model.fusion.kept is not None:
        trees = keep_adapters(trees, model.adapters[0][1], model.fusion.kept)
    own_form = form.resized(form.size or 1, len(trees))
    members = {
        str(number): _widened(form, config, tree)
        for number, (config, tree) in enumerate(zip(configs, trees, strict=True))
    }
    folded = own_form.model.fold({"adapters": members, "fusion": {"fusion": params["fusion"][model.fusion_name]}})
    filled = own_form.model.filled_slots(folded)
    contents = stack_layers(filled.contents)
    if form.takes_fewer_adapters:
        number, size = form.num_adapters, form.size or 1
        contents = {slot: with_absent_adapters(tree, number, number * size) for slot, tree in contents.items()}
    return contents, filled.shared


def _widened(form: SlotForm, config: Adapter, tree: Tree) -> Tree:
    widening = kind_of(config).widening
    if widening is None:
        return tree
    return widening.tree(config, tree, form.size or _size(config, form.model.trunk))


def _layer_entry(contents: Tree, layers: Sequence[int], layer: int) -> Tree:
    """Selects one layer of stacked contents, or returns zeros if the task has none."""
    present = layer in layers

    def select(leaf: Any) -> np.ndarray:
        return np.asarray(leaf[layers.index(layer)]) if present else np.zeros(leaf.shape[1:], leaf.dtype)

    return {"contents": jax.tree.map(select, contents), "present": np.array(present)}


def _dense_in(dtype: str, tree: Tree) -> Tree:
    """Casts the kernels and biases of dense layers to ``dtype``.

    LayerNorms and scaling vectors stay in float32, because they are computed in float32.
    """
    if dtype == "float32":
        return tree

    def cast(path: tuple[Any, ...], leaf: np.ndarray) -> np.ndarray:
        *_, parent, name = ("", *(entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)))
        is_dense = name in ("kernel", "bias") and "norm" not in parent
        return leaf.astype(jnp.dtype(dtype)) if is_dense else leaf

    cast_tree: Tree = jax.tree_util.tree_map_with_path(cast, tree)
    return cast_tree


def _on_host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def _size(config: Adapter, trunk: TrunkConfig) -> int:
    """Counts an adapter's inner activations, or returns 1 if it cannot be widened."""
    widening = kind_of(config).widening
    return 1 if widening is None else widening.size(config, trunk.hidden_size)


def _resized(config: Adapter, size: int) -> Adapter:
    """Changes an architecture's number of inner activations, if it can be widened."""
    widening = kind_of(config).widening
    resized: Adapter = config if widening is None else widening.config(config, size)
    return resized


def _in_all_layers(config: Adapter) -> Adapter:
    return config if isinstance(config, OnTop) else dataclasses.replace(config, layers=None)
