"""Multi-head self-attention over the tokens of a row, as functions of explicit parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from afjax.model.layers import dense, dropout, keep, softmax, wide_matmul

# From scores to attention weights, both [batch, heads, queries, length].
Attend = Callable[[Array], Array]


def attention_weights(
    scores: Array, mask: Array, *, head_size: int, dropout_rate: float, key: Array | None, dtype: Any
) -> Array:
    """Softmax of scaled scores over the tokens that are there, with dropout.

    Args:
      scores: ``[batch, heads, queries, length]``, float32 or wider.
      mask: bool ``[batch, length]``, False at padding.
      head_size: Its root divides the scores.
      dropout_rate: Of the weights.
      key: Dropout's key; None: no dropout.
      dtype: Of the result.
    """
    # A finite minimum keeps rows that are all padding free of NaN.
    minimum = jnp.finfo(scores.dtype).min
    scores = jnp.where(mask[:, None, None, :], scores * head_size**-0.5, minimum)
    return dropout(key, softmax(scores, dtype), dropout_rate)


def attend_tokens(query: Array, keys: Array, values: Array, num_heads: int, attend: Attend) -> Array:
    """Multi-head attention.

    Args:
      query: ``[batch, queries, size]``.
      keys, values: ``[batch, length, size]``.
      num_heads: Divides ``size``.
      attend: From scores to weights.

    Returns:
      ``[batch, queries, size]``, the heads side by side.
    """

    def split(x: Array) -> Array:
        # [batch, heads, tokens, head size]: with the heads in front XLA's CPU matmuls are twice as fast.
        return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

    weights = attend(wide_matmul(split(query), split(keys).transpose(0, 1, 3, 2)))  # [batch, heads, queries, length]
    context = keep(wide_matmul(weights, split(values)).astype(query.dtype))
    return context.transpose(0, 2, 1, 3).reshape(query.shape)


def first_token_attention(params: Mapping[str, Any], x: Array, num_heads: int, attend: Attend) -> Array:
    """What self-attention gives for the first token alone, ``[batch, 1, size]``, without keys and values.

    With one query a row, ``q · (K x + b)`` is ``(Kᵀ q) · x`` and a constant that the softmax ignores, and
    ``sum w (V x + c)`` is ``V (sum w x) + c sum w``: both matrices meet one vector a head in place of every token.

    Args:
      params: ``{"query", "key", "value"}``, each ``{"kernel" [d, size], "bias" [size]}``.
      x: ``[batch, length, d]``.
      num_heads: Divides ``size``.
      attend: From scores to weights.
    """
    size = params["query"]["bias"].shape[-1]
    heads = (num_heads, size // num_heads)
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    query = dense(params["query"], x[:, 0]).reshape(-1, *heads).transpose(1, 0, 2)  # [heads, batch, head size]
    key_kernel, value_kernel = (
        params[name]["kernel"].astype(x.dtype).reshape(-1, *heads).transpose(1, 2, 0)  # [heads, head size, d]
        for name in ("key", "value")
    )
    projected = keep(wide_matmul(query, key_kernel).transpose(1, 0, 2).astype(x.dtype))  # Kᵀ q, [batch, heads, d]
    weights = attend(wide_matmul(projected, x.transpose(0, 2, 1))[:, :, None])  # [batch, heads, 1, length]
    mixed = keep(wide_matmul(weights[:, :, 0], x).astype(x.dtype).transpose(1, 0, 2))  # [heads, batch, d]
    context = keep(wide_matmul(mixed, value_kernel.transpose(0, 2, 1))).transpose(1, 0, 2)  # [batch, heads, head size]
    bias = params["value"]["bias"].astype(x.dtype).astype(dtype).reshape(1, *heads) * weights.sum(-1, dtype=dtype)
    return (context + bias).astype(x.dtype).reshape(-1, 1, size)
