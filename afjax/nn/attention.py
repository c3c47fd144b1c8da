"""Multi-head self-attention over the tokens of a row, as functions of explicit parameters."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from afjax.nn.layers import dense, dropout_mask, keep, wide_matmul

# From scores [batch, ..., length] and values [batch, ..., length, size] to what weighted_sum returns.
Attend = Callable[[Array, Array], tuple[Array, Array]]


def attend_to_tokens(
    scores: Array, values: Array, *, mask: Array, head_size: int, dropout_rate: float, key: Array | None
) -> tuple[Array, Array]:
    """Sums of values, weighted by the softmax of scaled scores over the tokens that are there, with dropout.

    Args:
      scores: ``[batch, heads, queries, length]``, float32 or wider.
      values: ``[batch, heads, length, size]``.
      mask: bool ``[batch, length]``, False at padding.
      head_size: Its root divides the scores.
      dropout_rate: Of the weights.
      key: Dropout's key; None: no dropout.

    Returns:
      What :func:`weighted_sum` does.
    """
    kept = dropout_mask(key, scores.shape, dropout_rate)
    rate = 0.0 if kept is None else dropout_rate
    return weighted_sum(scores, values, mask[:, None, None, :], kept, head_size**-0.5, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def weighted_sum(
    scores: Array, values: Array, mask: Array, kept: Array | None, scale: float, rate: float
) -> tuple[Array, Array]:
    """``dropout(softmax(scale * scores)) @ values``, and the sum of each query's weights.

    The weights are the largest arrays of long rows. The backward pass has one array of them, in the values' dtype:
    those that dropout leaves out are negative in it. JAX's own rules keep the weights in two dtypes, those that dropout
    leaves once more, and the masks.

    Args:
      scores: ``[..., queries, length]``, float32 or wider.
      values: ``[..., length, size]``; its dtype is that of the weights in the product.
      mask: bool, of a shape that spreads to that of scores; False: the weight is 0. A query that it leaves nothing has
        weights that are all alike.
      kept: bool, like scores: the weights that dropout leaves; None: all.
      scale: Of the scores.
      rate: Of the weights that dropout leaves out; the others are scaled up by ``1 / (1 - rate)``.

    Returns:
      ``[..., queries, size]`` in the values' dtype, ``[..., queries]`` in the scores'.
    """
    return _weighted_sum_forward(scores, values, mask, kept, scale, rate)[0]


def _weighted_sum_forward(
    scores: Array, values: Array, mask: Array, kept: Array | None, scale: float, rate: float
) -> tuple[tuple[Array, Array], tuple[Array, Array, Array, Array]]:
    # A finite minimum keeps queries without a token free of NaN.
    weights = jax.nn.softmax(jnp.where(mask, scores * scale, jnp.finfo(scores.dtype).min)).astype(values.dtype)
    signed = keep(weights if kept is None else jnp.where(kept, weights, -weights))
    left = jnp.maximum(signed, 0)
    sums = wide_matmul(left, values) / (1.0 - rate)
    totals = left.sum(-1, dtype=scores.dtype) / (1.0 - rate)
    # The dtype of the scores goes along as that of an empty array.
    return (sums.astype(values.dtype), totals), (signed, values, mask, scores[..., :0])


def _weighted_sum_backward(
    scale: float, rate: float, backward: tuple[Array, Array, Array, Array], cotangents: tuple[Array, Array]
) -> tuple[Array, Array, None, None]:
    signed, values, mask, empty = backward
    to_sums, to_totals = cotangents
    left = jnp.maximum(signed, 0)
    to_left = wide_matmul(to_sums, values.swapaxes(-1, -2)).astype(empty.dtype) + to_totals[..., None]
    along = left.astype(empty.dtype) * to_left  # [..., queries, length]
    to_scores = along - jnp.abs(signed).astype(empty.dtype) * along.sum(-1, keepdims=True)
    to_scores = jnp.where(mask, to_scores * (scale / (1.0 - rate)), 0.0)
    to_values = wide_matmul(left.swapaxes(-1, -2), to_sums) / (1.0 - rate)
    return to_scores, to_values.astype(values.dtype), None, None


weighted_sum.defvjp(_weighted_sum_forward, _weighted_sum_backward)


def attend_tokens(query: Array, keys: Array, values: Array, num_heads: int, attend: Attend) -> Array:
    """Multi-head attention.

    Args:
      query: ``[batch, queries, size]``.
      keys, values: ``[batch, length, size]``.
      num_heads: Divides ``size``.
      attend: From scores and values to sums.

    Returns:
      ``[batch, queries, size]``, the heads side by side.
    """

    def split(x: Array) -> Array:
        # [batch, heads, tokens, head size]: with the heads in front XLA's CPU matmuls are twice as fast.
        return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

    scores = wide_matmul(split(query), split(keys).transpose(0, 1, 3, 2))  # [batch, heads, queries, length]
    context = keep(attend(scores, split(values))[0])
    # Without the barrier the TPU's compiler puts the heads side by side within the matmul that reads them. On v5p a
    # program of adapters then moves 2 % more.
    return jax.lax.optimization_barrier(context.transpose(0, 2, 1, 3).reshape(query.shape))


def first_token_attention(params: Mapping[str, Any], x: Array, num_heads: int, attend: Attend) -> Array:
    """What self-attention gives for the first token alone, ``[batch, 1, size]``, without keys and values.

    With one query a row, ``q · (K x + b)`` is ``(Kᵀ q) · x`` and a constant that the softmax ignores, and
    ``sum w (V x + c)`` is ``V (sum w x) + c sum w``: both matrices meet one vector a head in place of every token.
    The heads are then like queries of one head whose values are the tokens.

    Args:
      params: ``{"query", "key", "value"}``, each ``{"kernel" [d, size], "bias" [size]}``.
      x: ``[batch, length, d]``.
      num_heads: Divides ``size``.
      attend: From scores and values to sums.
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
    scores = wide_matmul(projected, x.transpose(0, 2, 1))[:, None]  # [batch, 1, heads, length]
    mixed, totals = attend(scores, x[:, None])  # [batch, 1, heads, d], [batch, 1, heads]
    mixed = keep(mixed[:, 0].transpose(1, 0, 2))  # [heads, batch, d]
    context = keep(wide_matmul(mixed, value_kernel.transpose(0, 2, 1))).transpose(1, 0, 2)  # [batch, heads, head size]
    bias = params["value"]["bias"].astype(x.dtype).astype(dtype).reshape(1, *heads) * totals[:, 0, :, None]
    return (context + bias).astype(x.dtype).reshape(-1, 1, size)
