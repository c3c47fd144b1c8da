"""Linen modules: embeddings, and the blocks of post-LayerNorm layers."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from afjax.distributed.sharding import replicate, shard_rows
from afjax.nn.attention import attend_to_tokens, attend_tokens, first_token_attention, relative_bias
from afjax.nn.disentangled_attention import NUM_TERMS, PositionProjections
from afjax.nn.layers import ACTIVATIONS, Dense, LayerNorm, dense, dropout, split_key
from afjax.trees import AnyArray, Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import EMPTY_LAYER, LayerSlots, Sublayer

# The name of the attention bias's table in the embeddings' parameters.
RELATIVE_POSITION = "relative_position"
# The name of the parameters of :class:`RelativeEmbeddings` in the embeddings' parameters.
RELATIVE = "relative"


class LayerKeys(NamedTuple):
    """The dropout keys of one layer, or of all layers stacked. None means no dropout.

    Attributes:
      weights: Key for the attention weights, and for the embeddings of relative positions.
      attention, ffn: Keys for the outputs of the two sub-layers.
      slots: Key for the modules in the slots.
    """

    weights: Array | None = None
    attention: Array | None = None
    ffn: Array | None = None
    slots: Array | None = None


NO_DROPOUT = LayerKeys()


def layer_keys(key: PRNGKeyArray | None, slots_key: PRNGKeyArray | None = None) -> LayerKeys:
    """Splits one layer's dropout key into the keys of its parts.

    Args:
      key: The key for the layer's own dropout, which must differ between layers. None disables this dropout.
      slots_key: The key for the modules in the layer's slots, which is not split. None disables their dropout.
    """
    attention_key, ffn_key = split_key(key, 2)
    weights_key, output_key = split_key(attention_key, 2)
    return LayerKeys(weights_key, output_key, ffn_key, slots_key)


class Embeddings(nn.Module):
    """Computes the first layer's input from tokens.

    The module adds the word, position and type embeddings that the family has. It then applies LayerNorm, dropout and,
    if needed, a projection to the hidden size. The module's parameters also include the table of the attention bias or
    of relative positions, if the family has one. :func:`attention_bias` and :func:`relative_embeddings` read these
    tables.
    """

    config: TrunkConfig
    dtype: str | None = None

    @nn.compact
    def __call__(
        self, tokens: Int[AnyArray, "batch length"], types: Int[AnyArray, "batch length"], *, key: PRNGKeyArray | None
    ) -> Float[Array, "batch length hidden"]:
        config, init = self.config, nn.initializers.normal(self.config.init_scale)
        family = config.encoder_family
        word = self.param("word", init, (config.vocab_size, config.input_size))
        dtype = word.dtype if self.dtype is None else self.dtype
        # Each part is [batch, length, input_size]. Traced tokens cannot index the parameters if these are NumPy arrays.
        parts: list[Any] = [jnp.asarray(replicate(word))[tokens]]
        if family.position_embeddings is not None:
            position = self.param("position", init, (config.max_positions, config.input_size))
            parts.append(family.position_embeddings(jnp.asarray(replicate(position)), tokens, config.pad_id))
        if config.type_vocab_size:
            type_ = self.param("type", init, (config.type_vocab_size, config.input_size))
            # Some tokenizers give the second text of a pair type 1, although the encoder has only one type.
            types = types if config.type_vocab_size > 1 else jnp.zeros_like(types)
            parts.append(jnp.asarray(replicate(type_))[types])
        if family.relative_bias is not None:
            self.param(RELATIVE_POSITION, init, (family.relative_bias.num_entries, config.num_heads))
        if config.relative_buckets is not None and self.is_initializing():
            RelativeEmbeddings(config, name=RELATIVE)(tokens.shape[-1])
        x = shard_rows(jnp.asarray(functools.reduce(jnp.add, (part.astype(dtype) for part in parts))))
        if key is not None:
            # Only training has a key. Inference has no layout constraint, because exported programs cannot contain one.
            x = jax.lax.platform_dependent(x, tpu=_in_row_layout, default=lambda x: x)
        x = LayerNorm(config.layer_norm_epsilon, config.norm_bias, name="norm")(x)
        rate = config.hidden_dropout if config.embedding_dropout is None else config.embedding_dropout
        x = dropout(key, x, rate)
        if config.projects_embeddings:
            x = Dense(config.hidden_size, config.init_scale, name="projection")(x)
        return x


def _in_row_layout(x: Float[Array, "batch length hidden"]) -> Float[Array, "batch length hidden"]:
    """Keeps the layout of the layers, because the TPU compiler would choose a different one and insert copies.

    On the CPU, a program with such a constraint can return wrong values for transposed outputs (JAX 0.10.2), so
    ``jax.grad`` of a compiled function would be wrong.
    """
    return with_layout_constraint(x, Layout(major_to_minor=(0, 1, 2)))


class RelativeEmbeddings(nn.Module):
    """The table of relative positions for disentangled attention, and its LayerNorm."""

    config: TrunkConfig

    @nn.compact
    def __call__(self, length: int) -> Float[Array, "entries hidden"]:
        config, buckets = self.config, self.config.relative_buckets
        assert buckets is not None, "the family has disentangled attention"
        init = nn.initializers.normal(config.init_scale)
        table = self.param("position", init, (buckets.num_entries, config.hidden_size))
        used = jnp.asarray(replicate(table))[buckets.used(length)]
        return LayerNorm(config.layer_norm_epsilon, name="norm")(used)


def relative_embeddings(
    trunk: Tree, config: TrunkConfig, length: int, dtype: Any
) -> Float[Array, "entries hidden"] | None:
    """Computes the embeddings of relative positions, which all layers share.

    Args:
      trunk: The trunk's tree.
      config: The trunk's architecture.
      length: Number of tokens per row.
      dtype: The dtype of the activations.

    Returns:
      ``[entries, hidden_size]``, with the rows ``config.relative_buckets.used(length)`` of the table. None if the
      family has no disentangled attention.
    """
    if config.relative_buckets is None:
        return None
    params = trunk["embeddings"][RELATIVE]
    # Like all other tables, this one is cast before it is used. Otherwise, a trained trunk would compute other values
    # than a trunk whose weights are stored in this dtype.
    params = {**params, "position": params["position"].astype(dtype)}
    embeddings: Any = RelativeEmbeddings(config).apply({"params": params}, length)
    return embeddings.astype(dtype)


def attention_bias(trunk: Tree, config: TrunkConfig, length: int) -> Float[Array, "num_heads length length"] | None:
    """Computes the bias of the attention scores, which all layers share.

    Args:
      trunk: The trunk's tree.
      config: The trunk's architecture.
      length: Number of tokens per row.

    Returns:
      ``[num_heads, length (queries), length (keys)]``, float32 or wider. None if the family has no attention bias.
    """
    family_bias = config.encoder_family.relative_bias
    if family_bias is None:
        return None
    return relative_bias(replicate(trunk["embeddings"][RELATIVE_POSITION]), family_bias.entry, length)


class AttentionBlock(nn.Module):
    """Multi-head self-attention with its output projection, followed by a slot."""

    config: TrunkConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length hidden"],
        mask: Bool[AnyArray, "batch length"],
        *,
        slots: LayerSlots = EMPTY_LAYER,
        dropout_keys: LayerKeys = NO_DROPOUT,
        first_token_only: bool = False,
        bias: Float[Array, "num_heads length length"] | None = None,
        relative: Float[Array, "entries hidden"] | None = None,
    ) -> tuple[Float[Array, "batch queries hidden"], Float[Array, "batch queries num_adapters"] | None]:
        config = self.config

        names = ("query", "key", "value", "output")
        layers = {name: Dense(config.hidden_size, config.init_scale, name=name) for name in names}

        def dense_layer(name: str, inputs: Array) -> Array:
            outputs: Array = layers[name](inputs, slots.dense_layer(f"attention/{name}").apply)
            return outputs

        def dense_layer_of_positions(name: str, inputs: Array) -> Array:
            slot = slots.dense_layer(f"attention/{name}")
            outputs: Array = layers[name](inputs, slot.apply_to_positions or slot.apply)
            return outputs

        weights_key, head_size = dropout_keys.weights, config.head_size
        if relative is not None and config.relative_buckets is not None:
            weights_key, relative_key = split_key(weights_key, 2)
            relative = dropout(relative_key, relative, config.hidden_dropout)
            if first_token_only:
                relative = relative[config.relative_buckets.used_by_first_token(x.shape[1])]
            # [1, entries, hidden_size]. If each row of the batch has its own adapter, the query and key layers
            # broadcast the leading axis to the batch size.
            relative = relative[None]
            head_size *= NUM_TERMS
        attend = functools.partial(
            attend_to_tokens, mask=mask, head_size=head_size, dropout_rate=config.attention_dropout, key=weights_key
        )
        queries = x[:, :1] if first_token_only else x
        if bias is not None and first_token_only:
            bias = bias[:, :1]
        merge = {name: slots.dense_layer(f"attention/{name}").merge for name in ("query", "key", "value")}
        if first_token_only and None not in merge.values():
            params = self.variables["params"]
            merged = {name: merge_layer(params[name]) for name, merge_layer in merge.items() if merge_layer}
            # first_token_attention treats the heads as the queries of a single head.
            attend = functools.partial(attend, bias=None if bias is None else bias.transpose(1, 0, 2))
            projections = self._project(relative, lambda name, inputs: dense(merged[name], inputs))
            extra_scores = None
            if projections is not None:
                extra_scores = functools.partial(projections.first_token_scores_without_keys, merged["key"], x)
            context = first_token_attention(merged, x, config.num_heads, attend, extra_scores)
        else:
            query, keys, values = dense_layer("query", queries), dense_layer("key", x), dense_layer("value", x)
            projections = self._project(relative, dense_layer_of_positions)
            pair_scores = None
            if projections is not None:
                pair_scores = projections.first_token_scores if first_token_only else projections.scores
            attend = functools.partial(attend, bias=bias)
            context = attend_tokens(query, keys, values, config.num_heads, attend, pair_scores)
        output = dense_layer("output", context)
        if config.encoder_family.attention_output_dropout:
            output = dropout(dropout_keys.attention, output, config.hidden_dropout)
        norm = LayerNorm(config.layer_norm_epsilon, name="norm")
        sublayer = Sublayer(
            output=output,
            residual=queries,
            norm=norm,
            layer_input=x,
            mask=mask,
            attention_dropout=config.attention_dropout,
        )
        return slots.sublayer("attention")(sublayer)

    def _project(
        self, relative: Array | None, dense_layer: Callable[[str, Array], Array]
    ) -> PositionProjections | None:
        """Projects the relative positions with the query and key layers.

        Args:
          relative: The embeddings of relative positions, ``[1, entries, hidden_size]``. If None, returns None.
          dense_layer: Applies the dense layer with the given name, ``query`` or ``key``.
        """
        buckets = self.config.relative_buckets
        if relative is None or buckets is None:
            return None
        query, key = dense_layer("query", relative), dense_layer("key", relative)
        return PositionProjections(query=query, key=key, buckets=buckets)


class FeedForwardBlock(nn.Module):
    """Position-wise feed-forward network, followed by a slot.

    The argument ``sublayer`` makes the slot's inputs from the block's output, residual and LayerNorm.
    """

    config: TrunkConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch queries hidden"],
        *,
        slots: LayerSlots,
        sublayer: Callable[..., Sublayer],
        key: PRNGKeyArray | None,
    ) -> tuple[Float[Array, "batch queries hidden"], Float[Array, "batch queries num_adapters"] | None]:
        config = self.config
        intermediate = Dense(config.intermediate_size, config.init_scale, name="intermediate")
        inner = ACTIVATIONS[config.activation](intermediate(x, slots.dense_layer("ffn/intermediate").apply))
        output = Dense(x.shape[-1], config.init_scale, name="output")(inner, slots.dense_layer("ffn/output").apply)
        output = dropout(key, output, config.hidden_dropout)
        norm = LayerNorm(config.layer_norm_epsilon, name="norm")
        return slots.sublayer("ffn")(sublayer(output=output, residual=x, norm=norm))
