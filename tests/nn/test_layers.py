"""Dense layers, LayerNorm, activations and dropout equal plain formulas.

Results in bfloat16 are correct up to rounding, and residuals are stored in bfloat16.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from afjax.nn.layers import ACTIVATIONS, dense, dropout, gated, gelu, layer_norm, normalize, scale_features, softmax
from afjax.nn.random_bits import random_bits
from afjax.trees import Tree, flatten
from afjax.trunk.encoder import cast_trunk
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow


def normal(seed: int, *shape: int) -> Array:
    return jax.random.normal(jax.random.key(seed), shape)


def test_dense_in_float16_returns_float16() -> None:
    x, params = normal(0, 4, 8).astype(jnp.float16), {"kernel": normal(1, 8, 3), "bias": normal(2, 3)}
    output = dense(params, x)
    assert output.dtype == jnp.float16
    np.testing.assert_allclose(output, dense(params, x.astype(jnp.float32)), atol=0.02)


@pytest.mark.parametrize("kernel_dtype", ["float32", "bfloat16"])
def test_dense_in_bfloat16_sums_in_float32(kernel_dtype: str) -> None:
    x = normal(0, 4, 8, 256).astype(jnp.bfloat16)
    params = {"kernel": normal(1, 256, 16).astype(kernel_dtype), "bias": normal(2, 16)}

    def loss(params: Tree, x: Array) -> tuple[Array, Array]:
        output = dense(params, x)
        return (output.astype(jnp.float32) * normal(3, 4, 8, 16)).sum(), output

    (_, output), (grad_params, grad_x) = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(params, x)
    assert output.dtype == grad_x.dtype == jnp.bfloat16
    assert grad_params["kernel"].dtype == jnp.dtype(kernel_dtype)

    rows = np.asarray(x, np.float64).reshape(-1, 256)
    kernel = np.asarray(params["kernel"].astype(jnp.bfloat16), np.float64)
    cotangent = np.asarray(normal(3, 4, 8, 16).astype(jnp.bfloat16), np.float64).reshape(-1, 16)
    # The sums are nearly exact. They are rounded once to bfloat16, which has 8 bits of precision, so the error is half
    # a unit in the last place.
    for rounded, exact in ((output, rows @ kernel + np.asarray(params["bias"])), (grad_x, cotangent @ kernel.T)):
        np.testing.assert_allclose(np.asarray(rounded, np.float64).reshape(exact.shape), exact, rtol=2**-7, atol=0.1)
    tolerance = 1e-5 if kernel_dtype == "float32" else 2**-7
    np.testing.assert_allclose(
        np.asarray(grad_params["kernel"], np.float64), rows.T @ cotangent, rtol=tolerance, atol=1e-3
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gated_features_and_their_derivative_equal_the_formula(activation: str) -> None:
    def formula(x: jax.Array) -> jax.Array:
        return ACTIVATIONS[activation](x[..., :3]) * x[..., 3:]

    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(0), (2, 4, 6), jnp.float64)
        np.testing.assert_allclose(gated(x, activation), formula(x), atol=1e-12)
        gradients = [jax.grad(lambda x, f=f: jnp.sin(f(x)).sum())(x) for f in (lambda x: gated(x, activation), formula)]
        np.testing.assert_allclose(*gradients, atol=1e-12)
    assert gated(x.astype(jnp.bfloat16), activation).dtype == jnp.bfloat16


def test_gated_features_store_only_their_inputs() -> None:
    x = jax.random.normal(jax.random.key(0), (5, 8))
    residuals = jax.tree.leaves(jax.vjp(lambda x: gated(x, "gelu"), x)[1])
    assert sum(leaf.nbytes for leaf in residuals) == x.nbytes


def test_gelu_is_exact_and_has_the_exact_derivative() -> None:
    x = jnp.linspace(-5.0, 5.0, 101)
    expected = [0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in x.tolist()]
    np.testing.assert_allclose(gelu(x), expected, atol=1e-6)
    slopes = jax.vmap(jax.grad(gelu))(x)
    np.testing.assert_allclose(slopes, jax.vmap(jax.grad(lambda v: jax.nn.gelu(v, approximate=False)))(x), atol=1e-6)
    narrow = x.astype(jnp.bfloat16)
    assert gelu(narrow).dtype == jnp.bfloat16
    np.testing.assert_array_equal(gelu(narrow), gelu(narrow.astype(jnp.float32)).astype(jnp.bfloat16))


def plain_layer_norm(params: Tree, x: Array) -> Array:
    scale, bias = (jnp.broadcast_to(params[name], x.shape) for name in ("scale", "bias"))
    return jax.nn.standardize(x, epsilon=1e-5) * scale + bias


def test_layer_norm_equals_the_plain_formula_and_its_derivative() -> None:
    with jax.enable_x64(True):
        draw = np.random.default_rng(0).normal
        x, cotangent = (jnp.asarray(draw(size=(2, 3, 8))) for _ in range(2))
        params = {"scale": jnp.asarray(draw(size=8)), "bias": jnp.asarray(draw(size=8))}
        expected, backward = jax.vjp(plain_layer_norm, params, x)
        output, custom_backward = jax.vjp(lambda params, x: layer_norm(params, x, 1e-5), params, x)
        np.testing.assert_allclose(output, expected, atol=1e-14)
        for gradient, expected_gradient in zip(
            jax.tree.leaves(custom_backward(cotangent)), jax.tree.leaves(backward(cotangent)), strict=True
        ):
            np.testing.assert_allclose(gradient, expected_gradient, atol=1e-13)
        np.testing.assert_allclose(normalize(x, 1e-5), jax.nn.standardize(x, epsilon=1e-5), atol=1e-14)


def test_layer_norm_in_bfloat16_stores_no_float32_rows() -> None:
    x = normal(0, 4, 64).astype(jnp.bfloat16)
    params = {"scale": normal(1, 64), "bias": normal(2, 64)}
    output, backward = jax.vjp(lambda params, x: layer_norm(params, x, 1e-5), params, x)
    assert output.dtype == jnp.bfloat16
    assert [leaf.dtype for leaf in jax.tree.leaves(backward) if leaf.shape == x.shape] == [jnp.bfloat16]
    grad_params, grad_x = backward(normal(3, 4, 64).astype(jnp.bfloat16))
    assert grad_x.dtype == jnp.bfloat16
    wide = [array.astype(jnp.float32) for array in (x, normal(3, 4, 64).astype(jnp.bfloat16))]
    exact_params, exact_x = jax.vjp(plain_layer_norm, params, wide[0])[1](wide[1])
    np.testing.assert_allclose(grad_x.astype(jnp.float32), exact_x, rtol=0.02, atol=0.01)
    for name, exact in exact_params.items():
        assert grad_params[name].dtype == jnp.float32
        np.testing.assert_allclose(grad_params[name], exact, rtol=1e-4, atol=1e-4)


def test_scaled_features_equal_the_plain_product_and_its_derivative() -> None:
    with jax.enable_x64(True):
        draw = np.random.default_rng(0).normal
        x, cotangent, scale = (jnp.asarray(draw(size=size)) for size in ((2, 3, 8), (2, 3, 8), 8))
        expected, backward = jax.vjp(lambda x, scale: x * scale[None, None], x, scale)
        output, custom_backward = jax.vjp(scale_features, x, scale)
        np.testing.assert_allclose(output, expected, atol=1e-14)
        for gradient, expected_gradient in zip(custom_backward(cotangent), backward(cotangent), strict=True):
            np.testing.assert_allclose(gradient, expected_gradient, atol=1e-13)


def test_scaled_features_in_bfloat16_store_no_float32_rows() -> None:
    x, scale, cotangent = normal(0, 64, 8).astype(jnp.bfloat16), normal(1, 8), normal(2, 64, 8).astype(jnp.bfloat16)
    output, backward = jax.vjp(scale_features, x, scale)
    assert output.dtype == jnp.bfloat16
    assert [leaf.dtype for leaf in jax.tree.leaves(backward) if leaf.shape == x.shape] == [jnp.bfloat16]
    grad_x, grad_scale = backward(cotangent)
    assert (grad_x.dtype, grad_scale.dtype) == (jnp.bfloat16, jnp.float32)
    exact = (x.astype(jnp.float32) * cotangent.astype(jnp.float32)).sum(0)
    np.testing.assert_allclose(grad_scale, exact, rtol=1e-5, atol=1e-5)


def test_softmax_equals_jax_in_value_and_derivative() -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)) * 4)
        cotangent = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)))
        expected, backward = jax.vjp(jax.nn.softmax, x)
        output, custom_backward = jax.vjp(lambda x: softmax(x, x.dtype), x)
        np.testing.assert_array_equal(output, expected)
        np.testing.assert_allclose(custom_backward(cotangent)[0], backward(cotangent)[0], atol=1e-15)
    # The gradient with respect to masked entries is zero.
    masked = jnp.array([1.0, -jnp.inf, 2.0])
    np.testing.assert_array_equal(jax.grad(lambda x: softmax(x, x.dtype)[0])(masked)[1], 0.0)


def test_softmax_in_bfloat16_stores_only_its_result() -> None:
    scores = normal(0, 8, 64)
    weights, backward = jax.vjp(lambda x: softmax(x, "bfloat16"), scores)
    assert weights.dtype == jnp.bfloat16
    assert [leaf.dtype for leaf in jax.tree.leaves(backward) if leaf.shape == scores.shape] == [jnp.bfloat16]
    exact = jax.vjp(jax.nn.softmax, scores)[1](normal(1, 8, 64).astype(jnp.bfloat16).astype(jnp.float32))[0]
    (gradient,) = backward(normal(1, 8, 64).astype(jnp.bfloat16))
    assert gradient.dtype == jnp.float32
    np.testing.assert_allclose(gradient, exact, rtol=0.05, atol=2e-3)


def test_dropout_in_bfloat16_keeps_the_mean() -> None:
    output = dropout(jax.random.key(0), jnp.ones((64, 1024), jnp.bfloat16), 0.1)
    assert output.dtype == jnp.bfloat16
    assert set(np.unique(np.asarray(output, np.float32))) == {0.0, np.float32(jnp.bfloat16(1 / 0.9))}
    assert float((output == 0).mean()) == pytest.approx(0.1, abs=0.005)


def test_casting_a_trunk_keeps_its_layer_norms_and_pooler_in_float32(tiny_trunk: Trunk) -> None:
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
def test_random_bits_equal_jax(impl: str, shape: tuple[int, ...]) -> None:
    key = jax.random.fold_in(jax.random.key(5, impl=impl), 7)
    bits = jax.jit(random_bits, static_argnums=1)(key, shape)
    assert bits.dtype == jnp.uint32
    np.testing.assert_array_equal(bits, jax.random.bits(key, shape))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_bits_do_not_depend_on_the_default_precision(impl: str) -> None:
    key = jax.random.key(5, impl=impl)
    bits = random_bits(key, (3, 5))
    with jax.enable_x64(True):
        bits_with_x64 = random_bits(key, (3, 5))
    assert bits_with_x64.dtype == jnp.uint32
    np.testing.assert_array_equal(bits, bits_with_x64)


def test_random_bits_can_have_more_than_2_to_the_32_entries() -> None:
    shape = (2048, 16, 512, 512)
    assert jax.eval_shape(lambda key: random_bits(key, shape), jax.random.key(5)).shape == shape
