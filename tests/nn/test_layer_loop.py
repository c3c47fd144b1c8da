"""The loop over layers equals JAX's scan in value and gradient.

The loop skips unneeded computation. Complete models with the loop equal models in straight-line code.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import ADAPTER_PRESETS, Adapter, AdapterConfig, PalConfig
from afjax.config.fusion import FusionConfig
from afjax.fusion.parameters import init_fusion
from afjax.model.heads import init_head
from afjax.model.model import Model, trunk_layer_norms
from afjax.nn.layer_loop import loop_over_layers
from afjax.nn.layers import ACTIVATIONS, dropout
from afjax.tpu.program import count_work
from afjax.trees import Tree, flatten, map_with_path, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk
from afjax.trunk.layers import fastest_form

pytestmark = pytest.mark.slow

DEPTH, ROWS, SIZE = 4, 3, 5
PARTS = ("x", "kernel", "bias", "shared")


def run_layer(x: jax.Array, layer_params: Any, shared_params: Any) -> tuple[jax.Array, Any]:
    """Runs one layer of the tests.

    Its parameters include a random key, an integer and None, which have no gradients.
    """
    assert layer_params["missing"] is None
    hidden = jnp.tanh(x @ layer_params["kernel"] + layer_params["bias"][None])
    noise = jax.random.normal(layer_params["key"], hidden.shape, hidden.dtype)
    scores = jnp.sin(hidden * shared_params["shared"][None])
    return jnp.where(shared_params["mask"][:, None], hidden + scores * noise, x) * layer_params["factor"], {
        "scores": scores
    }


def loop_with_scan(run_layer: Any, x: jax.Array, stacked_params: Any, shared_params: Any) -> Any:
    return jax.lax.scan(lambda x, layer_params: run_layer(x, layer_params, shared_params), x, stacked_params)


@pytest.fixture
def inputs() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    shapes = {"x": (ROWS, SIZE), "kernel": (DEPTH, SIZE, SIZE), "bias": (DEPTH, SIZE), "shared": (SIZE,)}
    return {name: generator.normal(size=shape) for name, shape in shapes.items()}


def loss(loop: Callable[..., Any], layer: Any, uses: str, trained: dict[str, Any], frozen: dict[str, Any]) -> jax.Array:
    parts = {**frozen, **trained}
    stacked_params = {name: parts[name] for name in ("kernel", "bias")}
    stacked_params |= {
        "key": jax.random.split(jax.random.key(1), DEPTH),
        "factor": jnp.arange(1, 1 + DEPTH),
        "missing": None,
    }
    shared_params = {"shared": parts["shared"], "mask": jnp.array([True, False, True])}
    x, layer_outputs = loop(layer, parts["x"], stacked_params, shared_params)
    scores = layer_outputs["scores"] if "scores" in uses else jnp.zeros(1)
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
def test_loop_equals_scan_in_value_and_gradient(
    inputs: dict[str, Any], uses: str, remat: bool, subsets: list[tuple[str, ...]]
) -> None:
    layer = jax.checkpoint(run_layer, prevent_cse=False) if remat else run_layer
    with jax.enable_x64(True):
        arrays = {name: jnp.asarray(array) for name, array in inputs.items()}
        expected = jax.jit(jax.value_and_grad(functools.partial(loss, loop_with_scan, layer, uses)))
        expected_value, expected_gradients = expected(arrays, {})
        for names in subsets:
            trained = {name: arrays[name] for name in names}
            frozen = {name: array for name, array in arrays.items() if name not in names}
            ours = jax.jit(jax.value_and_grad(functools.partial(loss, loop_over_layers, layer, uses)))
            value, gradients = ours(trained, frozen)
            np.testing.assert_allclose(value, expected_value, rtol=1e-12)
            assert sorted(gradients) == sorted(names)
            for name, gradient in gradients.items():
                assert gradient.dtype == np.float64
                np.testing.assert_allclose(gradient, expected_gradients[name], rtol=1e-10, atol=1e-12, err_msg=name)


def test_vmapped_and_compiled_gradients_equal_plain_gradients(inputs: dict[str, Any]) -> None:
    loop_loss = functools.partial(loss, loop_over_layers, run_layer, "x")
    frozen = {name: jnp.asarray(array, jnp.float32) for name, array in inputs.items()}
    trained = {name: frozen.pop(name) for name in ("kernel", "shared")}
    halved = jax.tree.map(lambda leaf: leaf / 2, trained)
    gradients, halved_gradients = (jax.grad(loop_loss)(tree, frozen) for tree in (trained, halved))
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf / 2]), trained)
    batched = jax.vmap(jax.grad(loop_loss), in_axes=(0, None))(both, frozen)
    compiled = jax.grad(jax.jit(loop_loss))(trained, frozen)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(batched[name][0], gradient, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(batched[name][1], halved_gradients[name], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(compiled[name], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("first", ["x", "kernel"])
def test_one_compiled_loop_is_differentiated_with_respect_to_different_inputs(
    inputs: dict[str, Any], first: str
) -> None:
    bias = jnp.zeros((DEPTH, SIZE))

    def layer(x: jax.Array, layer_params: Any, shared_params: Any) -> tuple[jax.Array, None]:
        return jnp.tanh(x @ layer_params["kernel"] + layer_params["bias"][None]), None

    def both(loop: Any, x: jax.Array, kernel: jax.Array) -> jax.Array:
        run = jax.jit(lambda x, kernel: loop(layer, x, {"kernel": kernel, "bias": bias}, None)[0])
        fixed = jnp.ones_like(x)
        # The gradient with respect to x needs the complete backward pass of the bottom layer. The gradient with respect
        # to the kernel does not.
        parts = [run(x, kernel).sum(), jnp.square(run(fixed, kernel)).sum()]
        return parts[0] * parts[1] if first == "x" else parts[1] * parts[0]

    arrays = [jnp.asarray(inputs[name], jnp.float32) for name in ("x", "kernel")]
    gradients, expected_gradients = (
        jax.grad(both, argnums=(1, 2))(loop, *arrays) for loop in (loop_over_layers, loop_with_scan)
    )
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        assert np.abs(expected).max() > 1e-3
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("trained", [("bias",), ("shared",), PARTS])
def test_loops_of_one_or_two_layers_equal_scan(inputs: dict[str, Any], trained: tuple[str, ...], depth: int) -> None:
    frozen_arrays = {name: jnp.asarray(array, jnp.float32) for name, array in inputs.items()}
    trained_arrays = {name: frozen_arrays.pop(name) for name in trained}

    def gradients(loop: Any) -> Any:
        def shallow(run_layer: Any, x: jax.Array, stacked_params: Any, shared_params: Any) -> Any:
            return loop(run_layer, x, jax.tree.map(lambda leaf: leaf[:depth], stacked_params), shared_params)

        return jax.grad(functools.partial(loss, shallow, run_layer, "x and scores"))(trained_arrays, frozen_arrays)

    ours, expected = gradients(loop_over_layers), gradients(loop_with_scan)
    for name, gradient in expected.items():
        np.testing.assert_allclose(ours[name], gradient, rtol=1e-4, atol=1e-5)


def test_layers_without_residuals_have_gradients(inputs: dict[str, Any]) -> None:
    def run(bias: jax.Array) -> jax.Array:
        return loop_over_layers(lambda x, bias, _: (x + bias[None], None), jnp.zeros((ROWS, SIZE)), bias, None)[0].sum()

    assert np.array_equal(jax.grad(run)(jnp.asarray(inputs["bias"])), np.full((DEPTH, SIZE), ROWS))


@pytest.mark.parametrize(
    ("trained", "products"),
    [
        # The forward pass has one matrix product per layer. The backward pass has one product per layer for the
        # gradient with respect to the layer's input, and one for the gradient with respect to its kernel. The bottom
        # layer's input needs no gradient unless x is trained.
        (("bias",), DEPTH + DEPTH - 1),
        (("kernel",), DEPTH + DEPTH - 1 + DEPTH),
        (("shared",), DEPTH + DEPTH - 1),
        (("x",), DEPTH + DEPTH),
        (PARTS, DEPTH + DEPTH + DEPTH),
    ],
)
def test_backward_pass_computes_nothing_below_the_lowest_trained_layer(
    inputs: dict[str, Any], trained: tuple[str, ...], products: int
) -> None:
    frozen_arrays = {name: jnp.asarray(array, jnp.float32) for name, array in inputs.items()}
    trained_arrays = {name: frozen_arrays.pop(name) for name in trained}
    gradient = jax.jit(jax.grad(functools.partial(loss, loop_over_layers, run_layer, "x")))
    work = count_work(gradient.lower(trained_arrays, frozen_arrays).compile().as_text())
    assert work.matmul_flops == products * 2 * ROWS * SIZE * SIZE


def test_inputs_of_layers_are_not_copied_as_residuals(inputs: dict[str, Any]) -> None:
    def layer(x: jax.Array, layer_params: Any, shared_params: Any) -> tuple[jax.Array, None]:
        return jnp.sin(x @ layer_params["kernel"] + layer_params["bias"][None]), None

    def run(bias: jax.Array) -> jax.Array:
        return loop_over_layers(layer, x, {"kernel": kernel, "bias": bias}, None)[0]

    x, kernel, bias = (jnp.asarray(inputs[name], jnp.float32) for name in ("x", "kernel", "bias"))
    residuals = jax.tree.leaves(jax.vjp(run, bias)[1])
    # The residuals are the kernels, which are not copied, and each layer's derivative of the sine. One more residual
    # has no elements. Its shape stores the number of layers, and the number of layers whose input needs a gradient.
    assert sorted(leaf.shape for leaf in residuals if leaf.size) == [(DEPTH, ROWS, SIZE), (DEPTH, SIZE, SIZE)]
    assert any(leaf is kernel for leaf in residuals)


@pytest.mark.parametrize("name", ["relu", "gelu", "dropout"])
def test_constants_are_not_stored_as_residuals(inputs: dict[str, Any], name: str) -> None:
    def layer(x: jax.Array, bias: jax.Array, shared_params: Any) -> tuple[jax.Array, None]:
        x = x + bias[None]
        return dropout(jax.random.key(0), x, 0.5) if name == "dropout" else ACTIVATIONS[name](x), None

    x, bias = (jnp.asarray(inputs[name], jnp.float32) for name in ("x", "bias"))
    residuals = jax.tree.leaves(jax.vjp(lambda bias: loop_over_layers(layer, x, bias, None)[0], bias)[1])
    # The only residual is the mask of relu's positive inputs, the input of gelu, or dropout's mask.
    dtype = np.dtype("float32" if name == "gelu" else "bool")
    assert [(leaf.shape, leaf.dtype) for leaf in residuals if leaf.size] == [((DEPTH, ROWS, SIZE), dtype)]


# Tests of complete models.

TRUNK = TrunkConfig(
    family="bert",
    vocab_size=30,
    hidden_size=12,
    num_layers=4,
    num_heads=2,
    intermediate_size=16,
    max_positions=16,
    type_vocab_size=2,
    init_scale=0.3,
)
PAL = PalConfig(size=6, num_heads=2)
SMALL = AdapterConfig(size=3)
FUSION = FusionConfig(init_scale=0.4)


@pytest.mark.parametrize(
    ("adapters", "fusion", "trained"),
    [
        pytest.param([SMALL], None, ["adapters"], id="adapter"),
        pytest.param([AdapterConfig(size=3, layers=(1, 2, 3))], None, ["adapters"], id="adapter in upper layers"),
        pytest.param([ADAPTER_PRESETS["houlsby"]], None, ["adapters"], id="adapter with LayerNorms"),
        pytest.param([AdapterConfig(size=3, position="both")], None, ["adapters", "trunk"], id="adapter and trunk"),
        pytest.param([PAL], None, ["adapters"], id="PAL"),
        pytest.param([PAL], None, ["adapters", "trunk"], id="PAL and trunk"),
        pytest.param([SMALL, AdapterConfig(size=2)], FUSION, ["fusion"], id="fusion"),
        pytest.param([SMALL] * 3, dataclasses.replace(FUSION, subset=2), ["fusion"], id="fusion of a subset"),
        pytest.param([SMALL] * 2, FUSION, ["fusion", "adapters", "trunk"], id="fusion, adapters and trunk"),
        pytest.param([PAL, PAL], FUSION, ["fusion", "adapters"], id="fusion and its PALs"),
    ],
)
def test_gradients_of_looped_models_equal_straight_line_code(
    adapters: list[Adapter], fusion: FusionConfig | None, trained: list[str]
) -> None:
    key = jax.random.key(1)
    named = tuple((f"a{index}", config) for index, config in enumerate(adapters))
    model = Model(
        trunk=TRUNK,
        head_name="task",
        adapters=named,
        fusion_name="mix" if fusion else "",
        fusion=fusion or FusionConfig(),
    )
    trunk = jax.jit(init_trunk, static_argnums=1)(key, TRUNK)
    size = {"hidden_size": TRUNK.hidden_size, "num_layers": TRUNK.num_layers}
    params: Tree = {
        "trunk": trunk,
        "adapters": {name: init_adapter(named_key(key, name), config, TRUNK) for name, config in named},
        "fusion": {"mix": init_fusion(key, fusion, adapters[0], **size)} if fusion else {},
        "heads": {"task": init_head(key, model.head, 3, trunk=trunk)},
    }
    if adapters == [ADAPTER_PRESETS["houlsby"]]:
        params["adapters"]["a0"]["layer_norms"] = trunk_layer_norms(trunk)
    generator = np.random.default_rng(0)
    tokens = jnp.asarray(generator.integers(1, 30, (2, 6)), jnp.int32)
    batch = {"tokens": tokens, "types": jnp.zeros_like(tokens), "mask": jnp.arange(6)[None] < jnp.array([[6], [4]])}

    with jax.enable_x64(True):
        # Add noise, so that every leaf affects the outputs.
        wide = map_with_path(lambda _, leaf: jnp.asarray(leaf + 0.1 * generator.normal(size=leaf.shape)), params)
        part = {root: wide[root] for root in trained}

        def gradients(scan_layers: bool) -> dict[str, Any]:
            def loss(part: Tree) -> jax.Array:
                full = {**wide, **part}
                layers = fastest_form(full["trunk"]["layers"], scan=scan_layers)
                full["trunk"] = {**full["trunk"], "layers": layers}
                run_model = dataclasses.replace(model, scan_layers=scan_layers)
                return jnp.sin(run_model(full, batch, key=jax.random.key(2)).logits).sum()

            return flatten(jax.jit(jax.grad(loss))(part))

        ours, expected = gradients(True), gradients(False)
        assert ours.keys() == expected.keys()
        assert max(np.abs(leaf).max() for leaf in expected.values()) > 1e-2
        for path, gradient in expected.items():
            assert gradient.dtype == np.float64
            np.testing.assert_allclose(ours[path], gradient, rtol=1e-8, atol=1e-10, err_msg=path)
