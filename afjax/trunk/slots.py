"""Slots for adapters and fusions.

An encoder layer has one slot after each of its two sub-layers, and one around each of its six dense layers.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.errors import UserError
from afjax.nn.layers import dense
from afjax.trees import AnyArray, Tree
from afjax.trunk.layers import Layers, num_layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sublayer:
    """The inputs of a slot after a sub-layer.

    In the shapes below, ``queries`` is the number of tokens to compute: all tokens, or only the first.

    Attributes:
      output: The sub-layer's output after dropout, ``[batch, queries, hidden_size]``.
      residual: The sub-layer's input, ``[batch, queries, hidden_size]``.
      norm: The LayerNorm after the sub-layer's residual connection. The identity in ``pre_norm`` layers.
      layer_input: The layer's input for all tokens, ``[batch, length, hidden_size]``.
      mask: bool ``[batch, length]``, False at padding.
      attention_dropout: The trunk's attention dropout rate, the default for modules with attention and for fusions.
    """

    output: Float[Array, "batch queries hidden"]
    residual: Float[Array, "batch queries hidden"]
    norm: Callable[[Array], Array]
    layer_input: Float[Array, "batch length hidden"]
    mask: Bool[AnyArray, "batch length"]
    attention_dropout: float


# Computes the next hidden state [batch, queries, hidden_size]. If the slot has a fusion, it also returns the attention
# over adapters [batch, queries, num_adapters].
Slot = Callable[[Sublayer], tuple[Array, Array | None]]


def plain_slot(sublayer: Sublayer) -> tuple[Float[Array, "batch queries hidden"], None]:
    """An empty slot. Computes ``norm(residual + output)``, as in the pretrained trunk."""
    return sublayer.norm(sublayer.residual + sublayer.output), None


@dataclasses.dataclass(frozen=True)
class DenseSlot:
    """The contents of a slot around a dense layer.

    Attributes:
      apply: Computes the outputs ``[..., outputs]`` from the dense layer's parameters and its inputs ``[..., inputs]``.
      merge: Converts the dense layer's parameters to the parameters of a plain dense layer that computes the slot's
        outputs. None if there is no such layer, for example because of dropout.
      apply_to_positions: Like ``apply``, but with its own dropout, for the embeddings of relative positions that
        DeBERTa's layers also project. None without dropout.
    """

    apply: Callable[[Tree, Array], Array]
    merge: Callable[[Tree], Tree] | None
    apply_to_positions: Callable[[Tree, Array], Array] | None = None


def _unchanged(params: Tree) -> Tree:
    return params


PLAIN_DENSE_SLOT = DenseSlot(dense, _unchanged)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerSlots:
    """The filled slots of one encoder layer. All other slots are empty.

    Attributes:
      sublayers: The slots after the sub-layers: ``attention``, ``ffn``.
      dense_layers: The slots around the dense layers, by the layer's path in the trunk's tree, such as
        ``attention/query``.
    """

    sublayers: Mapping[str, Slot] = dataclasses.field(default_factory=dict)
    dense_layers: Mapping[str, DenseSlot] = dataclasses.field(default_factory=dict)

    def sublayer(self, name: str) -> Slot:
        """Returns the slot after a sub-layer."""
        return self.sublayers.get(name, plain_slot)

    def dense_layer(self, path: str) -> DenseSlot:
        """Returns the slot around a dense layer."""
        return self.dense_layers.get(path, PLAIN_DENSE_SLOT)


EMPTY_LAYER = LayerSlots()

# Makes a layer's slots from the layer's contents, the contents that all layers share, and the dropout key.
SlotMaker = Callable[[Any, Any, Array | None], LayerSlots]


def no_slots(contents: Any, shared: Any, key: PRNGKeyArray | None) -> LayerSlots:
    """The :data:`SlotMaker` of an encoder without adapters."""
    return EMPTY_LAYER


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilledSlots:
    """The contents of an encoder's slots.

    Attributes:
      layers: The indices of the layers whose slots are filled, in ascending order.
      contents: The parameters of these layers' slots, in any of the forms of :mod:`afjax.trunk.layers`.
      shared: The parameters that the slots of all layers share.
      make: Makes a layer's slots from its contents. It must not close over arrays, because
        :func:`afjax.nn.layer_loop.loop_over_layers` could not differentiate with respect to them.
    """

    layers: tuple[int, ...] = ()
    contents: Layers = dataclasses.field(default_factory=Tree)
    shared: Any = None
    make: SlotMaker = no_slots

    def check_depth(self) -> None:
        """Raises UserError if the contents have another number of layers than ``layers``.

        The encoder would otherwise ignore additional layers.
        """
        depth = num_layers(self.contents) if jax.tree.leaves(self.contents) else 0
        if depth != len(self.layers):
            raise UserError(
                f"The adapter or fusion has parameters for {depth} layers, but this model needs {len(self.layers)} "
                "layers; use adapters that were trained on this trunk."
            )


NO_SLOTS = FilledSlots()
