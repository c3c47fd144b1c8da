"""The loop over layers equals JAX's scan, in value and gradient, and does without what is not asked for."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.model.layer_loop import loop_over_layers
from afjax.tpu.program import count_work

DEPTH, ROWS, SIZE = 4, 3, 5
PARTS = ("x", "kernel", "bias", "shared")


def run_layer(x: jax.Array, of_one: Any, of_all: Any) -> tuple[jax.Array, Any]:
    """A layer with parameters of its own and shared ones, a key, a whole number, and a part that is not there."""
    assert of_one["missing"] is None
    hidden = jnp.tanh(x @ of_one["kernel"] + of_one["bias"][None])
    noise = jax.random.normal(of_one["key"], hidden.shape, hidden.dtype)
    scores = jnp.sin(hidden * of_all["shared"][None])
    return jnp.where(of_all["mask"][:, None], hidden + scores * noise, x) * of_one["factor"], {"scores": scores}


def by_scan(run_layer: Any, x: jax.Array, of_each: Any, of_all: Any) -> Any:
    return jax.lax.scan(lambda x, of_one: run_layer(x, of_one, of_all), x, of_each)


@pytest.fixture
def inputs() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    shapes = {"x": (ROWS, SIZE), "kernel": (DEPTH, SIZE, SIZE), "bias": (DEPTH, SIZE), "shared": (SIZE,)}
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def loss(loop: Callable[..., Any], layer: Any, uses: str, trained: dict[str, Any], frozen: dict[str, Any]) -> jax.Array:
    parts = {**frozen, **trained}
    of_each = {name: parts[name] for name in ("kernel", "bias")}
    of_each |= {"key": jax.random.split(jax.random.key(1), DEPTH), "factor": jnp.arange(1, 1 + DEPTH), "missing": None}
    of_all = {"shared": parts["shared"], "mask": jnp.array([True, False, True])}
    x, others = loop(layer, parts["x"], of_each, of_all)
    scores = others["scores"] if "scores" in uses else jnp.zeros(1)
    return jnp.cos(x if "x" in uses else jnp.zeros(1)).sum() + jnp.square(scores).sum()


SUBSETS = [names for num in range(1, 5) for names in itertools.combinations(PARTS, num)]


@pytest.mark.parametrize(
    ("uses", "remat", "subsets"),
    [
        ("x and scores", False, SUBSETS),
        ("x and scores", True, SUBSETS[:4]),
        ("x", False, SUBSETS[:4]),
        ("scores", False, SUBSETS[:4]),
    ],
)
def test_equals_scan_in_value_and_gradient(
    inputs: dict[str, Any], uses: str, remat: bool, subsets: list[tuple[str, ...]]
) -> None:
    layer = jax.checkpoint(run_layer, prevent_cse=False) if remat else run_layer
    with jax.enable_x64(True):
        arrays = {name: jnp.asarray(array) for name, array in inputs.items()}
        of_scan = jax.jit(jax.value_and_grad(functools.partial(loss, by_scan, layer, uses)))
        value, gradients = of_scan(arrays, {})
        for trained in subsets:
            given = {name: arrays[name] for name in trained}
            frozen = {name: array for name, array in arrays.items() if name not in trained}
            ours = jax.jit(jax.value_and_grad(functools.partial(loss, loop_over_layers, layer, uses)))(given, frozen)
            np.testing.assert_allclose(ours[0], value, rtol=1e-12)
            assert sorted(ours[1]) == sorted(trained)
            for name, gradient in ours[1].items():
                assert gradient.dtype == np.float64
                np.testing.assert_allclose(gradient, gradients[name], rtol=1e-10, atol=1e-12, err_msg=name)


def test_a_batch_of_gradients_and_the_gradient_of_a_compiled_loop_are_the_same(inputs: dict[str, Any]) -> None:
    of_loop = functools.partial(loss, loop_over_layers, run_layer, "x")
    parts = {name: jnp.asarray(array, jnp.float32) for name, array in inputs.items()}
    trained = {name: parts.pop(name) for name in ("kernel", "shared")}
    expected = jax.grad(of_loop)(trained, parts)
    twice = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), trained)
    batched = jax.vmap(jax.grad(of_loop), in_axes=(0, None))(twice, parts)
    compiled = jax.grad(jax.jit(of_loop))(trained, parts)
    for name, gradient in expected.items():
        np.testing.assert_allclose(batched[name][0], gradient, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(compiled[name], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("trained", "products"),
    [
        # Forwards one a layer. Backwards one a layer towards its input and one towards its kernel.
        (("bias",), DEPTH + DEPTH - 1),
        (("kernel",), DEPTH + DEPTH - 1 + DEPTH),
        (("x",), DEPTH + DEPTH),
        (PARTS, DEPTH + DEPTH + DEPTH),
    ],
)
def test_nothing_is_computed_below_the_lowest_that_is_trained(
    inputs: dict[str, Any], trained: tuple[str, ...], products: int
) -> None:
    parts = {name: jnp.asarray(array, jnp.float32) for name, array in inputs.items()}
    given = {name: parts.pop(name) for name in trained}
    gradient = jax.jit(jax.grad(functools.partial(loss, loop_over_layers, run_layer, "x")))
    work = count_work(gradient.lower(given, parts).compile().as_text())
    assert work.matmul_flops == products * 2 * ROWS * SIZE * SIZE


def test_what_layers_are_given_is_not_kept_again(inputs: dict[str, Any]) -> None:
    def layer(x: jax.Array, of_one: Any, of_all: Any) -> tuple[jax.Array, None]:
        return jnp.sin(x @ of_one["kernel"] + of_one["bias"][None]), None

    def run(bias: jax.Array) -> jax.Array:
        return loop_over_layers(layer, x, {"kernel": kernel, "bias": bias}, None)[0]

    x, kernel, bias = (jnp.asarray(inputs[name], jnp.float32) for name in ("x", "kernel", "bias"))
    kept = jax.tree.leaves(jax.vjp(run, bias)[1])
    # The kernels as they are, and of each layer the sine's derivative; of no bytes what says how far to go.
    assert sorted(leaf.shape for leaf in kept if leaf.size) == [(DEPTH, ROWS, SIZE), (DEPTH, SIZE, SIZE)]
    assert any(leaf is kernel for leaf in kept)
