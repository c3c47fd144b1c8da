"""Random bits for dropout."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA


def random_bits(key: Array, shape: Sequence[int]) -> Array:
    """``jax.random.bits(key, shape)``, uint32, to the bit.

    For threefry keys the rounds are written out, so that XLA computes them where the bits are used; JAX's loop over
    rounds goes through memory five times on the CPU and takes five times as long.
    """
    if jax.random.key_impl(key) != "threefry2x32":
        return jax.random.bits(key, shape)
    assert math.prod(shape) < 2**32, "one word counts the entries"
    zero = jnp.zeros(shape, jnp.uint32)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    index = sum((jax.lax.broadcasted_iota(jnp.uint32, shape, i) * jnp.uint32(s) for i, s in enumerate(strides)), zero)
    first, second = _threefry(jax.random.key_data(key), zero, index)
    return first ^ second


def _threefry(key: Array, first: Array, second: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011) of two words each, under a key of two words."""
    words = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    first, second = first + words[0], second + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            first = first + second
            second = first ^ ((second << rotation) | (second >> (32 - rotation)))
        first = first + words[(group + 1) % 3]
        second = second + words[(group + 2) % 3] + jnp.uint32(group + 1)
    return first, second
