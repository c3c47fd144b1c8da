"""Dense layers and activations in bfloat16, against float64."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from afjax.model.encoder import cast_trunk
from afjax.model.layers import dense, dropout, gelu
from afjax.model.random_bits import random_bits
from afjax.trees import Tree, flatten
from afjax.trunk import Trunk


def normal(seed: int, *shape: int) -> Array:
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("kernel_dtype", ["float32", "bfloat16"])
def test_dense_in_bfloat16_sums_in_float32(kernel_dtype: str) -> None:
    x = normal(0, 4, 8, 256).astype(jnp.bfloat16)
    params = {"kernel": normal(1, 256, 16).astype(kernel_dtype), "bias": normal(2, 16)}

    def loss(params: Tree, x: Array) -> tuple[Array, Array]:
        output = dense(params, x)
        return (output.astype(jnp.float32) * normal(3, 4, 8, 16)).sum(), output

    (_, output), (to_params, to_x) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, x)
    assert output.dtype == to_x.dtype == jnp.bfloat16
    assert to_params["kernel"].dtype == jnp.dtype(kernel_dtype)

    rows = np.asarray(x, np.float64).reshape(-1, 256)
    kernel = np.asarray(params["kernel"].astype(jnp.bfloat16), np.float64)
    cotangent = np.asarray(normal(3, 4, 8, 16).astype(jnp.bfloat16), np.float64).reshape(-1, 16)
    # One rounding to bfloat16 behind sums that are as good as exact: half a unit of its 8 bits.
    for found, exact in ((output, rows @ kernel + np.asarray(params["bias"])), (to_x, cotangent @ kernel.T)):
        np.testing.assert_allclose(np.asarray(found, np.float64).reshape(exact.shape), exact, rtol=2**-7, atol=0.1)
    tolerance = 1e-5 if kernel_dtype == "float32" else 2**-7
    np.testing.assert_allclose(
        np.asarray(to_params["kernel"], np.float64), rows.T @ cotangent, rtol=tolerance, atol=1e-3
    )


def test_gelu_is_the_exact_one_with_its_derivative() -> None:
    x = jnp.linspace(-5.0, 5.0, 101)
    expected = [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()]
    np.testing.assert_allclose(gelu(x), expected, atol=1e-6)
    slopes = jax.vmap(jax.grad(gelu))(x)
    np.testing.assert_allclose(slopes, jax.vmap(jax.grad(lambda v: jax.nn.gelu(v, approximate=False)))(x), atol=1e-6)
    narrow = x.astype(jnp.bfloat16)
    assert gelu(narrow).dtype == jnp.bfloat16
    np.testing.assert_array_equal(gelu(narrow), gelu(narrow.astype(jnp.float32)).astype(jnp.bfloat16))


def test_dropout_in_bfloat16_keeps_the_mean() -> None:
    kept = dropout(jax.random.key(0), jnp.ones((64, 1024), jnp.bfloat16), 0.1)
    assert kept.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(kept, np.float32))) == {0.0, np.float32(jnp.bfloat16(1 / 0.9))}
    assert float((kept == 0).mean()) == pytest.approx(0.1, abs=0.005)


def test_casting_a_trunk_leaves_its_layer_norms_and_pooler(tiny_trunk: Trunk) -> None:
    leaves = flatten(cast_trunk(tiny_trunk.params, "bfloat16"))
    assert {path for path, leaf in leaves.items() if leaf.dtype == np.float32} == {
        "pooler/kernel",
        "pooler/bias",
        *(
            f"{part}/norm/{name}"
            for part in ("embeddings", "layers/attention", "layers/ffn")
            for name in ("scale", "bias")
        ),
    }
    same = cast_trunk(tiny_trunk.params, "float32")
    assert all(leaf is flatten(tiny_trunk.params)[path] for path, leaf in flatten(same).items())


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4, 8)])
def test_random_bits_are_jaxs(impl: str, shape: tuple[int, ...]) -> None:
    key = jax.random.fold_in(jax.random.key(5, impl=impl), 7)
    bits = jax.jit(random_bits, static_argnums=1)(key, shape)
    assert bits.dtype == jnp.uint32
    np.testing.assert_array_equal(bits, jax.random.bits(key, shape))
