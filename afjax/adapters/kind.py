"""The interface that each kind of adapter implements.

Each module in this package that has a ``KIND`` defines one kind.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, Self

from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.config.adapters import DenseLayer
from afjax.nn.layers import normal_dense
from afjax.trees import AnyArray, Tree, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer


class Init(Protocol):
    """Initializes an adapter's parameters."""

    def __call__(self, key: PRNGKeyArray, config: Any, trunk: TrunkConfig, depth: int) -> Tree:
        """Returns the initial parameters as a float32 tree.

        Args:
          key: The adapter's key. Each leaf's key is derived from this key and the leaf's path.
          config: The architecture.
          trunk: The trunk's architecture.
          depth: The number of adapted layers. It is the size of the leading axis of leaves in slots.
        """
        ...


class InSlot(Protocol):
    """Runs an adapter in the slot after a sub-layer, in one layer."""

    def __call__(
        self, params: Tree, config: Any, sublayer: Sublayer, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch queries size"]:
        """Returns the next hidden state, the adapter's output or its inner activations.

        :class:`SlotKind` has one function for each of these results: ``slot``, ``output`` and ``units``.

        Args:
          params: One layer's parameters, including the leaves that all layers share.
          config: The architecture.
          sublayer: The slot's inputs.
          key: The dropout key, or None for no dropout.
        """
        ...


class OnEncoder(Protocol):
    """Runs a module on top of the encoder."""

    def __call__(
        self,
        params: Tree,
        config: Any,
        trunk: TrunkConfig,
        hidden: Float[Array, "batch tokens hidden"],
        mask: Bool[AnyArray, "batch length"],
        *,
        key: PRNGKeyArray | None,
        first_token_only: bool = True,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the hidden states that heads use.

        Their shape is ``[batch, length, d]``, or ``[batch, 1, d]`` for the first token only.

        Args:
          params: The tree under ``top``.
          config: The architecture.
          trunk: The trunk's architecture, which sets dropout rates, LayerNorm epsilon and activation.
          hidden: The last hidden states of all tokens. If the module does not attend and only the first token's output
            is needed, the first token's hidden state suffices.
          mask: bool ``[batch, length]``, False at padding.
          key: The dropout key, or None for no dropout.
          first_token_only: Whether only the first token's output is needed.
        """
        ...


class MacCounter(Protocol):
    """Counts the multiply-adds of matrix products.

    A value is live if it depends on a trained parameter. In the methods and protocols below, ``trained`` means that the
    module's parameters are trained, and ``live`` that its input is live.

    Attributes:
      rows: Rows per batch.
      length: Tokens per row.
    """

    rows: int
    length: int

    def dense(self, n: int, inputs: int, outputs: int, *, trained: bool, live: bool) -> bool:
        """Counts a dense layer over ``n`` tokens, and returns whether its output is live."""
        ...

    def attention(self, size: int, num_heads: int, trained: bool, live: bool, *, first_token: bool) -> bool:
        """Counts an attention block without its output projection.

        The count includes query, key and value projections of ``size²``, the scores, and the weighted sums of the
        values. Returns whether the output is live.
        """
        ...

    def fresh(self) -> Self:
        """Returns a copy of this counter with its count reset to 0."""
        ...

    def add_cheapest(self, *ways: Self) -> None:
        """Counts the cheapest of several ways to compute a result.

        Each way is counted separately with :meth:`fresh`.
        """
        ...

    def rotary_attention(self, size: int, num_heads: int, trained: bool, live: bool, *, first_token: bool) -> bool:
        """Counts a rotary attention block without its output projection.

        Returns whether the output is live.
        """
        ...


class CountUnits(Protocol):
    """Counts the multiply-adds of an adapter's inner activations over ``n`` tokens."""

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
        """Returns whether the inner activations are live.

        With ``first_token``, the ``n`` tokens are the first tokens of the rows.
        """
        ...


def chain_counter(sizes: Callable[[Any, int], Sequence[int]]) -> CountUnits:
    """Builds the function that counts a chain of dense layers.

    Args:
      sizes: Computes the sizes of all values in the chain, from the input to the inner activations. Its arguments are
        the adapter's config and the hidden size.
    """

    def count_units(
        counter: MacCounter, config: Any, hidden_size: int, n: int, *, trained: bool, live: bool, first_token: bool
    ) -> bool:
        for inputs, outputs in itertools.pairwise(sizes(config, hidden_size)):
            live = counter.dense(n, inputs, outputs, trained=trained, live=live)
        return live

    return count_units


class CountTop(Protocol):
    """Counts the multiply-adds of a module on top of the encoder."""

    def __call__(
        self, counter: MacCounter, config: Any, trunk: TrunkConfig, *, trained: bool, live: bool, first_token: bool
    ) -> bool:
        """Returns whether the output is live.

        With ``first_token``, only the output for each row's first token is needed.
        """
        ...


class WeightedSum(Protocol):
    """Combines several adapters into one.

    In each layer, the new adapter changes the output by the weighted sum of the original adapters' changes.
    """

    def __call__(self, configs: Sequence[Any], trees: Sequence[Tree], weights: Sequence[float]) -> tuple[Any, Tree]:
        """Returns the new adapter's architecture and tree.

        Args:
          configs: The adapters' architectures.
          trees: The adapters' trees, with NumPy leaves.
          weights: One finite number per adapter.

        Raises:
          UserError: No adapter of this kind can compute the sum.
        """
        ...


# Computes the number of inner activations per token from an adapter's config and the trunk's hidden size.
Size = Callable[[Any, int], int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Widening:
    """Widens an adapter: adds inner activations without changing its outputs.

    Adapters of different sizes can then be stacked in the same arrays.

    Attributes:
      size: Computes the number of inner activations per token from the config and the hidden size.
      config: Returns the architecture for a given number of inner activations. Settings that do not affect the outputs,
        such as the initial scale, are reset to their defaults.
      tree: Returns the widened tree for the adapter's config and tree and the new number of inner activations. The
        added parameters are zero.
    """

    size: Size
    config: Callable[[Any, int], Any]
    tree: Callable[[Any, Tree, int], Tree]


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlotKind:
    """A kind of adapter that fills slots in the encoder's layers.

    Attributes:
      config: The config class, from :mod:`afjax.config.adapters`.
      init: Initializes the parameters.
      slot: Computes the next hidden state ``[batch, queries, d]``.
      attends: Whether a token's output depends on other tokens.
      family: Name of a group of kinds. Adapters from the same family can be fused if they agree on the fields in
        ``layout``.
      layout: The config fields that must be equal for all adapters of a fusion.
      units: Computes the inner activations ``[batch, queries, size]`` for a factored fusion, if the output is linear in
        them. None if the kind has no inner activations, or if a fusion computes the inner activations of all adapters
        in one matmul.
      output: Computes the adapter's output ``[batch, queries, d]`` before it is added to the layer's output. None if a
        fusion never needs it.
      size: Computes the number of inner activations per token from the config and the hidden size.
      count_units: Counts the multiply-adds of the inner activations.
      weighted_sum: Combines several adapters. None if no adapter of this kind can compute their sum.
      widening: Widens an adapter. None if this would change the outputs.
    """

    config: type
    init: Init
    slot: InSlot
    attends: bool = False
    family: str
    layout: tuple[str, ...] = ()
    units: InSlot | None = None
    output: InSlot | None = None
    size: Size
    count_units: CountUnits
    weighted_sum: WeightedSum | None = None
    widening: Widening | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TopKind:
    """A kind of module on top of the encoder.

    Attributes:
      config: The config class, from :mod:`afjax.config.adapters`.
      init: Initializes the parameters.
      top: Computes the hidden states that heads use.
      attends: Whether a token's output depends on other tokens.
      count: Counts the multiply-adds.
      weighted_sum: Always None, because one module cannot compute the sum of several.
      widening: Always None, because the modules have LayerNorms over their inner activations.
    """

    config: type
    init: Init
    top: OnEncoder
    attends: bool
    count: CountTop
    weighted_sum: None = None
    widening: None = None


class InDense(Protocol):
    """Applies a dense layer with its adapter, in one encoder layer."""

    def __call__(
        self,
        params: Tree,
        config: Any,
        name: DenseLayer,
        layer: Tree,
        x: Float[Array, "*batch inputs"],
        *,
        key: PRNGKeyArray | None = None,
    ) -> Float[Array, "*batch outputs"]:
        """Returns the outputs.

        Args:
          params: The adapter's parameters for this dense layer.
          config: The architecture.
          name: The dense layer's name.
          layer: The dense layer's parameters: ``kernel [inputs, outputs]`` and optionally ``bias [outputs]``.
          x: The inputs.
          key: The dropout key, or None for no dropout.
        """
        ...


class MergeDense(Protocol):
    """Merges an adapter into a dense layer."""

    def __call__(self, params: Tree, config: Any, name: DenseLayer, layer: Tree) -> Tree:
        """Returns the parameters of the merged dense layer.

        Without dropout, its outputs match :class:`InDense`, which also describes the arguments. Leaves keep their
        dtype.
        """
        ...


class CountedLayer(NamedTuple):
    """A dense layer whose multiply-adds are counted.

    Attributes:
      name: The dense layer's name.
      n: The number of tokens.
      inputs, outputs: The dense layer's sizes.
      trained: Whether the dense layer itself is trained.
      live: Whether the inputs are live.
    """

    name: DenseLayer
    n: int
    inputs: int
    outputs: int
    trained: bool
    live: bool


class CountDense(Protocol):
    """Counts the multiply-adds of a dense layer with an adapter."""

    def __call__(self, counter: MacCounter, config: Any, layer: CountedLayer, *, trained: bool) -> bool:
        """Returns whether the outputs are live.

        Args:
          counter: The counter to add to.
          config: The architecture.
          layer: The dense layer.
          trained: Whether the adapter is trained.
        """
        ...


class CountMerge(Protocol):
    """Counts the multiply-adds of merging an adapter into a dense layer."""

    def __call__(self, counter: MacCounter, config: Any, inputs: int, outputs: int, *, trained: bool) -> bool:
        """Returns whether the merged parameters are live because of the adapter."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseKind:
    """A kind of adapter in the trunk's dense layers.

    Attributes:
      config: The config class, from :mod:`afjax.config.adapters`.
      init: Initializes the parameters: one tree per adapted dense layer, under the layer's path in the trunk.
      apply: Applies a dense layer with the adapter.
      merge: Merges the adapter into a dense layer.
      count: Counts the multiply-adds of a dense layer with the adapter.
      count_merge: Counts the multiply-adds of ``merge``.
      weighted_sum: Combines several adapters.
      widening: Widens an adapter. None if this would change the outputs.
      attends: Whether a token's output depends on other tokens. Always False, because dense layers act on each token
        separately.
    """

    config: type
    init: Init
    apply: InDense
    merge: MergeDense
    count: CountDense
    count_merge: CountMerge
    weighted_sum: WeightedSum
    widening: Widening | None = None
    attends: Literal[False] = False


AdapterKind = SlotKind | TopKind | DenseKind


def dense_shape(name: DenseLayer, trunk: TrunkConfig) -> tuple[int, int]:
    """Returns the input and output sizes of one of the trunk's dense layers."""
    if name == "intermediate":
        return trunk.hidden_size, trunk.intermediate_outputs
    if name == "output":
        return trunk.intermediate_size, trunk.hidden_size
    return trunk.hidden_size, trunk.hidden_size


def normal_layers(key: PRNGKeyArray, scale: float, shapes: Mapping[str, tuple[int, ...]]) -> Tree:
    """Initializes several dense layers, each with a key derived from its name.

    Args:
      key: The module's key.
      scale: The kernels' standard deviation.
      shapes: ``{name: shape of the kernel}``.
    """
    return {name: normal_dense(named_key(key, name), scale, shape) for name, shape in shapes.items()}


def init_projections(key: PRNGKeyArray, config: Any, hidden_size: int, *depth: int) -> Tree:
    """Initializes a module's projections ``encode`` and ``decode``.

    Args:
      key: The module's key.
      config: The architecture. Its fields ``size`` and ``init_scale`` are used.
      hidden_size: The trunk's hidden size.
      *depth: The number of layers, if the projections are stacked over layers.
    """
    shapes = {"encode": (*depth, hidden_size, config.size), "decode": (*depth, config.size, hidden_size)}
    return normal_layers(key, config.init_scale, shapes)
