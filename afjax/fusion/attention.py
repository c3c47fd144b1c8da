"""The softmax over adapters, and sums weighted by it."""

import dataclasses
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """What happens to the scores of adapters before the softmax.

    Attributes:
      temperature: Divides the scores.
      dropout_rate: The dropout rate of the scores; acts only with a key.
      key: The key of dropout, or None for no dropout.
      drawn: bool ``[N]``, the adapters that take part; None for all.
    """

    temperature: float = 1.0
    dropout_rate: float = 0.0
    key: Array | None = None
    drawn: Array | None = None

    @property
    def has_dropout(self) -> bool:
        return self.key is not None and self.dropout_rate > 0


def attention_over_adapters(scores: Array, options: ScoreOptions) -> Array:
    """Computes the attention over adapters from their scores, in float32 or wider.

    Args:
      scores: ``[..., N]``.
      options: Temperature, dropout and the adapters that take part.

    Returns:
      ``[..., N]`` of the scores' dtype; each row sums to 1.
    """
    wide = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    wide = dropout(options.key, wide, options.dropout_rate) / options.temperature
    if options.drawn is not None:
        # A sum, because the backward pass of jnp.where(drawn, wide, -inf) would keep a mask and zeros for every token.
        wide = wide + jnp.where(options.drawn, 0.0, -jnp.inf).astype(wide.dtype).reshape((1,) * (wide.ndim - 1) + (-1,))
    return softmax(wide, scores.dtype)
