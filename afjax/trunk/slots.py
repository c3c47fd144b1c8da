"""Slots for adapters and fusions. An encoder layer has two, one after each sub-layer."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jax import Array

from afjax.trees import Tree
from afjax.trunk.layers import Layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sublayer:
    """The inputs of a slot.

    ``queries`` below is the number of tokens to compute: all of them, or only the first.

    Attributes:
      output: The sub-layer's output after dropout, ``[batch, queries, hidden_size]``.
      residual: The sub-layer's input, of the same shape.
      norm: The sub-layer's LayerNorm.
      layer_input: The layer's input for all tokens, ``[batch, length, hidden_size]``.
      mask: bool ``[batch, length]``, False at padding.
    """

    output: Array
    residual: Array
    norm: Callable[[Array], Array]
    layer_input: Array
    mask: Array


# Computes the next hidden state [batch, queries, hidden_size]. If the slot has a fusion, it also returns the attention
# over adapters [batch, queries, num_adapters].
Slot = Callable[[Sublayer], tuple[Array, Array | None]]


def plain_slot(sublayer: Sublayer) -> tuple[Array, None]:
    """An empty slot: ``LayerNorm(residual + output)``, as in the pretrained encoder."""
    return sublayer.norm(sublayer.residual + sublayer.output), None


# Makes a layer's slots from the layer's contents, the contents that all layers share, and the dropout key.
SlotMaker = Callable[[Any, Any, Array | None], Mapping[str, Slot]]


def no_slots(contents: Any, shared: Any, key: Array | None) -> Mapping[str, Slot]:
    """The :data:`SlotMaker` of an encoder without adapters."""
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilledSlots:
    """The contents of an encoder's slots.

    Attributes:
      layers: The indices of the layers whose slots are filled, in ascending order.
      contents: The parameters of these layers' slots, in any of the forms of :mod:`afjax.trunk.layers`.
      shared: A tree that all layers share.
      make: Makes a layer's slots from its contents. It must not close over arrays.
    """

    layers: tuple[int, ...] = ()
    contents: Layers = dataclasses.field(default_factory=Tree)
    shared: Any = None
    make: SlotMaker = no_slots


NO_SLOTS = FilledSlots()
