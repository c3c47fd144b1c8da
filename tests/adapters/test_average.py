"""Averaged adapters equal the weighted mean of their members' outputs or parameters, and work in models."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts
from hypothesis import example, given, settings
from hypothesis import strategies as st

from afjax.adapters.average import average_adapters
from afjax.adapters.bottleneck import bottleneck
from afjax.adapters.kinds import dense_kind, init_adapter, layer_params
from afjax.config.adapters import ADAPTER_PRESETS, DENSE_LAYERS, Adapter, AdapterConfig, Ia3Config, LoraConfig
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.stored import load_adapter
from afjax.nn.layers import dense
from afjax.trees import Tree, flatten, map_with_path, named_key
from afjax.trunk.pretrained import Trunk
from tests.analysis.random_models import make
from tests.small_trunk import SMALL_TRUNK

pytestmark = pytest.mark.slow

TRUNK = SMALL_TRUNK
WEIGHTS = st.lists(st.floats(-2, 2), min_size=1, max_size=4)


@pytest.fixture(scope="module", autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def draw(config: Adapter, seed: int) -> Tree:
    """Draws random adapter parameters as NumPy arrays, in float64 if JAX has it enabled."""
    shapes = jax.eval_shape(lambda: init_adapter(jax.random.key(0), config, TRUNK))
    return map_with_path(
        lambda path, leaf: np.asarray(jax.random.normal(named_key(jax.random.key(seed), path), leaf.shape)), shapes
    )


def draw_all(configs: Sequence[Any]) -> list[tuple[Any, Tree]]:
    return [(config, draw(config, seed)) for seed, config in enumerate(configs)]


def value_and_gradient(function: Any, x: jax.Array) -> list[np.ndarray]:
    def loss(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        output = function(x)
        return jnp.sum(jnp.sin(output)), output

    (_, output), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(x)
    return [np.asarray(output), np.asarray(gradient)]


@settings(max_examples=8, deadline=None)
@given(WEIGHTS, st.sampled_from(["relu", "gelu", "tanh"]), st.sampled_from(["ffn", "both"]))
def test_bottleneck_output_is_the_weighted_sum_of_member_outputs(
    weights: list[float], activation: Any, position: Any
) -> None:
    configs = [
        AdapterConfig(size=size, scaling=scaling, activation=activation, position=position, layers=(0, 2))
        for size, scaling, _ in zip((3, 1, 4, 2), (1.0, 2.0, 0.5, -1.0), weights, strict=False)
    ]
    adapters = draw_all(configs)
    config, tree = average_adapters(adapters, weights)
    assert config.size == sum(config.size for config in configs)
    x = jax.random.normal(jax.random.key(9), (2, 5, 12))
    for slot in config.slots:

        def plain(x: jax.Array, slot: str = slot) -> jax.Array:
            outputs = [bottleneck(layer_params(tree, given, 2, slot), x, given) for given, tree in adapters]
            return sum((w * output for w, output in zip(weights, outputs, strict=True)), jnp.zeros_like(x))

        def fast(x: jax.Array, slot: str = slot) -> jax.Array:
            return bottleneck(layer_params(tree, config, 2, slot), x, config)

        for result, expected in zip(value_and_gradient(fast, x), value_and_gradient(plain, x), strict=True):
            np.testing.assert_allclose(result, expected, atol=1e-11)


@settings(max_examples=4, deadline=None)
@given(WEIGHTS, st.sampled_from(["lora", "wide lora", "ia3"]))
@example([0.5, -1.0, 2.0], "wide lora")
def test_dense_layer_change_is_the_weighted_sum_of_member_changes(weights: list[float], kind: str) -> None:
    every = tuple(DENSE_LAYERS)
    configs = [
        Ia3Config(target_modules=every) if kind == "ia3" else LoraConfig(rank=rank, alpha=alpha, target_modules=every)
        for rank, alpha, _ in zip(
            (8, 7, 6, 9) if kind == "wide lora" else (2, 1, 3, 4), (2.0, 3.0, 1.0, 8.0), weights, strict=False
        )
    ]
    adapters = draw_all(configs)
    config, tree = average_adapters(adapters, weights)
    if isinstance(config, LoraConfig):
        assert config.rank == min(12, sum(config.rank for config in configs))
    for name, (block, dense_layer) in DENSE_LAYERS.items():
        inputs, outputs = {"intermediate": (12, 16), "output": (16, 12)}.get(name, (12, 12))
        keys = jax.random.split(jax.random.key(5), 3)
        layer = {
            "kernel": jax.random.normal(keys[0], (inputs, outputs)),
            "bias": jax.random.normal(keys[1], (outputs,)),
        }
        x = jax.random.normal(keys[2], (2, 5, inputs))

        def change(config: Any, tree: Tree, x: jax.Array, name: Any = name, layer: Tree = layer) -> jax.Array:
            block, dense_layer = DENSE_LAYERS[name]
            params = jax.tree.map(lambda leaf: jnp.asarray(leaf[1]), tree[block][dense_layer])
            with_adapter = dense_kind(config).apply(params, config, name, layer, x)
            return with_adapter - dense(layer, x)

        def plain(x: jax.Array, change: Any = change) -> jax.Array:
            changes = [w * change(config, tree, x) for w, (config, tree) in zip(weights, adapters, strict=True)]
            return sum(changes[1:], changes[0])

        fast = value_and_gradient(lambda x, change=change: change(config, tree, x), x)
        for result, expected in zip(fast, value_and_gradient(plain, x), strict=True):
            np.testing.assert_allclose(result, expected, atol=1e-11)


def test_weights_are_equal_by_default() -> None:
    adapters = draw_all([AdapterConfig(size=2)] * 4)
    for of in ("outputs", "parameters"):
        default, explicit = average_adapters(adapters, of=of), average_adapters(adapters, [0.25] * 4, of=of)
        assert default[0] == explicit[0]
        assert flatten(default[1]).keys() == flatten(explicit[1]).keys()
        jax.tree.map(np.testing.assert_array_equal, default[1], explicit[1])


@pytest.mark.parametrize("preset", ["pfeiffer", "houlsby", "pals", "lhuc", "lora", "ia3", "top_layer"])
def test_parameters_of_every_kind_are_averaged(preset: str) -> None:
    config: Any = ADAPTER_PRESETS[preset]
    if preset == "pals":
        config = type(config)(size=4, num_heads=2)
    first, second = draw(config, 1), draw(config, 2)
    averaged, tree = average_adapters([(config, first), (config, second)], [0.75, 0.25], of="parameters")
    assert averaged == config
    jax.tree.map(lambda a, b, c: np.testing.assert_allclose(c, 0.75 * a + 0.25 * b, atol=1e-12), first, second, tree)


def test_float32_stays_float32() -> None:
    for config in (AdapterConfig(size=2), LoraConfig(rank=2), Ia3Config()):
        adapters = [
            (config, jax.tree.map(lambda leaf: leaf.astype(np.float32), tree)) for _, tree in draw_all([config] * 2)
        ]
        averages: tuple[Any, ...] = ("outputs", "parameters")
        for of in averages:
            _, tree = average_adapters(adapters, [0.3, 0.7], of=of)
            assert {leaf.dtype for leaf in flatten(tree).values()} == {np.dtype(np.float32)}


SMALL = AdapterConfig(size=2)


@pytest.mark.parametrize(
    ("configs", "options", "facts"),
    [
        ([], {}, ["no adapters"]),
        ([SMALL] * 2, {"weights": [1.0]}, ["[1.0]", "2"]),
        ([SMALL] * 2, {"weights": [1.0, float("nan")]}, ["nan"]),
        ([SMALL] * 2, {"weights": ["x", 1.0]}, ["['x', 1.0]", "2"]),
        ([SMALL] * 2, {"weights": [None, 1.0]}, ["[None, 1.0]", "2"]),
        ([SMALL] * 2, {"of": "logits"}, ["logits", "outputs", "parameters"]),
        ([SMALL] * 2, {"of": "parameters", "weights": [1.0, 0.5]}, ["1.5"]),
        ([SMALL, AdapterConfig(size=3)], {"of": "parameters"}, ["size=2", "size=3"]),
        ([SMALL, LoraConfig()], {}, ["bottleneck", "lora"]),
        ([SMALL, AdapterConfig(size=2, activation="gelu")], {}, ["activation", "relu", "gelu"]),
        ([SMALL, AdapterConfig(size=2, layers=(1,))], {}, ["layers", "(1,)"]),
        ([SMALL, AdapterConfig(size=2, position="both")], {}, ["position"]),
        ([AdapterConfig(size=2, new_layer_norm="before")] * 2, {}, ["new_layer_norm"]),
        ([ADAPTER_PRESETS["houlsby"]], {}, ["layer_norms"]),
        ([ADAPTER_PRESETS["lhuc"]] * 2, {}, ["lhuc", "parameters"]),
        ([ADAPTER_PRESETS["top_layer"]] * 2, {}, ["top_layer", "parameters"]),
        ([LoraConfig(), LoraConfig(target_modules=("key",))], {}, ["target_modules", "key"]),
        ([Ia3Config(), Ia3Config(layers=(0,))], {}, ["layers"]),
    ],
)
def test_adapters_that_cannot_be_averaged_are_refused(
    configs: list[Any], options: dict[str, Any], facts: list[str]
) -> None:
    with pytest.raises(UserError) as refused:
        average_adapters(draw_all(configs), **options)
    assert has_facts(str(refused.value), *facts)


def test_parameters_from_two_trunks_are_not_averaged() -> None:
    tree, other = draw(SMALL, 1), draw(SMALL, 2)
    other["ffn"]["up"]["bias"] = other["ffn"]["up"]["bias"][:, :8]
    with pytest.raises(UserError) as refused:
        average_adapters([(SMALL, tree), (SMALL, other)], of="parameters")
    assert has_facts(str(refused.value), "ffn/up/bias", "(3, 8)", "(3, 12)")


@pytest.mark.parametrize("config", [SMALL, LoraConfig(rank=2), Ia3Config()])
@pytest.mark.parametrize("axis", [0, -1])
def test_outputs_from_two_trunks_are_not_averaged(config: Any, axis: int) -> None:
    tree = draw(config, 1)

    def smaller(path: str, leaf: np.ndarray) -> np.ndarray:
        inner = path.endswith(("down/kernel", "down/bias"))
        return leaf if inner and axis == -1 else leaf.take(range(leaf.shape[axis] - 1), axis=axis)

    with pytest.raises(UserError, match="same trunk"):
        average_adapters([(config, tree), (config, map_with_path(smaller, draw(config, 2)))])


def test_model_with_an_average_is_saved_and_predicts(tiny_trunk: Trunk, tmp_path: Path) -> None:
    with jax.enable_x64(False):
        model = make(tiny_trunk, AdapterConfig(size=4), names=("a",))
        own = (model.model.adapters[0][1], model.params["adapters"]["a"])
        nothing = (own[0], jax.tree.map(np.zeros_like, own[1]))
        texts = ["all of the cats", "some of the dogs"]
        same = model.with_adapter(average_adapters([own, nothing], [1.0, 5.0]))
        np.testing.assert_allclose(same.predict(texts).logits, model.predict(texts).logits, atol=1e-5)
        doubled = model.with_adapter(average_adapters([own, own], [1.5, 0.5]))
        assert np.abs(doubled.predict(texts).logits - model.predict(texts).logits).max() > 1e-3
        # The replaced adapter's scores do not apply to the average.
        assert not doubled.metrics
        doubled.renamed("twice").save(tmp_path / "store")
        again = load_task_model(tmp_path / "store", tiny_trunk, adapter="twice")
        np.testing.assert_array_equal(again.predict(texts).logits, doubled.predict(texts).logits)
        config, _ = load_adapter(tmp_path / "store", "twice")
        assert isinstance(config, AdapterConfig)
        assert config.size == 8
        # The original model is unchanged.
        assert model.model.adapters[0][1] == AdapterConfig(size=4)


def test_adapter_that_does_not_fit_the_model_is_refused(tiny_trunk: Trunk) -> None:
    with jax.enable_x64(False):
        model, fused = make(tiny_trunk, SMALL), make(tiny_trunk, SMALL, names=("a", "b"), fused=True)
        for changed, adapter, facts in (
            (model, (SMALL, draw(SMALL, 1)), ["ffn/", "config"]),
            (model, (AdapterConfig(size=3), model.params["adapters"]["a"]), ["ffn/down/bias"]),
            (fused, (SMALL, model.params["adapters"]["a"]), ["fusion"]),
        ):
            with pytest.raises(UserError) as refused:
                changed.with_adapter(adapter)
            assert has_facts(str(refused.value), *facts)


def test_a_single_adapter_is_not_a_list_of_adapters() -> None:
    with pytest.raises(UserError):
        average_adapters((SMALL, {"ffn": {}}))  # type: ignore[arg-type]
