"""Rotary position embeddings (Su 2021)."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from afjax.trees import AnyArray


def rotary_angles(length: int, size: int, theta: float, dtype: Any) -> Float[Array, "length half"]:
    """Computes the rotation angles for a head's feature pairs.

    Args:
      length: The number of positions.
      size: The size of a head, which must be even.
      theta: The base of the periods, which grow from ``2 pi`` to nearly ``2 pi theta``.
      dtype: The dtype of the angles.

    Returns:
      ``[length, size / 2]``.

    Example:
      >>> from afjax.nn.rotary import rotary_angles
      >>> rotary_angles(3, size=2, theta=100.0, dtype="float32").tolist()
      [[0.0], [1.0], [2.0]]

    Reference:
      Su et al. 2021, *RoFormer: Enhanced Transformer with Rotary Position Embedding*, section 3.2.2.
    """
    frequencies = theta ** (-jnp.arange(0, size, 2, dtype=dtype) / size)  # [size / 2]
    return jnp.arange(length, dtype=dtype)[:, None] * frequencies[None]


def rotate(
    x: Float[Array, "batch tokens size"], angles: Float[AnyArray, "length half"], num_heads: int
) -> Float[Array, "batch tokens size"]:
    """Rotates the feature pairs of queries or keys by their positions' angles.

    Feature ``i`` of a head's first half and feature ``i`` of its second half form a pair.

    Args:
      x: ``[batch, tokens, size]``, queries or keys of the first ``tokens`` positions. They are rotated in the dtype of
        the angles.
      angles: ``[length, head size / 2]``, from :func:`rotary_angles`, for at least as many positions as tokens.
      num_heads: The number of heads, which must divide ``size``.

    Returns:
      ``[batch, tokens, size]`` in the dtype of ``x``.

    Reference:
      Su et al. 2021, *RoFormer: Enhanced Transformer with Rotary Position Embedding*, section 3.2.2.
    """
    angles = jnp.asarray(angles)[: x.shape[1]]
    # [batch, tokens, heads, 2, head size / 2]
    pairs = x.reshape(*x.shape[:2], num_heads, 2, angles.shape[-1])
    return _rotate(pairs, jnp.cos(angles), jnp.sin(angles)).reshape(x.shape)


@jax.custom_vjp
def _rotate(pairs: Array, cosines: Array, sines: Array) -> Array:
    """Rotates pairs, with a custom derivative rule that rotates back.

    The rule only stores the cosines and sines. JAX's own rule would store them broadcast to all rows and heads. In
    a loop over layers, it would do so once per layer.
    """
    first, second = pairs[..., 0, :].astype(cosines.dtype), pairs[..., 1, :].astype(cosines.dtype)
    cosines, sines = cosines[None, :, None], sines[None, :, None]  # [1, tokens, 1, head size / 2]
    rotated = jnp.stack([first * cosines - second * sines, second * cosines + first * sines], -2)
    return rotated.astype(pairs.dtype)


_rotate.defvjp(
    lambda pairs, cosines, sines: (_rotate(pairs, cosines, sines), (cosines, sines)),
    lambda residuals, cotangent: (_rotate(cotangent, residuals[0], -residuals[1]), None, None),
)
