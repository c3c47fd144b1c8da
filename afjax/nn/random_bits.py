"""Random bits for dropout."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import PRNGKeyArray, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def random_bits(key: PRNGKeyArray, shape: Sequence[int]) -> UInt32[Array, "..."]:
    """Draws uint32 bits, identical to ``jax.random.bits(key, shape, jnp.uint32)``.

    For threefry keys, the rounds are unrolled so that XLA can fuse them with the operation that uses the bits. On CPU,
    JAX's loop over the rounds goes through memory five times and takes five times as long.
    """
    if jax.random.key_impl(key) != "threefry2x32":
        return jax.random.bits(key, shape, jnp.uint32)
    indices = [jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(len(shape))]
    first, second = _threefry(jax.random.key_data(key), *flat_index(indices, shape))
    return first ^ second


def flat_index(
    indices: Sequence[UInt32[Array, "*shape"]], shape: Sequence[int]
) -> tuple[UInt32[Array, "*shape"], UInt32[Array, "*shape"]]:
    """Computes the 64-bit row-major index of array entries as two uint32 words.

    Two words are needed because a pod's batch may have more than 2^32 attention weights.

    Args:
      indices: uint32 indices along each axis, all of the same shape.
      shape: Shape of the indexed array.

    Returns:
      The high and the low word, both of the shape of the indices.
    """
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    # From this axis on, offsets fit into one word.
    inner = next(axis for axis in range(len(shape) + 1) if math.prod(shape[axis:]) <= 2**32)
    high = low = jnp.zeros(indices[0].shape if indices else (), jnp.uint32)
    for index, stride in zip(indices[inner:], strides[inner:], strict=True):
        low = low + index * jnp.uint32(stride % 2**32)
    for index, stride in zip(indices[:inner], strides[:inner], strict=True):
        upper, lower = _multiply(index, stride % 2**32)
        low = low + lower
        # If the sum of the low words overflows, it is less than either addend, and 1 is carried to the high word.
        high = high + upper + index * jnp.uint32(stride >> 32) + (low < lower)
    return high, low


def _multiply(words: Array, factor: int) -> tuple[Array, Array]:
    """Multiplies uint32 words by a uint32 factor.

    Returns the products' high and low words. They are computed from 16-bit halves.
    """
    half = jnp.uint32(2**16 - 1)
    upper, lower = words >> 16, words & half
    factor_upper, factor_lower = jnp.uint32(factor >> 16), jnp.uint32(factor & 0xFFFF)
    crossed = (upper * factor_lower, lower * factor_upper)
    lowest = lower * factor_lower
    middle = (lowest >> 16) + (crossed[0] & half) + (crossed[1] & half)
    high = upper * factor_upper + (crossed[0] >> 16) + (crossed[1] >> 16) + (middle >> 16)
    return high, words * jnp.uint32(factor)


def _threefry(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Encrypts pairs of words with a key of two words (Threefry-2x32, 20 rounds).

    Reference:
      Salmon et al. 2011.
    """
    words = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    first, second = first + words[0], second + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << rotation) | (second >> (32 - rotation)))
        first = first + words[(group + 1) % 3]
        second = second + words[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second
