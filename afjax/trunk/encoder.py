"""BERT and RoBERTa encoders as Flax modules with explicit slots for adapters.

The trunk's tree, with the layers' leaves stacked on a leading axis of ``num_layers``::

    embeddings/{word, position, type}       [entries, hidden_size]
    embeddings/norm/{scale, bias}
    layers/attention/{query, key, value, output}/{kernel, bias}
    layers/attention/norm/{scale, bias}
    layers/ffn/{intermediate, output}/{kernel, bias}
    layers/ffn/norm/{scale, bias}
    pooler/{kernel, bias}                   where the checkpoint has one
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint

from afjax.config.values import Remat
from afjax.distributed.sharding import gathered, split_rows
from afjax.errors import UserError
from afjax.nn.attention import attend_to_tokens, attend_tokens, first_token_attention
from afjax.nn.layer_loop import loop_over_layers
from afjax.nn.layers import ACTIVATIONS, KEPT, Dense, LayerNorm, dropout, split_key
from afjax.trees import Tree, map_with_path, named_key
from afjax.trunk.layers import each_layer, layer_runs, num_stacked, unstack


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sublayer:
    """What a slot is given: where it stands in the encoder, and what has been computed there.

    ``queries`` below is the number of tokens that are computed, all of them or the first alone.

    Attributes:
      output: The sub-layer's output after dropout, ``[batch, queries, hidden_size]``.
      residual: The sub-layer's input, same shape.
      norm: The sub-layer's LayerNorm.
      layer_input: The layer's input, of all tokens, ``[batch, length, hidden_size]``.
      mask: bool ``[batch, length]``, False at padding.
    """

    output: Array
    residual: Array
    norm: Callable[[Array], Array]
    layer_input: Array
    mask: Array


# What stands between a sub-layer and the next: it gives the next hidden state [batch, queries, hidden_size], and the
# attention over adapters [batch, queries, num_adapters] where there is one.
Slot = Callable[[Sublayer], tuple[Array, Array | None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrunkConfig:
    """The architecture of a trunk; field by field what its Hugging Face ``config.json`` says."""

    family: Literal["bert", "roberta"]
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    type_vocab_size: int
    layer_norm_epsilon: float = 1e-12
    activation: str = "gelu"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    pad_id: int = 0
    init_scale: float = 0.02

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def max_length(self) -> int:
        """The longest row the position embeddings hold. RoBERTa's begin behind the padding index."""
        return self.max_positions - (self.pad_id + 1 if self.family == "roberta" else 0)


class LayerKeys(NamedTuple):
    """Dropout's keys of one layer, or of all layers, stacked; None: no dropout.

    Attributes:
      weights: Of the attention's weights.
      attention, ffn: Of the sub-layers' outputs.
      slots: Of what the slots hold.
    """

    weights: Array | None = None
    attention: Array | None = None
    ffn: Array | None = None
    slots: Array | None = None


NO_DROPOUT = LayerKeys()


def layer_keys(key: Array | None, slots_key: Array | None = None) -> LayerKeys:
    """The keys of one layer's own dropout, from one."""
    attention_key, ffn_key = split_key(key, 2)
    weights_key, output_key = split_key(attention_key, 2)
    return LayerKeys(weights_key, output_key, ffn_key, slots_key)


def plain_slot(sublayer: Sublayer) -> tuple[Array, None]:
    """An empty slot: the pretrained encoder's own ``LayerNorm(residual + output)``."""
    return sublayer.norm(sublayer.residual + sublayer.output), None


class Embeddings(nn.Module):
    """Sum of word, position and type embeddings, LayerNorm, dropout."""

    config: TrunkConfig
    dtype: str | None = None

    @nn.compact
    def __call__(self, tokens: Array, types: Array, mask: Array, *, key: Array | None) -> Array:
        config, init = self.config, nn.initializers.normal(self.config.init_scale)
        word = self.param("word", init, (config.vocab_size, config.hidden_size))
        position = self.param("position", init, (config.max_positions, config.hidden_size))
        type_ = self.param("type", init, (config.type_vocab_size, config.hidden_size))
        if config.family == "roberta":
            # Positions count the tokens that are not padding, from pad_id + 1 on.
            present = (tokens != config.pad_id).astype(jnp.int32)
            positions = gathered(position)[jnp.cumsum(present, axis=-1) * present + config.pad_id]
        else:
            # Not looked up, as the gradient of a lookup is a scatter: a kernel more to run, and to compile.
            positions = jnp.broadcast_to(
                gathered(position)[None, : tokens.shape[-1]], (*tokens.shape, config.hidden_size)
            )
        dtype = word.dtype if self.dtype is None else self.dtype
        parts = (gathered(word)[tokens], positions, gathered(type_)[types])  # each [batch, length, hidden_size]
        x = split_rows(functools.reduce(jnp.add, (part.astype(dtype) for part in parts)))
        if key is not None:
            # In the order of the layers' arrays: the TPU's compiler has one of its own, and copies. In training alone,
            # as a model's exported file can hold no such constraint.
            x = with_layout_constraint(x, Layout(major_to_minor=(0, 1, 2)))
        x = LayerNorm(config.layer_norm_epsilon, name="norm")(x)
        return dropout(key, x, config.hidden_dropout)


class AttentionBlock(nn.Module):
    """Multi-head self-attention, its output projection, and the slot behind it."""

    config: TrunkConfig

    @nn.compact
    def __call__(
        self, x: Array, mask: Array, *, slot: Slot, dropout_keys: LayerKeys = NO_DROPOUT, first_token_only: bool = False
    ) -> tuple[Array, Array | None]:
        config = self.config
        attend = functools.partial(
            attend_to_tokens,
            mask=mask,
            head_size=config.head_size,
            dropout_rate=config.attention_dropout,
            key=dropout_keys.weights,
        )
        queries = x
        if first_token_only:
            queries = x[:, :1]
            context = first_token_attention(self.variables["params"], x, config.num_heads, attend)
        else:
            query, keys, values = (
                Dense(config.hidden_size, config.init_scale, name=name)(x) for name in ("query", "key", "value")
            )
            context = attend_tokens(query, keys, values, config.num_heads, attend)
        output = Dense(config.hidden_size, config.init_scale, name="output")(context)
        output = dropout(dropout_keys.attention, output, config.hidden_dropout)
        norm = LayerNorm(config.layer_norm_epsilon, name="norm")
        return slot(Sublayer(output=output, residual=queries, norm=norm, layer_input=x, mask=mask))


class FeedForwardBlock(nn.Module):
    """The position-wise feed-forward network and the slot behind it."""

    config: TrunkConfig

    @nn.compact
    def __call__(
        self, x: Array, mask: Array, *, slot: Slot, layer_input: Array, key: Array | None
    ) -> tuple[Array, Array | None]:
        config = self.config
        inner = Dense(config.intermediate_size, config.init_scale, name="intermediate")(x)
        inner = ACTIVATIONS[config.activation](inner)
        output = Dense(x.shape[-1], config.init_scale, name="output")(inner)
        output = dropout(key, output, config.hidden_dropout)
        norm = LayerNorm(config.layer_norm_epsilon, name="norm")
        return slot(Sublayer(output=output, residual=x, norm=norm, layer_input=layer_input, mask=mask))


class EncoderLayer(nn.Module):
    """One post-LayerNorm Transformer layer with its two slots."""

    config: TrunkConfig

    @nn.compact
    def __call__(
        self,
        x: Array,
        mask: Array,
        *,
        slots: Mapping[str, Slot],
        dropout_keys: LayerKeys = NO_DROPOUT,
        first_token_only: bool = False,
    ) -> tuple[Array, dict[str, Array]]:
        """Returns the next hidden state and ``{slot: attention over adapters}`` of the slots that have one.

        Both of every token, or of the first alone.
        """
        attention_slot, ffn_slot = (slots.get(name, plain_slot) for name in ("attention", "ffn"))
        between, first = AttentionBlock(self.config, name="attention")(
            x, mask, slot=attention_slot, dropout_keys=dropout_keys, first_token_only=first_token_only
        )
        output, second = FeedForwardBlock(self.config, name="ffn")(
            between, mask, slot=ffn_slot, layer_input=x, key=dropout_keys.ffn
        )
        maps = {"attention": first, "ffn": second}
        return output, {name: attention for name, attention in maps.items() if attention is not None}


def init_trunk(key: Array, config: TrunkConfig, *, stacked: bool = True) -> Tree:
    """A trunk with random weights, for benchmarks and tests. Kernels ~ N(0, init_scale), biases 0.

    Layers are stacked, or as :func:`unstack_layers` gives them.
    """
    tokens = jnp.zeros((1, 2), jnp.int32)
    mask = jnp.ones((1, 2), bool)
    embeddings = Embeddings(config).init(named_key(key, "embeddings"), tokens, tokens, mask, key=None)

    @jax.jit
    def init_layer(layer_key: Array) -> Tree:
        x = jnp.zeros((1, 2, config.hidden_size))
        return EncoderLayer(config).init(layer_key, x, mask, slots={})["params"]

    keys = jax.random.split(named_key(key, "layers"), config.num_layers)
    layers = jax.vmap(init_layer)(keys) if stacked else {str(index): init_layer(k) for index, k in enumerate(keys)}
    kernel = jax.random.normal(named_key(key, "pooler"), (config.hidden_size, config.hidden_size)) * config.init_scale
    pooler = {"kernel": kernel, "bias": jnp.zeros(config.hidden_size)}
    return {"embeddings": embeddings["params"], "layers": layers, "pooler": pooler}


def cast_trunk(trunk: Tree, dtype: str) -> Tree:
    """The trunk with weights of another dtype (``float32``, ``bfloat16``), which is then that of its activations.

    LayerNorms and the pooler, whose arithmetic is in float32 anyhow, keep theirs.
    """

    def cast(path: str, leaf: Any) -> Any:
        kept = "norm/" in path or path.startswith("pooler/")
        return leaf if kept else leaf.astype(jnp.dtype(dtype), copy=False)

    return map_with_path(cast, trunk)


# From what the slots of one layer hold, what those of all layers share, and a dropout key.
SlotMaker = Callable[[Any, Any, Array | None], Mapping[str, Slot]]


def no_slots(contents: Any, shared: Any, key: Array | None) -> Mapping[str, Slot]:
    """The :data:`SlotMaker` of the plain encoder."""
    return {}


def embed(
    trunk: Tree,
    config: TrunkConfig,
    tokens: Array,
    types: Array,
    mask: Array,
    *,
    key: Array | None = None,
    dtype: str | None = None,
) -> Array:
    """What the first layer is given, ``[batch, length, hidden_size]``; arguments and errors as of :func:`encode`."""
    if tokens.shape[-1] > config.max_length:
        raise UserError(
            f"The rows have {tokens.shape[-1]} tokens, and the trunk positions for {config.max_length}; cut the rows."
        )
    embedded: Any = Embeddings(config, dtype).apply({"params": trunk["embeddings"]}, tokens, types, mask, key=key)
    return embedded


def encode(
    trunk: Tree,
    config: TrunkConfig,
    tokens: Array,
    types: Array,
    mask: Array,
    *,
    contents: Tree | None = None,
    layers: Sequence[int] = (),
    shared: Any = None,
    make_slots: SlotMaker = no_slots,
    key: Array | None = None,
    dtype: str | None = None,
    scan: bool = False,
    remat: Remat = "none",
    first_token_only: bool = False,
) -> tuple[Array, dict[str, Array]]:
    """Runs the encoder.

    Args:
      trunk: The trunk's tree. The upper layers may stand apart under ``top_layers``: a gradient towards them alone
        then stops where they begin.
      config: Its architecture.
      tokens, types: int32 ``[batch, length]``.
      mask: bool ``[batch, length]``, False at padding.
      contents: What the slots hold: a tree whose leaves are stacked over ``layers``; or, for straight-line code, one as
        :func:`unstack_layers` gives.
      layers: Indices of the layers whose slots hold something, rising.
      shared: What the slots of all layers share: a tree.
      make_slots: From one layer's contents, what is shared, and a dropout key, the layer's slots. It must not close
        over arrays.
      key: Dropout's key; None: no dropout.
      dtype: Of the activations; None: that of the word embeddings.
      scan: One compiled loop over the layers in place of straight-line code.
      remat: What the backward pass computes again.
      first_token_only: The last hidden state is wanted of the first token alone, and no more is computed in the last
        layer (which then stands behind the loop); there is no attention over adapters to return.

    Returns:
      The last hidden state ``[batch, length, hidden_size]`` (length 1 for the first token only), and for every slot
      with attention over adapters that attention, ``[len(layers), batch, length, num_adapters]``.

    Raises:
      UserError: Rows longer than the trunk has positions for.
    """
    embeddings_key, layers_key = split_key(key, 2)
    # Split for all layers at once: the looped and the last layer's code would each hold the generator.
    keys = NO_DROPOUT if layers_key is None else _keys_of_layers(jax.random.split(layers_key, config.num_layers))
    x = embed(trunk, config, tokens, types, mask, key=embeddings_key, dtype=dtype)

    def run_layer(
        x: Array,
        of_one: tuple[Tree, Tree, LayerKeys],
        of_all: tuple[Array, Any],
        *,
        filled: bool,
        first_token_only: bool = False,
    ) -> tuple[Array, dict[str, Array]]:
        (params, held, keys_of_layer), (mask, shared) = of_one, of_all
        slots = make_slots(held, shared, keys_of_layer.slots) if filled else {}
        output: Any = EncoderLayer(config).apply(
            {"params": params}, x, mask, slots=slots, dropout_keys=keys_of_layer, first_token_only=first_token_only
        )
        return split_rows(output[0]), output[1]

    maps: list[dict[str, Array]] = []
    first = used = 0
    for run in layer_runs(trunk):
        depth = num_stacked(run)
        scanned = scan and depth > 1
        by_layer = [] if scanned else each_layer(run)
        for begin, end, filled in _segments(first, first + depth, layers):
            length = end - begin
            run_filled = rematerialized(functools.partial(run_layer, filled=filled), remat, looped=scanned)
            if scanned:
                params = _take(run, begin - first, end - first)
                held = _take(contents, used, used + length) if filled else {}
                x, stacked = loop_over_layers(run_filled, x, (params, held, _take(keys, begin, end)), (mask, shared))
                maps.append(stacked)
            else:
                held_by_layer = _held_by_layer(contents or {}, used, used + length) if filled else [{}] * length
                for index in range(begin, end):
                    keys_of_layer = jax.tree.map(lambda leaf, i=index: leaf[i], keys)
                    of_one = (by_layer[index - first], held_by_layer[index - begin], keys_of_layer)
                    if first_token_only and index == config.num_layers - 1:
                        run_filled = rematerialized(
                            functools.partial(run_layer, filled=filled, first_token_only=True), remat, looped=False
                        )
                    x, attention = run_filled(x, of_one, (mask, shared))
                    maps.append({name: of_slot[None] for name, of_slot in attention.items()})
            used += length if filled else 0
        first += depth
    if first_token_only:
        return x[:, :1], {}
    filled_maps = [entry for entry in maps if entry]
    names = filled_maps[0] if filled_maps else {}
    return x, {name: jnp.concatenate([entry[name] for entry in filled_maps]) for name in names}


def _keys_of_layers(keys: Array) -> LayerKeys:
    """Every layer's keys, from one key a layer."""

    def of_one(key: Array) -> LayerKeys:
        trunk_key, slots_key = split_key(key, 2)
        return layer_keys(trunk_key, slots_key)

    return jax.vmap(of_one)(keys)


def rematerialized(run_layer: Any, remat: Remat, *, looped: bool) -> Any:
    """The same function of a layer, parts of which the backward pass computes again."""
    if remat == "none":
        return run_layer
    policies = jax.checkpoint_policies
    policy = policies.save_only_these_names(KEPT) if remat == "matmuls" else policies.nothing_saveable
    # A loop keeps the forward pass apart; in straight-line code the compiler would undo it.
    return jax.checkpoint(run_layer, policy=policy, prevent_cse=not looped)


def _segments(first: int, last: int, layers: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Cuts ``range(first, last)`` into ``(begin, end, whether the slots hold something)`` where that changes."""
    filled = set(layers)
    cuts = [i for i in range(first, last) if i == first or (i in filled) != (i - 1 in filled)] + [last]
    return [(begin, end, begin in filled) for begin, end in itertools.pairwise(cuts)]


def _held_by_layer(contents: Tree, begin: int, end: int) -> list[Tree]:
    """What the slots of the layers at these positions hold, of contents that are stacked or each layer's apart."""
    if "0" in contents:
        return [contents[str(position)] for position in range(begin, end)]
    return unstack(_take(contents, begin, end), end - begin)


def _take(tree: Any, begin: int, end: int) -> Any:
    """Leaves ``[begin:end]``; the leaves themselves where that is all of them."""
    return jax.tree.map(lambda leaf: leaf if (begin, end) == (0, leaf.shape[0]) else leaf[begin:end], tree)
