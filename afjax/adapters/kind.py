"""What a kind of adapter consists of. Each module of this package with a ``KIND`` defines one kind."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer


class Init(Protocol):
    """Makes the parameters of an adapter at the start of training."""

    def __call__(self, key: Array, config: Any, trunk: TrunkConfig, depth: int) -> Tree:
        """Returns a float32 tree.

        Args:
          key: The key of this adapter. Each leaf has a key of its own that follows from its path.
          config: The architecture.
          trunk: The trunk's architecture.
          depth: The number of layers that have the adapter. Leaves of slots are stacked over them.
        """
        ...


class InSlot(Protocol):
    """Computes with one layer's parameters of an adapter, in the slot behind a sub-layer."""

    def __call__(
        self, params: Tree, config: Any, sublayer: Sublayer, *, dropout_rate: float = 0.0, key: Array | None = None
    ) -> Array:
        """Returns ``[batch, queries, ...]``.

        Args:
          params: One layer's parameters, those that all layers share included.
          config: The architecture.
          sublayer: The slot.
          dropout_rate: The trunk's attention dropout, for modules with attention and no rate of their own.
          key: The key of dropout, or None for no dropout.
        """
        ...


class OnEncoder(Protocol):
    """Computes a module on top of the encoder."""

    def __call__(
        self,
        params: Tree,
        config: Any,
        trunk: TrunkConfig,
        hidden: Array,
        mask: Array,
        *,
        key: Array | None,
        first_token_only: bool = True,
    ) -> Array:
        """Returns the hidden states that heads read, ``[batch, length, d]``, or ``[batch, 1, d]`` of the first token.

        Args:
          params: The tree under ``top``.
          config: The architecture.
          trunk: The trunk's architecture: dropout rates, LayerNorm's epsilon, activation.
          hidden: The last hidden states ``[batch, length, d]``.
          mask: bool ``[batch, length]``, False at padding.
          key: The key of dropout, or None for no dropout.
          first_token_only: Whether only the first token's output is needed.
        """
        ...


class MacCounter(Protocol):
    """Counts multiply-adds of matrix products; "live" values depend on anything that is trained.

    Attributes:
      rows: Rows of the batch.
      length: Tokens per row.
    """

    rows: int
    length: int

    def dense(self, n: int, inputs: int, outputs: int, *, trained: bool, live: bool) -> bool:
        """Adds a dense layer over ``n`` tokens; returns whether its result is live."""
        ...

    def attention(self, size: int, num_heads: int, trained: bool, live: bool, *, first_token: bool) -> bool:
        """Adds query, key and value matrices of ``size²``, scores and contexts; returns whether the result is live."""
        ...


class CountUnits(Protocol):
    """Counts what it takes to compute an adapter's inner activations over ``n`` tokens."""

    def __call__(
        self,
        counter: MacCounter,
        config: Any,
        hidden_size: int,
        n: int,
        *,
        trained: bool,
        live: bool,
        first_token: bool,
    ) -> bool:
        """Returns whether the inner activations are live; ``first_token``: the tokens are the rows' first ones."""
        ...


class CountTop(Protocol):
    """Counts what a module on top of the encoder takes."""

    def __call__(
        self, counter: MacCounter, config: Any, trunk: TrunkConfig, *, trained: bool, live: bool, first_token: bool
    ) -> bool:
        """Returns whether the module's output is live; ``first_token``: only the first tokens' outputs are needed."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotKind:
    """A kind of adapter that sits in slots of the encoder's layers.

    Attributes:
      config: The class of its architecture, in :mod:`afjax.config.adapters`.
      init: Makes its parameters.
      slot: Computes the next hidden state ``[batch, queries, d]``.
      attends: Whether an output depends on other tokens than its own.
      family: Adapters of one family can be fused with each other, if they agree in the fields of ``layout``.
      layout: The fields of the config that all adapters of a fusion share.
      units: Computes the inner activations ``[batch, queries, size]`` that the output is linear in, for the kinds that
        a fusion calls one by one. None if there are none, or if a fusion computes those of all adapters together.
      output: Computes what the adapter adds ``[batch, queries, d]``; None if a fusion never needs it.
      size: The number of inner activations per token, from the config and the hidden size.
      count_units: Counts the multiply-adds of the inner activations.
    """

    config: type
    init: Init
    slot: InSlot
    attends: bool = False
    family: str
    layout: tuple[str, ...] = ()
    units: InSlot | None = None
    output: InSlot | None = None
    size: "Size"
    count_units: CountUnits


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopKind:
    """A kind of module on top of the encoder.

    Attributes:
      config: The class of its architecture, in :mod:`afjax.config.adapters`.
      init: Makes its parameters.
      top: Computes the hidden states that heads read.
      attends: Whether an output depends on other tokens than its own.
      count: Counts its multiply-adds.
    """

    config: type
    init: Init
    top: OnEncoder
    attends: bool
    count: CountTop


class Size(Protocol):
    """The number of inner activations per token."""

    def __call__(self, config: Any, hidden_size: int) -> int:
        """Returns the number."""
        ...


AdapterKind = SlotKind | TopKind


def normal_dense(key: Array, scale: float, shape: tuple[int, ...]) -> Tree:
    """A dense layer at the start: kernel ~ N(0, scale), bias 0.

    Args:
      key: The key of the kernel.
      scale: The standard deviation.
      shape: The kernel's shape ``[..., inputs, outputs]``.
    """
    kernel = scale * jax.random.normal(key, shape)
    return {"kernel": kernel, "bias": jnp.zeros((*shape[:-2], shape[-1]))}
