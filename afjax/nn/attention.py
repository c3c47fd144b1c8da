"""Multi-head self-attention, as pure functions of their parameters."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.nn.layers import dense, dropout_mask, saveable, wide_matmul
from afjax.trees import AnyArray

# attend(scores [batch, ..., length], values [batch, ..., length, size]) returns the same pair as weighted_sum.
Attend = Callable[[Array, Array], tuple[Array, Array]]
# Computes terms to add to the query-key products, from the queries [batch, heads, queries, head size] and the keys
# [batch, heads, length, head size].
ExtraScores = Callable[[Array, Array], Array]


def attend_to_tokens(
    scores: Float[Array, "batch num_heads queries length"],
    values: Float[Array, "batch num_heads length size"],
    *,
    mask: Bool[AnyArray, "batch length"],
    head_size: int,
    dropout_rate: float,
    key: PRNGKeyArray | None,
    bias: Float[Array, "num_heads queries length"] | None = None,
    in_window: Bool[AnyArray, "_queries length"] | None = None,
) -> tuple[Float[Array, "batch num_heads queries size"], Float[Array, "batch num_heads queries"]]:
    """Computes scaled dot-product attention over all tokens except padding.

    Args:
      scores: ``[batch, heads, queries, length]``, float32 or wider.
      values: ``[batch, heads, length, size]``.
      mask: bool ``[batch, length]``, False at padding.
      head_size: Size of a head. The scores are divided by its square root.
      dropout_rate: Dropout rate of the attention weights.
      key: PRNG key for dropout. None disables dropout.
      bias: Added to the scaled scores of every row.
      in_window: bool ``[queries, length]``, or ``[1, length]`` for all queries: False for tokens outside a query's
        window. None for global attention.

    Returns:
      The weighted sums of the values ``[batch, heads, queries, size]``, and each query's total weight ``[batch, heads,
      queries]``, which differs from 1 only with dropout.
    """
    keep_mask = dropout_mask(key, scores.shape, dropout_rate)
    rate = 0.0 if keep_mask is None else dropout_rate
    present = mask[:, None, None, :]  # [batch, 1, 1, length]
    if in_window is not None:
        present = present & in_window[None, None]  # [batch, 1, queries, length]
    return weighted_sum(scores, values, present, keep_mask, bias, head_size**-0.5, rate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def weighted_sum(
    scores: Float[Array, "*batch queries length"],
    values: Float[Array, "*batch length size"],
    mask: Bool[AnyArray, "..."],
    keep_mask: Bool[Array, "*batch queries length"] | None,
    bias: Float[Array, "..."] | None,
    scale: float,
    rate: float,
) -> tuple[Float[Array, "*batch queries size"], Float[Array, "*batch queries"]]:
    """Computes ``dropout(softmax(scale * scores + bias)) @ values`` and weight totals.

    For long rows, the attention weights are the largest arrays. The custom derivative rule therefore stores them only
    once for the backward pass, in the values' dtype, with a negative sign for dropped weights. JAX's rule would store
    the weights in two dtypes, the weights after dropout, and the masks.

    Args:
      scores: ``[..., queries, length]``, float32 or wider.
      values: ``[..., length, size]``. The weights are cast to its dtype before the product.
      mask: bool, broadcastable to the scores. Where it is False, the weight is 0. If all tokens of a query are masked,
        its weights are uniform.
      keep_mask: bool, with the scores' shape: False where dropout zeroes the weight. None disables dropout.
      bias: Added to the scores of every row; has the scores' shape without the first axis. None for no bias.
      scale: Multiplies the scores.
      rate: Dropout rate of the weights. The remaining weights are multiplied by ``1 / (1 - rate)``.

    Returns:
      The weighted sums ``[..., queries, size]`` in the dtype of ``values``, and each query's total weight
      ``[..., queries]`` in the dtype of ``scores``.
    """
    return _weighted_sum_forward(scores, values, mask, keep_mask, bias, scale, rate)[0]


def _weighted_sum_forward(
    scores: Array, values: Array, mask: AnyArray, keep_mask: Array | None, bias: Array | None, scale: float, rate: float
) -> tuple[tuple[Array, Array], tuple[Array, Array, AnyArray, Array, Array | None]]:
    logits = scores * scale if bias is None else scores * scale + bias[None].astype(scores.dtype)
    # Masked scores are set to the lowest finite number: -inf would turn the weights of fully masked queries into NaN.
    weights = jax.nn.softmax(jnp.where(mask, logits, jnp.finfo(scores.dtype).min)).astype(values.dtype)
    signed = saveable(weights if keep_mask is None else jnp.where(keep_mask, weights, -weights))
    kept_weights = jnp.maximum(signed, 0)
    sums = wide_matmul(kept_weights, values) / (1.0 - rate)
    totals = kept_weights.sum(-1, dtype=scores.dtype) / (1.0 - rate)
    # The empty arrays record the dtypes of the scores and the bias.
    empty_bias = None if bias is None else bias[..., :0]
    return (sums.astype(values.dtype), totals), (signed, values, mask, scores[..., :0], empty_bias)


def _weighted_sum_backward(
    scale: float,
    rate: float,
    backward: tuple[Array, Array, AnyArray, Array, Array | None],
    cotangents: tuple[Array, Array],
) -> tuple[Array, Array, None, None, Array | None]:
    signed, values, mask, empty, empty_bias = backward
    grad_sums, grad_totals = cotangents
    kept_weights = jnp.maximum(signed, 0)
    grad_kept_weights = wide_matmul(grad_sums, values.swapaxes(-1, -2)).astype(empty.dtype) + grad_totals[..., None]
    along = kept_weights.astype(empty.dtype) * grad_kept_weights  # [..., queries, length]
    grad_scores = along - jnp.abs(signed).astype(empty.dtype) * along.sum(-1, keepdims=True)
    # The compiler removes this sum over the rows if the bias is frozen.
    grad_bias = None if empty_bias is None else jnp.where(mask, grad_scores / (1.0 - rate), 0.0).sum(0)
    grad_scores = jnp.where(mask, grad_scores * (scale / (1.0 - rate)), 0.0)
    grad_values = wide_matmul(kept_weights.swapaxes(-1, -2), grad_sums) / (1.0 - rate)
    if grad_bias is not None and empty_bias is not None:
        grad_bias = grad_bias.astype(empty_bias.dtype)
    return grad_scores, grad_values.astype(values.dtype), None, None, grad_bias


weighted_sum.defvjp(_weighted_sum_forward, _weighted_sum_backward)


def attend_tokens(
    query: Float[Array, "batch queries size"],
    keys: Float[Array, "batch length size"],
    values: Float[Array, "batch length size"],
    num_heads: int,
    attend: Attend,
    extra_scores: ExtraScores | None = None,
) -> Float[Array, "batch queries size"]:
    """Computes multi-head attention.

    Args:
      query: ``[batch, queries, size]``.
      keys, values: ``[batch, length, size]``.
      num_heads: The number of heads, which must divide ``size``.
      attend: Computes the weighted sums from scores and values.
      extra_scores: Computes terms to add to the scores, ``[batch, heads, queries, length]``, from the heads' queries
        and keys.

    Returns:
      ``[batch, queries, size]``, with the heads concatenated.
    """

    def split(x: Array) -> Array:
        # [batch, heads, tokens, head size]: XLA's CPU matmuls are twice as fast with the heads before the tokens.
        return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)

    query_heads, key_heads = split(query), split(keys)
    scores = wide_matmul(query_heads, key_heads.transpose(0, 1, 3, 2))  # [batch, heads, queries, length]
    if extra_scores is not None:
        scores = scores + extra_scores(query_heads, key_heads)
    context = saveable(attend(scores, split(values))[0])
    # Without the barrier, the TPU compiler fuses the concatenation of the heads into the next matmul, which increases
    # the memory traffic of adapter programs by 2% on v5p.
    return jax.lax.optimization_barrier(context.transpose(0, 2, 1, 3).reshape(query.shape))


def first_token_attention(
    params: Mapping[str, Any],
    x: Float[Array, "batch length inputs"],
    num_heads: int,
    attend: Attend,
    extra_scores: Callable[[Array], Array] | None = None,
) -> Float[Array, "batch 1 size"]:
    """Computes self-attention for the first token only, without keys and values.

    With one query per row, ``q · (K x + b)`` equals ``(Kᵀ q) · x`` up to a constant that the softmax ignores, and
    ``sum w (V x + c)`` equals ``V (sum w x) + c sum w``. Both matrices are therefore multiplied with one vector per
    head instead of every token. To ``attend``, the heads look like several queries of a single head, and the tokens are
    its values.

    Args:
      params: ``{"query", "key", "value"}``, each ``{"kernel" [d, size], "bias" [size]}``.
      x: ``[batch, length, d]``.
      num_heads: The number of heads, which must divide ``size``.
      attend: Computes the weighted sums from scores and values.
      extra_scores: Computes terms to add to the scores, ``[batch, heads, length]``, from the queries ``[heads, batch,
        head size]``.

    Returns:
      ``[batch, 1, size]``.
    """
    size = params["query"]["bias"].shape[-1]
    heads = (num_heads, size // num_heads)
    query = dense(params["query"], x[:, 0]).reshape(-1, *heads).transpose(1, 0, 2)  # [heads, batch, head size]
    key_kernel = params["key"]["kernel"].astype(x.dtype).reshape(-1, *heads).transpose(1, 2, 0)  # [heads, size, d]
    projected = saveable(wide_matmul(query, key_kernel).transpose(1, 0, 2).astype(x.dtype))  # Kᵀ q, [batch, heads, d]
    scores = wide_matmul(projected, x.transpose(0, 2, 1))  # [batch, heads, length]
    if extra_scores is not None:
        scores = scores + extra_scores(query)
    return _mix_tokens(params["value"], scores[:, None], x, num_heads, attend)


def first_token_attention_with_keys(
    value: Mapping[str, Any],
    query: Float[Array, "batch 1 size"],
    keys: Float[Array, "batch length size"],
    x: Float[Array, "batch length inputs"],
    num_heads: int,
    attend: Attend,
) -> Float[Array, "batch 1 size"]:
    """Computes self-attention for the first token only, without values.

    This works even if the keys are not linear in the tokens, as with rotary positions. Like
    :func:`first_token_attention`, it multiplies the value matrix with one vector per head.

    Args:
      value: ``{"kernel" [d, size], "bias" [size]}``. The bias is optional.
      query: ``[batch, 1, size]``.
      keys: ``[batch, length, size]``.
      x: ``[batch, length, d]``, the inputs of the value matrix.
      num_heads: The number of heads, which must divide ``size``.
      attend: Computes the weighted sums from scores and values.

    Returns:
      ``[batch, 1, size]``.
    """
    query, keys = (part.reshape(*part.shape[:2], num_heads, -1).transpose(0, 2, 1, 3) for part in (query, keys))
    scores = wide_matmul(query, keys.transpose(0, 1, 3, 2))  # [batch, heads, 1, length]
    return _mix_tokens(value, scores.transpose(0, 2, 1, 3), x, num_heads, attend)


def _mix_tokens(
    value: Mapping[str, Any],
    scores: Float[Array, "batch 1 num_heads length"],
    x: Float[Array, "batch length inputs"],
    num_heads: int,
    attend: Attend,
) -> Float[Array, "batch 1 size"]:
    """Computes each head's weighted sum of the tokens, then applies the value matrix."""
    size = value["kernel"].shape[-1]
    heads = (num_heads, size // num_heads)
    dtype = jnp.promote_types(x.dtype, jnp.float32)
    value_kernel = value["kernel"].astype(x.dtype).reshape(-1, *heads).transpose(1, 2, 0)  # [heads, head size, d]
    mixed, totals = attend(scores, x[:, None])  # [batch, 1, heads, d], [batch, 1, heads]
    mixed = saveable(mixed[:, 0].transpose(1, 0, 2))  # [heads, batch, d]
    context = saveable(wide_matmul(mixed, value_kernel.transpose(0, 2, 1)))  # [heads, batch, head size]
    context = context.transpose(1, 0, 2)  # [batch, heads, head size]
    if "bias" in value:
        context = context + value["bias"].astype(x.dtype).astype(dtype).reshape(1, *heads) * totals[:, 0, :, None]
    return context.astype(x.dtype).reshape(-1, 1, size)


def relative_bias(
    table: Float[AnyArray, "entries num_heads"], entry: Callable[[AnyArray], AnyArray], length: int
) -> Float[Array, "num_heads length length"]:
    """Looks up attention biases by the distance between two tokens.

    Args:
      table: ``[entries, heads]``.
      entry: Maps distances (the key's position minus the query's), int32 ``[distances]``, to rows of the table.
      length: The number of tokens.

    Returns:
      ``[heads, queries, length]``, float32 or wider.
    """
    period = 2 * length
    steps = jnp.arange(period)
    by_distance = jnp.asarray(table)[entry(jnp.where(steps < length, steps, steps - period))]
    by_distance = by_distance.T.astype(jnp.promote_types(table.dtype, jnp.float32))  # [heads, period]
    heads = by_distance.shape[0]
    # Each query's row is the previous row shifted by one token. To get this, repeat the distances and reshape them to
    # rows that are shorter by one. A lookup for every pair of tokens would have a scatter as its gradient.
    repeated = jnp.broadcast_to(by_distance[:, None], (heads, length, period)).reshape(heads, length * period)
    return repeated[:, :-length].reshape(heads, length, period - 1)[:, :, :length]
