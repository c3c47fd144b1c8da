"""The softmax over adapters, and sums weighted by it."""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from afjax.fusion.per_adapter import spread_per_adapter
from afjax.nn.layers import dense, dropout, softmax


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=3)
def weigh(kernel: Array, attention: Array, inner: Array, sizes: tuple[int, ...]) -> Array:
    """The units, weighted by their adapters' attention, through a matrix: ``[..., R]`` to ``[..., d]``.

    A loop over the layers keeps none of the weighted units for its backward pass, which makes them again.
    """
    return dense({"kernel": kernel}, spread_per_adapter(attention, sizes) * inner)


def attention_over_adapters(
    scores: Array, temperature: float, rate: float, key: Array | None, drawn: Array | None
) -> Array:
    """Computes the attention over adapters from their scores, in float32 or wider.

    Args:
      scores: ``[..., N]``.
      temperature: Divides the scores.
      rate: The dropout rate of the scores; acts only with a key.
      key: The key of dropout, or None for no dropout.
      drawn: bool ``[N]``, the adapters that take part; None for all.

    Returns:
      ``[..., N]`` of the scores' dtype; each row sums to 1.
    """
    wide = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    wide = dropout(key, wide, rate) / temperature
    if drawn is not None:
        # Added, as the backward pass of a choice between the two would keep a mask and zeros of every token.
        wide = wide + jnp.where(drawn, 0.0, -jnp.inf).astype(wide.dtype).reshape((1,) * (wide.ndim - 1) + (-1,))
    return softmax(wide, scores.dtype)
