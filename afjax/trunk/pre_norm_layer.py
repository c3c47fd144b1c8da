"""Linen modules: the blocks of layers that normalize their sub-layers' inputs.

For an input ``x``, a layer computes::

    h = x + attention(LN1(x))          y = h + ffn(LN2(h))

The first layer has no ``LN1``. Queries and keys have rotary positions. In some layers the attention is local: a token
attends only to nearby tokens. The feed-forward network is gated: ``W2 (g(W x) * V x)``. The kernel ``ffn/intermediate``
has the columns of W, followed by the columns of V.

The slots after the sub-layers have no LayerNorm: an empty slot computes ``residual + output``.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from afjax.nn.attention import attend_to_tokens, attend_tokens, first_token_attention_with_keys
from afjax.nn.layers import Dense, LayerNorm, dropout, gated
from afjax.nn.rotary import rotary_angles, rotate
from afjax.trees import AnyArray
from afjax.trunk.config import TrunkConfig
from afjax.trunk.post_norm_layer import LayerKeys
from afjax.trunk.slots import LayerSlots, Sublayer


class LayerForm(NamedTuple):
    """The properties that differ between the layers of an encoder.

    For a loop over layers, both fields are stacked over the layers.

    Attributes:
      has_attention_norm: bool, whether the layer has ``LN1``. If not, the parameters of ``LN1`` are ignored.
      is_local: bool, whether the attention is local.
    """

    has_attention_norm: AnyArray
    is_local: AnyArray


def layer_forms(config: TrunkConfig) -> LayerForm | None:
    """Returns the forms of all layers, stacked: bool ``[num_layers]``.

    Returns None for families with ``post_norm`` layers, because all their layers have the same form.
    """
    if config.global_every is None:
        return None
    indices = np.arange(config.num_layers)
    return LayerForm(has_attention_norm=indices > 0, is_local=indices % config.global_every != 0)


# The form of a layer with ``LN1`` and global attention.
COMPLETE = LayerForm(has_attention_norm=np.array(True), is_local=np.array(False))


class Positions(NamedTuple):
    """The rotary positions and the window of local attention, which all layers share.

    Attributes:
      angles: The rotary positions of layers with global attention, ``[length, head size / 2]``.
      local_angles: The rotary positions of layers with local attention, ``[length, head size / 2]``.
      in_window: bool ``[query, key]``, True where a query attends to a key in local attention. None if all rows fit in
        the window.
    """

    angles: Array
    local_angles: Array
    in_window: Array | None


def layer_positions(config: TrunkConfig, length: int, dtype: Any) -> Positions | None:
    """Computes the positions for rows of ``length`` tokens.

    Returns None for families with ``post_norm`` layers.

    Args:
      config: The trunk's architecture.
      length: Number of tokens per row.
      dtype: The dtype of the hidden states. The angles are float32 or wider.
    """
    if config.rotary_theta is None or config.local_rotary_theta is None or config.window is None:
        return None
    wide = jnp.promote_types(dtype, jnp.float32)
    indices, reach = jnp.arange(length), config.window // 2
    # The length of an exported program is symbolic, so it may exceed the window.
    fits = isinstance(length, int) and length - 1 <= reach
    return Positions(
        angles=rotary_angles(length, config.head_size, config.rotary_theta, wide),
        local_angles=rotary_angles(length, config.head_size, config.local_rotary_theta, wide),
        in_window=None if fits else jnp.abs(indices[:, None] - indices[None]) <= reach,
    )


def _identity(x: Array) -> Array:
    return x


class RotaryAttentionBlock(nn.Module):
    """Multi-head self-attention with rotary positions, a LayerNorm and a slot.

    The block applies LayerNorm, attention, the output projection and the slot, in this order.
    """

    config: TrunkConfig

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch length hidden"],
        mask: Bool[AnyArray, "batch length"],
        *,
        form: LayerForm,
        positions: Positions,
        slots: LayerSlots,
        dropout_keys: LayerKeys,
        first_token_only: bool,
    ) -> tuple[Float[Array, "batch queries hidden"], Float[Array, "batch queries num_adapters"] | None]:
        config = self.config
        norm = LayerNorm(config.layer_norm_epsilon, config.norm_bias, name="norm")
        inputs = jnp.where(form.has_attention_norm, norm(x), x)  # [batch, length, hidden_size]

        def dense_layer(name: str, inputs: Array) -> Array:
            layer = Dense(config.hidden_size, config.init_scale, config.attention_bias, name=name)
            return layer(inputs, slots.dense_layer(f"attention/{name}").apply)

        num_queries = 1 if first_token_only else x.shape[1]
        angles = jnp.where(form.is_local, positions.local_angles, positions.angles)  # [length, head size / 2]
        query = rotate(dense_layer("query", inputs[:, :num_queries]), angles, config.num_heads)
        keys = rotate(dense_layer("key", inputs), angles, config.num_heads)
        in_window = positions.in_window
        if in_window is not None:
            in_window = in_window[:num_queries] | ~jnp.asarray(form.is_local)  # [queries, length]
        attend = functools.partial(
            attend_to_tokens,
            mask=mask,
            head_size=config.head_size,
            dropout_rate=config.attention_dropout,
            key=dropout_keys.weights,
            in_window=in_window,
        )
        merge_value = slots.dense_layer("attention/value").merge
        if first_token_only and merge_value is not None:
            value = merge_value(self.variables["params"]["value"])
            context = first_token_attention_with_keys(value, query, keys, inputs, config.num_heads, attend)
        else:
            context = attend_tokens(query, keys, dense_layer("value", inputs), config.num_heads, attend)
        # As in Hugging Face's code, the output has the same dropout rate as the attention weights.
        output = dropout(dropout_keys.attention, dense_layer("output", context), config.attention_dropout)
        sublayer = Sublayer(
            output=output,
            residual=x[:, :num_queries],
            norm=_identity,
            layer_input=x,
            mask=mask,
            attention_dropout=config.attention_dropout,
        )
        return slots.sublayer("attention")(sublayer)


class GatedFeedForwardBlock(nn.Module):
    """LayerNorm and gated feed-forward network, followed by a slot.

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
        key: Array | None,
    ) -> tuple[Float[Array, "batch queries hidden"], Float[Array, "batch queries num_adapters"] | None]:
        config = self.config
        inputs = LayerNorm(config.layer_norm_epsilon, config.norm_bias, name="norm")(x)
        intermediate = Dense(config.intermediate_outputs, config.init_scale, config.ffn_bias, name="intermediate")
        inner = intermediate(inputs, slots.dense_layer("ffn/intermediate").apply)
        products = dropout(key, gated(inner, config.activation), config.hidden_dropout)
        output_layer = Dense(config.hidden_size, config.init_scale, config.ffn_bias, name="output")
        output = output_layer(products, slots.dense_layer("ffn/output").apply)
        return slots.sublayer("ffn")(sublayer(output=output, residual=x, norm=_identity))
