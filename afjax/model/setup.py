"""Sets up a method on a trunk: its model, initial parameters, trained leaves."""

import dataclasses
from collections.abc import Mapping, Sequence

import jax
from jaxtyping import Float

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.from_dict import check_value
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.config.ranges import PositiveInt
from afjax.config.tasks import TaskConfig
from afjax.config.values import Remat, TrunkDtype, check_name
from afjax.errors import UserError, did_you_mean
from afjax.fusion.checks import check_subset
from afjax.fusion.parameters import init_fusion
from afjax.model import partition
from afjax.model.heads import init_head
from afjax.model.model import Model, trunk_layer_norms
from afjax.tasks.kind import Reads
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import AnyArray, Tree, named_key, shape_difference
from afjax.trunk.config import TrunkConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setup:
    """A training method on a trunk, without parameters (hashable).

    Attributes:
      model: The model.
      rules: The rules that decide which leaves are trained and which are frozen.
      num_outputs: The head's number of outputs.
      top_k: The number of upper trunk layers under ``trunk/top_layers``. If 0, all layers are under ``trunk/layers``.

    Example:
      >>> from afjax import Method, single_setup
      >>> from afjax.trunk.sizes import trunk_size
      >>> setup = single_setup(Method(), trunk_size("minilm"), name="reviews", reads="pooled", num_outputs=2)
      >>> [rule.pattern for rule in setup.rules if rule.train]
      ['adapters/.*', 'heads/.*']
      >>> setup.computed(scan_layers=True).model.scan_layers
      True
    """

    model: Model
    rules: tuple[partition.Rule, ...]
    num_outputs: int
    top_k: int = 0

    def init(
        self,
        key: jax.Array,
        trunk: Tree,
        adapters: Mapping[str, Tree] | None = None,
        output_bias: Float[AnyArray, "outputs"] | None = None,
    ) -> Tree:
        """Initializes the parameters.

        The initial values of an adapter, fusion or head depend only on the key and its name.

        Args:
          key: The random key derived from the run's seed.
          trunk: The trunk's tree, with stacked layers.
          adapters: Trees of trained adapters by name. The model's other adapters are randomly initialized.
          output_bias: The initial bias of the head's outputs, or None for zeros. The recipes pass
            :func:`afjax.initial_output_bias`.

        Returns:
          The tree with the roots ``trunk``, ``adapters``, ``fusion`` and ``heads``; see :mod:`afjax.model.model`. New
          leaves are float32.

        Raises:
          UserError: ``top_k`` exceeds the trunk's number of layers, a LoRA adapter's rank exceeds the hidden size, the
            head uses the trunk's pooler but the trunk has none, ``output_bias`` does not have one entry per output, the
            model has no adapter with a name in ``adapters``, or one of these trees does not match its config.
        """
        model, trained, configs = self.model, adapters or {}, dict(self.model.adapters)
        if not isinstance(trunk, Mapping):
            raise UserError(f"trunk is a {type(trunk).__name__}; pass the trunk's tree, such as trunk.params.")
        for name, tree in trained.items():
            if name not in configs:
                raise UserError(
                    f'The model has no adapter "{name}"; its adapters are {", ".join(configs) or "none"}.'
                    f"{did_you_mean(name, configs)}"
                )
            if problem := wrong_leaf(configs[name], tree, model.trunk, trunk):
                raise UserError(f'The adapter "{name}" does not fit: {problem}.')
        params: Tree = {
            "trunk": partition.split_layers(trunk, self.top_k) if self.top_k else trunk,
            "adapters": {
                name: trained[name] if name in trained else new_adapter(key, name, config, model.trunk, trunk)
                for name, config in model.adapters
            },
            "fusion": {},
            "heads": {
                model.head_name: init_head(
                    named_key(key, "heads", model.head_name),
                    model.head,
                    self.num_outputs,
                    trunk=trunk,
                    reads=model.reads,
                    output_bias=output_bias,
                )
            },
        }
        if name := model.fusion_name:
            size = {"hidden_size": model.trunk.hidden_size, "num_layers": model.trunk.num_layers}
            fusion_key = named_key(key, "fusion", name)
            params["fusion"][name] = init_fusion(fusion_key, model.fusion, model.adapters[0][1], **size)
        return params

    def split(self, params: Tree) -> tuple[Tree, Tree]:
        """Splits parameters into a trained and a frozen tree.

        :func:`afjax.merge` joins them again.

        Args:
          params: The result of :meth:`init`, or a tree with the same paths.

        Returns:
          The trained and the frozen tree. Arrays are not copied.

        Raises:
          UserError: A leaf matches no rule or several rules, or a rule matches no leaf.
        """
        return partition.split(params, partition.label(params, self.rules))

    def computed(self, *, dtype: TrunkDtype | None = None, scan_layers: bool = False, remat: Remat = "none") -> "Setup":
        """Returns a copy of the setup with the given compute options.

        Args:
          dtype: The dtype of the activations. Defaults to the dtype of the trunk's word embeddings.
          scan_layers: Whether to compile one loop over the layers instead of straight-line code.
          remat: Which of a layer's activations the backward pass rematerializes: ``none``, all except the outputs of
            matrix products and the dropout masks (``matmuls``), or all (``layers``).

        Returns:
          The new setup. Options that are not passed are reset to their defaults.

        Raises:
          UserError: ``dtype`` or ``remat`` has an unknown value.
        """
        model = dataclasses.replace(self.model, dtype=dtype, scan_layers=scan_layers, remat=remat)
        return dataclasses.replace(self, model=model)


def new_adapter(key: jax.Array, name: str, config: Adapter, trunk: TrunkConfig, params: Tree) -> Tree:
    """Initializes an adapter from a key that is derived from ``key`` and its name.

    Args:
      key: The random key derived from the run's seed.
      name: The adapter's name.
      config: The adapter's architecture.
      trunk: The trunk's architecture.
      params: The trunk's tree, whose LayerNorms are copied into an adapter with ``layer_norms``.
    """
    tree = init_adapter(named_key(key, "adapters", name), config, trunk)
    if isinstance(config, AdapterConfig) and config.layer_norms:
        return {**tree, "layer_norms": trunk_layer_norms(params)}
    return tree


def wrong_leaf(config: Adapter, tree: Tree, trunk: TrunkConfig, params: Tree) -> str:
    """Describes an adapter's first leaf that does not match its architecture.

    Returns an empty string if all paths and shapes match.

    Args:
      config: The adapter's architecture.
      tree: The adapter's tree.
      trunk: The trunk's architecture.
      params: The trunk's tree.
    """
    expected = jax.eval_shape(lambda: new_adapter(jax.random.key(0), "", config, trunk, params))
    difference = shape_difference(tree, expected)
    return f"{difference} according to its config and the trunk" if difference else ""


def check_params(model: Model, params: Tree, trunk: TrunkConfig, trunk_params: Tree) -> None:
    """Checks that a model and its adapters match a trunk. Dropout rates may differ.

    Args:
      model: The model.
      params: The tree with the roots ``adapters`` and ``fusion``.
      trunk: The trunk's architecture.
      trunk_params: The trunk's tree.

    Raises:
      UserError: The architecture differs, or an adapter or the fusion is missing or does not match its config.
    """
    rates = ("hidden_dropout", "attention_dropout", "embedding_dropout")
    if dataclasses.replace(trunk, **{rate: getattr(model.trunk, rate) for rate in rates}) != model.trunk:
        raise UserError(f"The model was set up for {model.trunk}, but the trunk is {trunk}; pass the model's trunk.")
    for name, config in model.adapters:
        tree = params.get("adapters", {}).get(name)
        problem = "it is missing" if tree is None else wrong_leaf(config, tree, trunk, trunk_params)
        if problem:
            raise UserError(f'The adapter "{name}" in params["adapters"] does not fit: {problem}.')
    if name := model.fusion_name:
        size = {"hidden_size": trunk.hidden_size, "num_layers": trunk.num_layers}
        adapter = model.adapters[0][1]
        expected = jax.eval_shape(lambda: init_fusion(jax.random.key(0), model.fusion, adapter, **size))
        tree = params.get("fusion", {}).get(name)
        problem = "it is missing" if tree is None else shape_difference(tree, expected)
        if problem:
            raise UserError(f'The fusion "{name}" in params["fusion"] does not fit: {problem}.')


def check_head(model: Model, params: Tree, trunk: Tree, task: TaskConfig, label_names: Sequence[str]) -> None:
    """Checks that a model's head matches a task.

    Raises:
      UserError: The head is missing or does not match its config, the task's kind needs another input of the head, or
        the labels another number of outputs.
    """
    kind = TASK_KINDS[task.kind]
    if model.reads != kind.reads:
        raise UserError(
            f'The model reads "{model.reads}", but tasks of the kind {task.kind} need "{kind.reads}"; set up the model '
            f'with reads="{kind.reads}".'
        )
    head = params.get("heads", {}).get(model.head_name)
    if head is None:
        raise UserError(f'The head "{model.head_name}" is missing in params["heads"]; pass the head\'s parameters too.')
    needed, key = kind.num_outputs(label_names), jax.random.key(0)
    expected = jax.eval_shape(lambda: init_head(key, model.head, needed, trunk=trunk, reads=model.reads))
    if difference := shape_difference(head, expected):
        raise UserError(
            f'The head "{model.head_name}" in params["heads"] does not fit: {difference}. The task {task.name} needs '
            f"num_outputs={needed} (labels: {', '.join(label_names) or 'none'})."
        )


def single_setup(method: Method, trunk: TrunkConfig, *, name: str, reads: Reads, num_outputs: int) -> Setup:
    """Sets up a method on one task.

    Args:
      method: The training method. If its head's pooling is not set, the first token is used.
      trunk: The trunk's architecture.
      name: The name for the adapter and the head.
      reads: Whether the head's input is one pooled vector per row or every token.
      num_outputs: The head's number of outputs.

    Returns:
      The setup. :meth:`Setup.init` initializes its parameters.

    Raises:
      UserError: The adapter is in a layer that the trunk does not have, the name cannot be used, or ``num_outputs`` is
        less than 1.

    Example:
      >>> import jax
      >>> from afjax.config.methods import Method
      >>> from afjax.model.setup import single_setup
      >>> from afjax.trunk.config import TrunkConfig
      >>> from afjax.trunk.encoder import init_trunk
      >>> sizes = {"hidden_size": 8, "num_layers": 2, "num_heads": 2, "intermediate_size": 16}
      >>> config = TrunkConfig(family="bert", vocab_size=30, max_positions=16, type_vocab_size=2, **sizes)
      >>> setup = single_setup(Method(), config, name="reviews", reads="pooled", num_outputs=2)
      >>> params = setup.init(jax.random.key(0), init_trunk(jax.random.key(1), config))
      >>> trained, frozen = setup.split(params)
      >>> sorted(trained), sorted(frozen)
      (['adapters', 'heads'], ['trunk'])
    """
    _check_arguments(trunk, name, num_outputs)
    model = Model(
        trunk=trunk,
        head_name=name,
        head=method.head,
        reads=reads,
        adapters=((name, method.adapter),) if method.has_adapter else (),
    )
    # Token heads never use the trunk's pooler.
    rules = partition.preset(method.partition, method.head if reads == "pooled" else HeadConfig())
    return Setup(model=model, rules=rules, num_outputs=num_outputs, top_k=method.top_k)


def fusion_setup(
    adapters: Mapping[str, Adapter],
    fusion: FusionConfig,
    head: HeadConfig,
    trunk: TrunkConfig,
    *,
    name: str,
    reads: Reads,
    num_outputs: int,
) -> Setup:
    """Sets up a fusion of adapters for one task.

    Args:
      adapters: The architectures of the fused adapters by name, in order.
      fusion: The fusion's architecture.
      head: The head's architecture. If its pooling is not set, the first token is used.
      trunk: The trunk's architecture.
      name: The name for the fusion and the head.
      reads: Whether the head's input is one pooled vector per row or every token.
      num_outputs: The head's number of outputs.

    Returns:
      The setup. :meth:`Setup.init` initializes its parameters.

    Raises:
      UserError: The adapters cannot be fused, one of them is in a layer that the trunk does not have, ``fusion.kept``
        or ``fusion.subset`` is not valid for them, the name cannot be used, or ``num_outputs`` is less than 1.

    Example:
      >>> from afjax import AdapterConfig, FusionConfig, HeadConfig, fusion_setup
      >>> from afjax.trunk.sizes import trunk_size
      >>> adapters = {"entail": AdapterConfig(), "paraphrase": AdapterConfig()}
      >>> task = {"name": "target", "reads": "pooled", "num_outputs": 2}
      >>> setup = fusion_setup(adapters, FusionConfig(), HeadConfig(), trunk_size("minilm"), **task)
      >>> [rule.pattern for rule in setup.rules if rule.train]
      ['fusion/.*', 'heads/.*']

    Reference:
      Pfeiffer et al. 2021, *AdapterFusion*, section 3.1.
    """
    _check_arguments(trunk, name, num_outputs)
    check_subset(fusion, len(adapters))
    model = Model(
        trunk=trunk,
        head_name=name,
        head=head,
        reads=reads,
        adapters=tuple(adapters.items()),
        fusion_name=name,
        fusion=fusion,
    )
    return Setup(model=model, rules=partition.preset("fusion"), num_outputs=num_outputs)


def _check_arguments(trunk: TrunkConfig, name: str, num_outputs: int) -> None:
    if not isinstance(trunk, TrunkConfig):
        raise UserError(f"trunk is a {type(trunk).__name__}; pass the trunk's architecture, such as trunk.config.")
    check_name(name, "adapter or head")
    check_value(PositiveInt, num_outputs, "num_outputs")
