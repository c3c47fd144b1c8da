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
    # With more than 2^32 entries, an index would need two words.
    if jax.random.key_impl(key) != "threefry2x32" or math.prod(shape) > 2**32:
        return jax.random.bits(key, shape, jnp.uint32)
    index = jnp.zeros(shape, jnp.uint32)  # row-major
    for axis in range(len(shape)):
        stride = jnp.uint32(math.prod(shape[axis + 1 :]) % 2**32)
        index = index + jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * stride
    first, second = _threefry(jax.random.key_data(key), jnp.zeros_like(index), index)
    return first ^ second


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
