"""The whole model: trunk, the adapters in its slots, their fusion, and a head.

Parameters are one tree with four roots, passed in by the caller::

    {"trunk": {...}, "adapters": {<name>: {...}}, "fusion": {<name>: {...}}, "heads": {<name>: {...}}}

For a fusion of frozen adapters two other forms do less work a step: :meth:`Model.with_bank` gives that for training,
:meth:`Model.fold` that for inference.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from afjax.adapters.kinds import adapter_layers, adapter_slot, reads_all_tokens, slot_contents, top_kind
from afjax.config.adapters import Adapter, AdapterConfig, BesideLayers, OnTop
from afjax.config.from_dict import check_value
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.values import Remat, TrunkDtype
from afjax.fusion.bank import make_bank
from afjax.fusion.checks import check_fusible, is_factored
from afjax.fusion.folded import fold_fusion
from afjax.fusion.parameters import value_penalty
from afjax.fusion.pruning import check_kept, keep_adapters, kept_config
from afjax.fusion.slot import fused_slot
from afjax.model.heads import apply_head
from afjax.nn.layers import split_key
from afjax.tasks.kind import Reads
from afjax.trees import Tree, merge, named_key
from afjax.trunk.encoder import Slot, Sublayer, TrunkConfig, encode
from afjax.trunk.layer_masks import encode_under_masks
from afjax.trunk.layers import each_layer, part_layers, stack_layers, unstack_layers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outputs:
    """The results of a forward pass; a pytree, so that jitted functions can return it.

    Attributes:
      logits: ``[batch, num_outputs]``, float32 or wider; ``[batch, choices]`` of multiple choice, the dtype's lowest
        number for choices that a row does not have; ``[batch, length, num_outputs]`` where the head reads tokens.
      fusion_attention: Where asked for: for every slot with a fusion, the attention over adapters,
        ``[num_layers with the slot, batch, length, num_adapters]``; of multiple choice the tokens of a row's choices
        stand one after another.
    """

    logits: Array
    fusion_attention: dict[str, Array]

    def row_attention(self, mask: Array) -> dict[str, Array]:
        """The attention over adapters averaged over each row's tokens, ``{slot: [batch, layers, num_adapters]}``.

        Args:
          mask: The batch's, False at padding.
        """
        tokens = mask.reshape(mask.shape[0], -1)  # of all choices, of multiple choice
        present = tokens / jnp.maximum(tokens.sum(-1, keepdims=True), 1)
        return {
            slot: jnp.einsum("lbtn,bt->bln", attention, present) for slot, attention in self.fusion_attention.items()
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What to compute; hashable, without parameters.

    Attributes:
      trunk: The encoder's architecture.
      head_name: Which head of the tree gives the logits.
      head: Its architecture.
      reads: Whether the head reads one pooled vector per row, or every token.
      adapters: ``(name, architecture)`` of the active adapters: none, one, or those that are fused, in order.
      fusion_name: Which fusion of the tree mixes them; empty: none.
      fusion: Its architecture.
      dtype: Of the activations; None: that of the trunk's word embeddings.
      scan_layers: One compiled loop over the layers in place of straight-line code.
      remat: What the backward pass computes again; see ``ExperimentConfig``.
    """

    trunk: TrunkConfig
    head_name: str
    head: HeadConfig = HeadConfig()
    reads: Reads = "pooled"
    adapters: tuple[tuple[str, Adapter], ...] = ()
    fusion_name: str = ""
    fusion: FusionConfig = FusionConfig()
    dtype: TrunkDtype | None = None
    scan_layers: bool = False
    remat: Remat = "none"

    def __post_init__(self) -> None:
        check_value(Remat, self.remat, "remat")
        check_value(TrunkDtype | None, self.dtype, "dtype")
        for _, config in self.adapters:
            adapter_layers(config, self.trunk.num_layers)
        if self.fusion_name:
            check_fusible(dict(self.adapters), self.trunk.num_layers)
            check_kept(self.fusion, [config for _, config in self.adapters], self.trunk.num_layers)
        else:
            assert len(self.adapters) <= 1, "several adapters need a fusion"

    def __call__(
        self,
        params: Tree,
        batch: Mapping[str, Array],
        *,
        key: Array | None = None,
        fusion_attention: bool = False,
    ) -> Outputs:
        """Runs the model, in the trunk's dtype but for softmax, LayerNorm and the head.

        Args:
          params: The tree with four roots. Other adapters, fusions and heads in it are left alone.
          batch: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch, length]``; of multiple choice each
            ``[batch, choices, length]``.
          key: Dropout's key; None: no dropout.
          fusion_attention: Whether to return the attention over adapters. Without it the last layer is computed
            for the first token alone, where that is what the head reads.
        """
        if batch["tokens"].ndim == 3:
            return self._run_choices(params, batch, key, fusion_attention)
        trunk_key, head_key = split_key(key, 2)
        trunk = self._trunk_with_layer_norms(params)
        hidden, attention = self._encode(
            params,
            trunk,
            batch,
            trunk_key,
            key,
            first_token_only=self._first_token_only and not fusion_attention,
            first_token_read=self._pools_first_token,
        )
        return Outputs(self._apply_head(params, trunk, hidden, batch["mask"], head_key), attention)

    def hidden_states(self, params: Tree, batch: Mapping[str, Array], *, key: Array | None = None) -> Array:
        """Computes the last hidden states.

        Args:
          params: The tree with four roots; heads are not used.
          batch: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch, length]``.
          key: The key of dropout, or None for no dropout.

        Returns:
          ``[batch, length, hidden_size]`` in the model's dtype, after modules on top of the encoder.
        """
        trunk = self._trunk_with_layer_norms(params)
        trunk_key, _ = split_key(key, 2)
        return self._encode(params, trunk, batch, trunk_key, key, first_token_only=False, first_token_read=False)[0]

    def _encode(
        self,
        params: Tree,
        trunk: Tree,
        batch: Mapping[str, Array],
        trunk_key: Array | None,
        key: Array | None,
        *,
        first_token_only: bool,
        first_token_read: bool,
    ) -> tuple[Array, dict[str, Array]]:
        """Runs the encoder with its slots, then the modules on top.

        Args:
          params, batch, key: See ``__call__``.
          trunk: The trunk's tree, with the LayerNorms that the adapter carries.
          trunk_key: Dropout's key for the encoder.
          first_token_only: Whether the encoder's last layer is computed for the first token only.
          first_token_read: Whether modules on top need to compute only the first token's output.
        """
        contents, shared = self._slot_contents(params)
        hidden, attention = encode(
            trunk,
            self.trunk,
            batch["tokens"],
            batch["types"],
            batch["mask"],
            contents=contents,
            layers=self._layers(),
            shared=(shared, self._draw_adapters(key)),
            make_slots=self._make_slots,
            key=trunk_key,
            dtype=self.dtype,
            scan=self.scan_layers,
            remat=self.remat,
            first_token_only=first_token_only,
        )
        for name, config in self.adapters:
            if isinstance(config, OnTop):
                # A key of its own, so that the head's stays what it is without a module.
                top_key = None if key is None else named_key(key, "top")
                hidden = top_kind(config).top(
                    params["adapters"][name]["top"],
                    config,
                    self.trunk,
                    hidden,
                    batch["mask"],
                    key=top_key,
                    first_token_only=first_token_read,
                )
        return hidden, attention

    def under_masks(self, params: Tree, batch: Mapping[str, Array], layer_masks: np.ndarray) -> Array:
        """The logits with adapters in some of the layers only, for many choices of these layers at once.

        What the choices have in common is computed once: :func:`afjax.trunk.layer_masks.encode_under_masks`.

        Args:
          params, batch: As of a call.
          layer_masks: bool ``[masks, num_layers]``, False where a layer is to run as if its slots were empty
            (LayerNorms that the adapter carries stay); what it says of layers without adapters is not read.

        Returns:
          ``[batch, masks, ...]``, behind them as :class:`Outputs` has them.
        """
        assert not any(isinstance(config, OnTop) for _, config in self.adapters), "modules on top are in no layer"
        if batch["tokens"].ndim == 3:
            logits = self.under_masks(params, _each_choice_a_row(batch), layer_masks)[..., 0]
            rows, choices, _ = batch["tokens"].shape
            return _only_choices_there(jnp.swapaxes(logits.reshape(rows, choices, -1), 1, 2), batch)
        trunk = self._trunk_with_layer_norms(params)
        contents, shared = self._slot_contents(params)
        hidden = encode_under_masks(
            trunk,
            self.trunk,
            batch["tokens"],
            batch["types"],
            batch["mask"],
            layer_masks,
            contents=contents,
            layers=self._layers(),
            shared=(shared, None),
            make_slots=self._make_slots,
            dtype=self.dtype,
            first_token_only=self._first_token_only,
        )
        mask = jnp.repeat(batch["mask"], len(layer_masks), axis=0)  # [batch * masks, length]
        logits = self._apply_head(params, trunk, hidden.reshape(-1, *hidden.shape[2:]), mask, None)
        return logits.reshape(*hidden.shape[:2], *logits.shape[1:])

    @property
    def _pools_first_token(self) -> bool:
        """Whether the head only reads the first token."""
        return self.reads == "pooled" and self.head.pooling == "first"

    @property
    def _first_token_only(self) -> bool:
        """Whether only the first token's last hidden state is used."""
        all_tokens = any(reads_all_tokens(config, self.trunk.num_layers) for _, config in self.adapters)
        return self._pools_first_token and not all_tokens

    def _apply_head(self, params: Tree, trunk: Tree, hidden: Array, mask: Array, key: Array | None) -> Array:
        rate = self.head.dropout
        if rate is None:
            rate = self.trunk.hidden_dropout if self.reads == "pooled" else 0.0
        head = params["heads"][self.head_name]
        return apply_head(head, self.head, trunk, hidden, mask, reads=self.reads, dropout_rate=rate, key=key)

    def _run_choices(
        self, params: Tree, batch: Mapping[str, Array], key: Array | None, fusion_attention: bool
    ) -> Outputs:
        """Every choice is a row of its own, whose first logit is the choice's."""
        num_rows, num_choices, length = batch["tokens"].shape
        outputs = self(params, _each_choice_a_row(batch), key=key, fusion_attention=fusion_attention)
        logits = outputs.logits[:, 0].reshape(num_rows, 1, num_choices)
        attention = {
            slot: of_slot.reshape(of_slot.shape[0], num_rows, num_choices * length, -1)
            for slot, of_slot in outputs.fusion_attention.items()
        }
        return Outputs(_only_choices_there(logits, batch)[:, 0], attention)

    def fold(self, params: Tree) -> Tree:
        """Parameters for inference: a fusion and its adapters become one folded tree, the rest stays.

        The model computes the same from them, faster; they cannot be trained.
        """
        if not self.fusion_name or not is_factored(self._fused_configs()):
            return params
        members = {root: params[root] for root in ("adapters", "bank") if root in params}
        folded, shared = self._fold_fusion(params["fusion"][self.fusion_name], members)
        mixed = {"folded": self._contents_form(folded), "shared": shared}
        left = {root: tree for root, tree in params.items() if root not in members}
        return {**left, "adapters": {}, "fusion": {self.fusion_name: mixed}}

    @functools.partial(jax.jit, static_argnums=0)
    def _fold_fusion(self, mixed: Tree, members: Tree) -> tuple[Tree, Tree]:
        bank = self._bank(members)
        return fold_fusion(mixed, stack_layers(bank["layers"]), bank["shared"]), bank["shared"]

    def with_bank(self, params: Tree) -> Tree:
        """Parameters for training a fusion of frozen adapters: ``bank``, where they lie side by side, for ``adapters``.

        The model computes the same from them. From ``adapters`` every step lays them so, and holds them twice.
        """
        left = {root: tree for root, tree in params.items() if root != "adapters"}
        return {**left, "bank": self._bank(params)}

    def _contents_form(self, contents: Tree) -> Tree:
        """What slots hold, stacked over their layers, in the form that runs fastest."""
        return contents if self.scan_layers else _each_layer_apart(contents)

    def penalty(self, params: Tree) -> Array | float:
        """What the loss adds: the fusion's pull of V towards the identity."""
        if not self.fusion_name:
            return 0.0
        return self.fusion.regularization * value_penalty(params["fusion"][self.fusion_name])

    def _layers(self) -> tuple[int, ...]:
        return adapter_layers(self.adapters[0][1], self.trunk.num_layers) if self.adapters else ()

    def _trunk_with_layer_norms(self, params: Tree) -> Tree:
        """The trunk, with the LayerNorms that the active adapter carries (Houlsby 2019) in place of its own."""
        trunk = params["trunk"]
        config = self.adapters[0][1] if self.adapters else None
        if not (isinstance(config, AdapterConfig) and config.layer_norms):
            return trunk
        norms = params["adapters"][self.adapters[0][0]]["layer_norms"]
        if "0" in trunk["layers"]:
            layers = {}
            for index, layer in trunk["layers"].items():
                own = jax.tree.map(lambda leaf, i=int(index): leaf[i], {block: norms[block] for block in layer})
                layers[index] = {block: {**layer[block], "norm": own[block]} for block in layer}
            return {**trunk, "embeddings": {**trunk["embeddings"], "norm": norms["embeddings"]}, "layers": layers}
        embeddings = {**trunk["embeddings"], "norm": norms["embeddings"]}
        own = {block: norms[block] for block in ("attention", "ffn")}
        if "last" in trunk["layers"]:
            own_parts = part_layers(own)
            parts = {name: _with_norms(part, own_parts[name]) for name, part in trunk["layers"].items()}
            return {**trunk, "embeddings": embeddings, "layers": parts}
        return {**trunk, "embeddings": embeddings, "layers": _with_norms(trunk["layers"], own)}

    def _num_fused(self) -> int:
        """How many adapters each layer fuses."""
        return len(self.adapters) if self.fusion.kept is None else len(self.fusion.kept[0][0])

    def _fused_configs(self) -> list[Adapter]:
        """The architectures of what each layer fuses."""
        configs = [config for _, config in self.adapters]
        if self.fusion.kept is None:
            return configs
        return [kept_config(configs[0])] * self._num_fused()

    def _bank(self, params: Tree) -> Tree:
        """``{"layers": what slots hold, "shared": what of it all layers share}``."""
        if "bank" in params:
            return {"shared": {}, **params["bank"]}
        trees = [params["adapters"][name] for name, _ in self.adapters]
        if self.fusion.kept is not None:
            trees = keep_adapters(trees, self.adapters[0][1], self.fusion.kept)
        stacked, shared = make_bank(trees, self._fused_configs())
        return {"layers": self._contents_form(stacked), "shared": shared}

    def _draw_adapters(self, key: Array | None) -> Array | None:
        """Which adapters this training step fuses, bool ``[N]``; None: all."""
        if not self.fusion_name or key is None or self.fusion.subset is None:
            return None
        order = jax.random.permutation(named_key(key, "subset"), self._num_fused())
        return order < self.fusion.subset

    def _slot_contents(self, params: Tree) -> tuple[Tree, Tree]:
        """What the slots hold, as :func:`encode` takes it, and ``{slot: leaves of all layers}``."""
        if not self.adapters:
            return {}, {}
        if not self.fusion_name:
            (name, config), *_ = self.adapters
            return slot_contents(params["adapters"][name], config)
        mixed = params["fusion"][self.fusion_name]
        if "folded" in mixed:
            return mixed["folded"], mixed.get("shared", {})
        bank = self._bank(params)
        if self.scan_layers:
            return _with_fusion(bank["layers"], mixed), bank["shared"]
        each = zip(each_layer(bank["layers"]), each_layer(mixed), strict=True)
        return {str(i): _with_fusion(held, of_layer) for i, (held, of_layer) in enumerate(each)}, bank["shared"]

    def _make_slots(self, contents: Any, shared: tuple[Tree, Array | None], key: Array | None) -> dict[str, Slot]:
        leaves, drawn = shared
        return {
            slot: functools.partial(self._run_slot, merge(params, leaves.get(slot, {})), slot_key, drawn)
            for (slot, params), slot_key in zip(contents.items(), split_key(key, len(contents)), strict=True)
        }

    def _run_slot(
        self, params: Tree, key: Array | None, drawn: Array | None, sublayer: Sublayer
    ) -> tuple[Array, Array | None]:
        rate = self.trunk.attention_dropout
        if self.fusion_name:
            configs = self._fused_configs()
            return fused_slot(params, configs, self.fusion, sublayer, dropout_rate=rate, key=key, drawn=drawn)
        config = self.adapters[0][1]
        assert isinstance(config, AdapterConfig | BesideLayers), "modules on top hold no slot"
        return adapter_slot(params, config, sublayer, dropout_rate=rate, key=key), None


def _each_choice_a_row(batch: Mapping[str, Array]) -> dict[str, Array]:
    rows, choices, length = batch["tokens"].shape
    return {name: batch[name].reshape(rows * choices, length) for name in ("tokens", "types", "mask")}


def _only_choices_there(logits: Array, batch: Mapping[str, Array]) -> Array:
    """Logits ``[batch, n, choices]``, the dtype's lowest number for choices that a row does not have."""
    there = batch["mask"].any(-1)  # [batch, choices]
    return jnp.where(there[:, None], logits, jnp.finfo(logits.dtype).min)


# Compiled as one: leaves that many hosts share are not cut one by one.
_each_layer_apart = jax.jit(unstack_layers)


def _with_fusion(bank: Tree, mixed: Tree) -> Tree:
    """What slots hold, of one layer or stacked: adapters side by side, and the fusion that mixes them."""
    return {slot: {**held, "fusion": mixed[slot]} for slot, held in bank.items()}


def _with_norms(layers: Tree, norms: Tree) -> Tree:
    """Stacked layers with other LayerNorms."""
    return {block: {**layers[block], "norm": norms[block]} for block in layers}


def trunk_layer_norms(trunk: Tree) -> Tree:
    """Copies of a trunk's LayerNorms ``{embeddings, attention, ffn}``: what an adapter's ``layer_norms`` start from."""
    norms = {"embeddings": trunk["embeddings"]["norm"]}
    norms.update({block: params["norm"] for block, params in trunk["layers"].items()})
    return jax.tree.map(lambda leaf: leaf.copy(), norms)
