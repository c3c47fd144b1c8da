"""LoRA and (IA)³ match their formulas, can be merged into the trunk, and work in models."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.adapters import lora
from afjax.adapters.kinds import dense_kind, init_adapter, merge_adapter
from afjax.config.adapters import DENSE_LAYERS, AdapterConfig, Ia3Config, InDenseLayers, LoraConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.model import Model
from afjax.model.setup import single_setup
from afjax.model.task_model import TaskModel
from afjax.tasks.load import rows_from_lists
from afjax.trees import Tree, flatten, map_with_path, named_key
from afjax.trunk.encoder import init_trunk
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk
from tests.analysis.random_models import make
from tests.small_trunk import SMALL_TRUNK

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
TRUNK = SMALL_TRUNK
EVERY_LAYER = tuple(DENSE_LAYERS)
CONFIGS: dict[str, InDenseLayers] = {
    "lora": LoraConfig(rank=2, alpha=3.0),
    "lora of every dense layer": LoraConfig(target_modules=EVERY_LAYER, rank=3),
    "lora of the upper layer's keys": LoraConfig(target_modules=("key",), rank=2, layers=(2,)),
    "ia3": Ia3Config(),
    "ia3 of every dense layer": Ia3Config(target_modules=EVERY_LAYER, layers=(0, 2)),
}
MASK = np.array([[True] * 5, [True] * 3 + [False] * 2])
BATCH = {"tokens": np.arange(10).reshape(2, 5) + 4, "types": np.zeros((2, 5), int), "mask": MASK}


def draw(tree: Tree, seed: int = 1) -> Tree:
    """Replaces the leaves of a tree with random values of the same shapes."""
    return map_with_path(
        lambda path, leaf: np.asarray(jax.random.normal(named_key(jax.random.key(seed), path), leaf.shape)), tree
    )


def on_device(*arguments: Any) -> list[Any]:
    """Converts NumPy arrays and tree leaves in the arguments to JAX arrays."""
    return [
        jax.tree.map(jnp.asarray, argument) if isinstance(argument, dict | np.ndarray) else argument
        for argument in arguments
    ]


def random_params(config: InDenseLayers | None, pooling: Any = "first") -> tuple[Model, Tree]:
    """Builds a model with random parameters, and with one adapter unless ``config`` is None.

    The parameters are float64 if JAX has it enabled, and float32 otherwise.
    """
    method = Method(partition="head", head=HeadConfig(pooling=pooling))
    if config is not None:
        method = dataclasses.replace(method, partition="adapter", adapter=config)
    setup = single_setup(method, TRUNK, name="a", reads="pooled", num_outputs=3)
    params = setup.init(KEY, jax.jit(init_trunk, static_argnums=1)(KEY, TRUNK))
    if config is not None:
        params["adapters"]["a"] = draw(params["adapters"]["a"])
    return setup.model, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(float)), params)


def by_hand(config: InDenseLayers, name: str, params: Tree, layer: Tree, x: np.ndarray) -> np.ndarray:
    """Computes a dense layer with LoRA or (IA)³ in NumPy, from the formula in the method's paper."""
    if isinstance(config, LoraConfig):
        a, b = params["down"]["kernel"], params["up"]["kernel"]
        return x @ layer["kernel"] + layer["bias"] + config.alpha / config.rank * (x @ a @ b)
    if name == "output":
        return (x * params["scale"]) @ layer["kernel"] + layer["bias"]
    return (x @ layer["kernel"] + layer["bias"]) * params["scale"]


def test_lora_has_two_matrices_per_dense_layer_and_starts_equal_to_the_trunk() -> None:
    config = LoraConfig(target_modules=("query", "output"), rank=2, layers=(0, 2))
    tree = init_adapter(KEY, config, TRUNK)
    assert {path: leaf.shape for path, leaf in flatten(tree).items()} == {
        "attention/query/down/kernel": (2, 12, 2),
        "attention/query/up/kernel": (2, 2, 12),
        "ffn/output/down/kernel": (2, 16, 2),
        "ffn/output/up/kernel": (2, 2, 12),
    }
    assert not np.any(tree["attention"]["query"]["up"]["kernel"])
    down = np.asarray(tree["ffn"]["output"]["down"]["kernel"])
    assert 0.2 < abs(down).max() <= 0.25  # 1 / sqrt(16)
    # A matrix's initial values depend only on its name, not on the other target modules.
    other = init_adapter(KEY, dataclasses.replace(config, target_modules=("key", "query")), TRUNK)
    np.testing.assert_array_equal(
        other["attention"]["query"]["down"]["kernel"], tree["attention"]["query"]["down"]["kernel"]
    )


def test_ia3_has_one_factor_per_feature_and_starts_at_one() -> None:
    tree = init_adapter(KEY, Ia3Config(), TRUNK)
    assert {path: leaf.shape for path, leaf in flatten(tree).items()} == {
        "attention/key/scale": (3, 12),
        "attention/value/scale": (3, 12),
        "ffn/output/scale": (3, 16),
    }
    assert all(np.all(leaf == 1) for leaf in flatten(tree).values())


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_new_adapter_does_not_change_the_outputs(config: InDenseLayers) -> None:
    model, params = random_params(config)
    params["adapters"]["a"] = init_adapter(KEY, config, TRUNK)
    plain = dataclasses.replace(model, adapters=())
    np.testing.assert_array_equal(model(params, BATCH).logits, plain(params, BATCH).logits)


@pytest.mark.parametrize(
    "config",
    [LoraConfig(rank=2, alpha=5.0, target_modules=EVERY_LAYER), Ia3Config(target_modules=EVERY_LAYER)],
    ids=("lora", "ia3"),
)
def test_dense_layers_follow_the_papers_formulas_and_merging_is_exact(config: InDenseLayers) -> None:
    kind = dense_kind(config)
    with jax.enable_x64(True):
        tree = jax.tree.map(lambda leaf: leaf[0].astype(float), draw(init_adapter(KEY, config, TRUNK)))
        for name, (block, dense_layer) in DENSE_LAYERS.items():
            inputs, outputs = {"intermediate": (12, 16), "output": (16, 12)}.get(name, (12, 12))
            layer = draw({"kernel": np.zeros((inputs, outputs)), "bias": np.zeros(outputs)})
            x, params = draw({"x": np.zeros((2, 5, inputs))}, seed=3)["x"], tree[block][dense_layer]
            expected = by_hand(config, name, params, layer, x)
            np.testing.assert_allclose(
                kind.apply(*on_device(params, config, name, layer, x)), expected, rtol=1e-12, atol=1e-12
            )
            merged = jax.device_get(kind.merge(*on_device(params, config, name, layer)))
            np.testing.assert_allclose(x @ merged["kernel"] + merged["bias"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize(("pooling", "scan"), [("first", True), ("mean", False)], ids=("first, scan", "mean, unrolled"))
def test_model_and_gradients_equal_those_of_a_trunk_with_merged_weights(
    config: InDenseLayers, pooling: Any, scan: bool
) -> None:
    with jax.enable_x64(True):
        model, params = random_params(config, pooling)
        model = dataclasses.replace(model, scan_layers=scan)
        plain = dataclasses.replace(model, adapters=(), scan_layers=False)
        rest = {root: tree for root, tree in params.items() if root != "adapters"}

        def applied(adapter: Tree) -> jax.Array:
            return (model({**rest, "adapters": {"a": adapter}}, BATCH).logits ** 2).sum()

        def merged(adapter: Tree) -> jax.Array:
            layers = merge_adapter(rest["trunk"]["layers"], adapter, config)
            return (plain({**rest, "trunk": {**rest["trunk"], "layers": layers}}, BATCH).logits ** 2).sum()

        value, gradient = jax.jit(jax.value_and_grad(applied))(params["adapters"]["a"])
        expected_value, expected_gradient = jax.jit(jax.value_and_grad(merged))(params["adapters"]["a"])
        np.testing.assert_allclose(value, expected_value, rtol=1e-10)
        for path, leaf in flatten(expected_gradient).items():
            np.testing.assert_allclose(flatten(gradient)[path], leaf, rtol=1e-7, atol=1e-10, err_msg=path)
            assert np.any(leaf), path


def test_dropout_zeroes_inputs_of_the_adapter_only() -> None:
    config = LoraConfig(rank=2, dropout=0.5)
    params = draw({"down": {"kernel": np.zeros((12, 2))}, "up": {"kernel": np.zeros((2, 12))}})
    layer = draw({"kernel": np.zeros((12, 12)), "bias": np.zeros(12)}, seed=2)
    x = np.ones((4, 5, 12), np.float32)
    plain = x @ layer["kernel"] + layer["bias"]
    outputs = lora.apply(*on_device(params, config, "query", layer, x), key=KEY) - plain
    mean = np.mean(
        [lora.apply(*on_device(params, config, "query", layer, x), key=jax.random.key(i)) - plain for i in range(400)],
        0,
    )
    expected = x @ params["down"]["kernel"] @ params["up"]["kernel"] * 4.0
    assert np.abs(outputs - expected).max() > 1
    np.testing.assert_allclose(mean.mean((0, 1)), expected[0, 0], rtol=0.1, atol=0.3)
    np.testing.assert_allclose(
        lora.apply(*on_device(params, config, "query", layer, x)) - plain, expected, rtol=1e-4, atol=1e-4
    )


def test_key_and_value_dropout_acts_on_every_token_if_only_the_first_is_used() -> None:
    # If only the first token is used, the last layer can apply merged matrices to a weighted sum of tokens. With
    # dropout it must not, because each token has its own mask.
    trunk = dataclasses.replace(TRUNK, hidden_dropout=0.0, attention_dropout=0.0)
    config = LoraConfig(rank=2, dropout=0.5, target_modules=("key", "value"), layers=(2,))
    model, params = random_params(config)
    model = dataclasses.replace(model, trunk=trunk, head=HeadConfig(pooling="first", dropout=0.0))
    run = jax.jit(lambda key: model(params, BATCH, key=key).logits)
    draws = np.stack([run(jax.random.key(seed)) for seed in range(8)])
    assert np.all(np.isfinite(draws))
    assert np.all(draws.std(0) > 0)


@pytest.mark.parametrize("config", [LoraConfig(rank=4), Ia3Config()], ids=("lora", "ia3"))
def test_merged_task_model_predicts_the_same_and_can_be_saved(
    tiny_trunk: Trunk, config: InDenseLayers, tmp_path: Any
) -> None:
    model = make(tiny_trunk, config)
    texts = ["two of the four", "all of the six and seven"]
    merged = model.merged()
    assert merged.model.adapters == ()
    assert merged.trunk.sha256 != model.trunk.sha256
    expected = model.over_rows(_logits, model.tokenized(rows_from_lists(texts)))
    for predictions in (model.predict(texts), merged.predict(texts)):
        np.testing.assert_allclose(predictions.logits, expected, rtol=1e-4, atol=1e-5)
    save_trunk(tmp_path / "trunk", merged.trunk)
    again = dataclasses.replace(merged, trunk=load_trunk(str(tmp_path / "trunk")))
    np.testing.assert_array_equal(again.predict(texts).logits, merged.predict(texts).logits)
    assert model.flops_per_row() == merged.flops_per_row()
    np.testing.assert_allclose(model.embed(texts), merged.embed(texts), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scan", [False, True])
def test_merged_models_share_the_unchanged_weights_on_the_device(tiny_trunk: Trunk, scan: bool) -> None:
    models = [make(tiny_trunk, config) for config in (LoraConfig(rank=4), LoraConfig(rank=2))]
    models = [dataclasses.replace(model, model=dataclasses.replace(model.model, scan_layers=scan)) for model in models]
    for model in models:
        merged = dataclasses.replace(model.merged(), model=dataclasses.replace(model.merged().model, scan_layers=scan))
        np.testing.assert_array_equal(
            model.predict(["two of the four"]).logits, merged.predict(["two of the four"]).logits
        )
    trees = [flatten(model._merged._device_params["trunk"]) for model in models]
    trunk = flatten(tiny_trunk.device_params(scan=scan))
    own = {path for path, leaf in trunk.items() if trees[0][path] is not leaf}
    assert own
    assert all("/query/" in path or "/value/" in path for path in own)


@functools.partial(jax.jit, static_argnums=0)
def _logits(model: Model, params: Tree, batch: Any) -> jax.Array:
    return model(params, batch).logits


def test_bfloat16_trunk_is_not_merged_silently(tiny_trunk: Trunk) -> None:
    model = make(dataclasses.replace(tiny_trunk, dtype="bfloat16"), LoraConfig(rank=4))
    inference_model, params = model.for_inference()
    assert inference_model.adapters
    assert params["adapters"]


def test_model_without_a_mergeable_adapter_is_not_merged(tiny_trunk: Trunk) -> None:
    with pytest.raises(UserError) as error:
        make(tiny_trunk, AdapterConfig(size=4), names=("reviews",)).merged()
    assert has_facts(str(error.value), "lora", "ia3", '"reviews"', "bottleneck")


def test_adapters_in_dense_layers_are_not_fused(tiny_trunk: Trunk) -> None:
    for config in (LoraConfig(), Ia3Config()):
        with pytest.raises(UserError) as error:
            make(tiny_trunk, config, names=("a", "b"), fused=True)
        assert has_facts(str(error.value), '"a"', config.kind, "pfeiffer")


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"rank": 0}, ("adapter.rank is 0", "at least 1")),
        ({"alpha": 0.0}, ("adapter.alpha is 0.0", "above 0")),
        ({"alpha": float("inf")}, ("adapter.alpha is inf",)),
        ({"dropout": 1.0}, ("adapter.dropout is 1.0", "below 1")),
        ({"target_modules": ()}, ("adapter.target_modules is []", "attention_output")),
        ({"target_modules": ("query", "query")}, ("adapter.target_modules is ['query', 'query']", "distinct")),
        ({"target_modules": ("vale",)}, ('adapter.target_modules[0] is "vale"', 'Did you mean "value"?')),
        ({"layers": (1, 1)}, ("adapter.layers is (1, 1)",)),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        LoraConfig(**settings)
    assert has_facts(str(error.value), *facts)


def test_rank_above_the_hidden_size_is_refused() -> None:
    with pytest.raises(UserError) as error:
        init_adapter(KEY, LoraConfig(rank=13), TRUNK)
    assert has_facts(str(error.value), "adapter.rank is 13", "hidden size is 12")


def test_task_model_with_lora_survives_the_store(tiny_trunk: Trunk, tmp_path: Any) -> None:
    model = make(tiny_trunk, LoraConfig(rank=4, target_modules=("query", "intermediate")), names=("a",))
    model.save(tmp_path / "store")
    name = model.model.head_name
    loaded = load_task_model(tmp_path / "store", tiny_trunk, head=name, adapter="a")
    assert isinstance(loaded, TaskModel)
    assert loaded.model.adapters == model.model.adapters
    np.testing.assert_array_equal(loaded.predict(["two of the four"]).logits, model.predict(["two of the four"]).logits)
