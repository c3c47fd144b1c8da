"""The whole model: trunk, the adapters in its slots, their fusion, and a head.

Parameters are one tree with four roots, passed in by the caller::

    {"trunk": {...}, "adapters": {<name>: {...}}, "fusion": {<name>: {...}}, "heads": {<name>: {...}}}
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
from jax import Array

from afjax.config import AdapterConfig, FusionConfig, HeadConfig
from afjax.model import bottleneck, fusion
from afjax.model.encoder import Slot, TrunkConfig, encode
from afjax.model.heads import apply_head
from afjax.model.layers import split_key
from afjax.trees import Tree


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What a forward pass gives.

    Attributes:
      logits: ``[batch, num_outputs]``, float32 or wider.
      fusion_attention: Where asked for: for every slot with a fusion, the attention over adapters,
        ``[num_layers with the slot, batch, length, num_adapters]``.
    """

    logits: Array
    fusion_attention: dict[str, Array]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What to compute; hashable, without parameters.

    Attributes:
      trunk: The encoder's architecture.
      head_name: Which head of the tree gives the logits.
      head: Its architecture.
      adapters: ``(name, architecture)`` of the active adapters: none, one, or those that are fused, in order.
      fusion_name: Which fusion of the tree mixes them; empty: none.
      fusion: Its architecture.
      scan_layers: One compiled loop over the layers in place of straight-line code.
    """

    trunk: TrunkConfig
    head_name: str
    head: HeadConfig = HeadConfig()
    adapters: tuple[tuple[str, AdapterConfig], ...] = ()
    fusion_name: str = ""
    fusion: FusionConfig = FusionConfig()
    scan_layers: bool = False

    def __post_init__(self) -> None:
        for _, config in self.adapters:
            bottleneck.adapter_layers(config, self.trunk.num_layers)
        if self.fusion_name:
            fusion.check_fusible(dict(self.adapters), self.trunk.num_layers)
        else:
            assert len(self.adapters) <= 1, "several adapters need a fusion"

    def __call__(
        self, params: Tree, batch: Mapping[str, Array], *, key: Array | None = None, fusion_attention: bool = False
    ) -> Outputs:
        """Runs the model, in the trunk's dtype but for softmax, LayerNorm and the head.

        Args:
          params: The tree with four roots. Other adapters, fusions and heads in it are left alone.
          batch: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch, length]``.
          key: Dropout's key; None: no dropout.
          fusion_attention: Whether to return the attention over adapters. Without it the last layer is computed
            for the first token alone, which is what heads read.
        """
        trunk_key, head_key = split_key(key, 2)
        trunk = self._trunk_with_layer_norms(params)
        hidden, attention = encode(
            trunk,
            self.trunk,
            batch["tokens"],
            batch["types"],
            batch["mask"],
            contents=self._slot_contents(params),
            layers=self._layers(),
            make_slots=self._make_slots,
            key=trunk_key,
            scan=self.scan_layers,
            first_token_only=not fusion_attention,
        )
        rate = self.trunk.hidden_dropout if self.head.dropout is None else self.head.dropout
        logits = apply_head(params["heads"][self.head_name], trunk, hidden, dropout_rate=rate, key=head_key)
        return Outputs(logits, attention)

    def fold(self, params: Tree) -> Tree:
        """Parameters for inference: a fusion and its adapters become one folded tree, the rest stays.

        The model computes the same from them, faster; they cannot be trained.
        """
        if not self.fusion_name:
            return params
        folded = self._fold_fusion(params["fusion"][self.fusion_name], params["adapters"])
        return {**params, "adapters": {}, "fusion": {self.fusion_name: {"folded": folded}}}

    @functools.partial(jax.jit, static_argnums=0)
    def _fold_fusion(self, mixed: Tree, adapters: Tree) -> Tree:
        return fusion.fold_fusion(mixed, self._bank(adapters))

    def penalty(self, params: Tree) -> Array | float:
        """What the loss adds: the fusion's pull of V towards the identity."""
        if not self.fusion_name:
            return 0.0
        return self.fusion.regularization * fusion.value_penalty(params["fusion"][self.fusion_name])

    def _layers(self) -> tuple[int, ...]:
        return bottleneck.adapter_layers(self.adapters[0][1], self.trunk.num_layers) if self.adapters else ()

    def _trunk_with_layer_norms(self, params: Tree) -> Tree:
        """The trunk, with the LayerNorms that the active adapter carries (Houlsby 2019) in place of its own."""
        trunk = params["trunk"]
        if not (self.adapters and self.adapters[0][1].layer_norms):
            return trunk
        norms = params["adapters"][self.adapters[0][0]]["layer_norms"]
        if "0" in trunk["layers"]:
            layers = {}
            for index, layer in trunk["layers"].items():
                own = jax.tree.map(lambda leaf, i=int(index): leaf[i], {block: norms[block] for block in layer})
                layers[index] = {block: {**layer[block], "norm": own[block]} for block in layer}
            return {**trunk, "embeddings": {**trunk["embeddings"], "norm": norms["embeddings"]}, "layers": layers}
        stacked = trunk["layers"]
        return {
            **trunk,
            "embeddings": {**trunk["embeddings"], "norm": norms["embeddings"]},
            "layers": {block: {**stacked[block], "norm": norms[block]} for block in stacked},
        }

    def _bank(self, adapters: Tree) -> Tree:
        trees = [adapters[name] for name, _ in self.adapters]
        return fusion.make_bank(trees, [config for _, config in self.adapters])

    def _slot_contents(self, params: Tree) -> Tree:
        """What the slots hold, stacked over their layers."""
        if not self.adapters:
            return {}
        if not self.fusion_name:
            (name, config), *_ = self.adapters
            return {slot: params["adapters"][name][slot] for slot in config.slots}
        mixed = params["fusion"][self.fusion_name]
        if "folded" in mixed:
            return mixed["folded"]
        bank = self._bank(params["adapters"])
        return {slot: {"fusion": mixed[slot], "bank": bank[slot]} for slot in bank}

    def _make_slots(self, contents: Any, key: Array | None) -> dict[str, Slot]:
        return {
            slot: self._slot(params, slot_key)
            for (slot, params), slot_key in zip(contents.items(), split_key(key, len(contents)), strict=True)
        }

    def _slot(self, params: Tree, key: Array | None) -> Slot:
        config = self.adapters[0][1]
        if not self.fusion_name:
            return lambda sublayer, residual, norm: (
                bottleneck.adapter_slot(params, config, sublayer, residual, norm),
                None,
            )

        def fused_slot(sublayer: Array, residual: Array, norm: Any) -> tuple[Array, Array]:
            z, skip = bottleneck.adapter_input(config, sublayer, residual, norm)
            layout = fusion.bank_layout([config for _, config in self.adapters], self.trunk.hidden_size)
            if "bank" in params:
                rate = self.trunk.attention_dropout if self.fusion.dropout is None else self.fusion.dropout
                output, attention = fusion.fuse(
                    params["fusion"],
                    params["bank"],
                    z,
                    layout=layout,
                    temperature=self.fusion.temperature,
                    dropout_rate=rate,
                    key=key,
                )
            else:
                output, attention = fusion.fuse_folded(params, z, layout=layout, temperature=self.fusion.temperature)
            return bottleneck.adapter_output(config, output + skip, residual, norm), attention

        return fused_slot


def trunk_layer_norms(trunk: Tree) -> Tree:
    """Copies of a trunk's LayerNorms ``{embeddings, attention, ffn}``: what an adapter's ``layer_norms`` start from."""
    norms = {"embeddings": trunk["embeddings"]["norm"]}
    norms.update({block: params["norm"] for block, params in trunk["layers"].items()})
    return jax.tree.map(lambda leaf: leaf.copy(), norms)
