"""Rotary positions rotate pairs of features by angles that grow with the position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.nn.rotary import rotary_angles, rotate


def as_complex(x: np.ndarray, num_heads: int) -> np.ndarray:
    """Converts each pair of features to a complex number.

    The result has the shape ``[batch, tokens, heads, head size / 2]``.
    """
    first, second = np.split(x.reshape(*x.shape[:2], num_heads, -1), 2, axis=-1)
    return first + 1j * second


def test_pairs_of_features_are_rotated_by_their_angles() -> None:
    with jax.enable_x64(True):
        x = np.random.default_rng(0).standard_normal((2, 5, 12))
        angles = rotary_angles(5, 6, 100.0, jnp.float64)
        expected = np.arange(5)[:, None] * 100.0 ** (-np.array([0, 2, 4]) / 6)
        np.testing.assert_allclose(angles, expected, rtol=1e-14)
        rotated = rotate(jnp.asarray(x), angles, 2)
        factors = np.exp(1j * expected)[None, :, None]
        np.testing.assert_allclose(as_complex(np.asarray(rotated), 2), as_complex(x, 2) * factors, atol=1e-14)


def test_fewer_tokens_than_angles_have_the_first_positions() -> None:
    angles = rotary_angles(5, 4, 100.0, jnp.float32)
    x = jax.random.normal(jax.random.key(0), (2, 5, 8))
    np.testing.assert_array_equal(rotate(x[:, :1], angles, 2), x[:, :1])
    np.testing.assert_array_equal(rotate(x[:, :3], angles, 2), rotate(x, angles, 2)[:, :3])


def test_products_of_queries_and_keys_depend_only_on_their_distance() -> None:
    angles = rotary_angles(9, 8, 100.0, jnp.float32)
    query, key = (jnp.tile(jax.random.normal(jax.random.key(seed), (1, 1, 8)), (1, 9, 1)) for seed in (0, 1))
    products = rotate(query, angles, 1)[0] @ rotate(key, angles, 1)[0].T  # [9, 9]
    for distance in range(-8, 9):
        diagonal = jnp.diagonal(products, distance)
        np.testing.assert_allclose(diagonal, jnp.broadcast_to(diagonal[:1], diagonal.shape), atol=1e-4)


def test_gradient_equals_the_transposed_rotation() -> None:
    with jax.enable_x64(True):
        angles = rotary_angles(3, 4, 100.0, jnp.float64)
        x = jax.random.normal(jax.random.key(0), (2, 3, 8), jnp.float64)
        matrix = jnp.stack([rotate(row.reshape(1, 3, 8), angles, 2).reshape(-1) for row in jnp.eye(24)])
        gradient = jax.grad(lambda x: jnp.sin(rotate(x, angles, 2)).sum())(x)
        cosines = jnp.cos(rotate(x, angles, 2)).reshape(2, -1)
        np.testing.assert_allclose(gradient.reshape(2, -1), cosines @ matrix.T, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_result_has_the_dtype_of_the_input(dtype: str) -> None:
    angles = rotary_angles(3, 4, 100.0, jnp.float32)
    x = jax.random.normal(jax.random.key(0), (2, 3, 8))
    rotated = rotate(x.astype(dtype), angles, 2)
    assert rotated.dtype == dtype
    np.testing.assert_allclose(rotated.astype(jnp.float32), rotate(x, angles, 2), atol=0.05)
