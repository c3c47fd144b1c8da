"""The softmax over adapters, and the weighted sum of their outputs."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.fusion.per_adapter import spread_per_adapter
from afjax.nn.layers import dense, dropout, softmax
from afjax.trees import AnyArray


@functools.partial(jax.checkpoint, prevent_cse=False, static_argnums=3)
def weigh(
    kernel: Float[AnyArray, "units hidden"],
    attention: Float[Array, "*batch num_adapters"],
    inner: Float[Array, "*batch units"],
    sizes: tuple[int, ...],
) -> Float[Array, "*batch hidden"]:
    """Weights inner activations by their adapters' attention, then applies ``kernel``.

    The backward pass rematerializes the weighted activations, so that a loop over the layers does not save them.
    """
    return dense({"kernel": kernel}, spread_per_adapter(attention, sizes) * inner)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Options for the scores of adapters before the softmax.

    Attributes:
      temperature: Divides the scores.
      dropout_rate: The dropout rate of the scores. Ignored without a key.
      key: The dropout key, or None for no dropout.
      drawn: bool ``[N]``, True for the adapters to fuse. None fuses all.
    """

    temperature: float = 1.0
    dropout_rate: float = 0.0
    key: PRNGKeyArray | None = None
    drawn: Bool[Array, "num_adapters"] | None = None

    @property
    def has_dropout(self) -> bool:
        return self.key is not None and self.dropout_rate > 0


def attention_over_adapters(
    scores: Float[Array, "*batch num_adapters"], options: ScoreOptions
) -> Float[Array, "*batch num_adapters"]:
    """Computes the attention over adapters from their scores, in float32 or wider.

    Args:
      scores: ``[..., N]``.
      options: Temperature, dropout and the adapters to fuse.

    Returns:
      ``[..., N]`` in the scores' dtype; sums to 1 over the adapters.
    """
    wide = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    wide = dropout(options.key, wide, options.dropout_rate) / options.temperature
    if options.drawn is not None:
        # Adding 0 or -inf saves memory. For the backward pass, jnp.where(drawn, wide, -inf) would save a mask and zeros
        # for every token.
        wide = wide + jnp.where(options.drawn, 0.0, -jnp.inf).astype(wide.dtype).reshape((1,) * (wide.ndim - 1) + (-1,))
    return softmax(wide, scores.dtype)
