"""Bottleneck adapters are initialized and placed as configured, and zero adapters leave outputs unchanged.

tests/interop/test_adapterhub.py compares all layouts with AdapterHub's library.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.adapters.bottleneck import bottleneck, slot
from afjax.adapters.kinds import adapter_layers, init_adapter
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.errors import UserError
from afjax.model.heads import init_head
from afjax.model.model import Model, trunk_layer_norms
from afjax.trees import Tree, flatten, map_with_path, named_key
from afjax.trunk.encoder import init_trunk
from afjax.trunk.layers import unstack_layers
from afjax.trunk.slots import Sublayer
from tests.small_trunk import SMALL_TRUNK

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
TRUNK = dataclasses.replace(SMALL_TRUNK, init_scale=0.3)


def start(config: AdapterConfig, *, key: jax.Array = KEY, hidden_size: int = 12, num_layers: int = 3) -> Tree:
    return init_adapter(key, config, dataclasses.replace(TRUNK, hidden_size=hidden_size, num_layers=num_layers))


# Initialization.


@pytest.mark.parametrize(
    ("config", "bound"),
    [(AdapterConfig(size=100), 6.0), (AdapterConfig(size=100, init="truncated_normal", init_scale=0.3), 2.0)],
)
def test_kernels_are_drawn_from_the_configured_distribution(config: AdapterConfig, bound: float) -> None:
    leaves = flatten(start(config, hidden_size=100))
    for path, leaf in leaves.items():
        if path.endswith("bias"):
            assert not np.any(leaf)
        else:
            # Truncating a normal distribution at two standard deviations scales its standard deviation by 0.88.
            expected = config.init_scale * (0.88 if config.init == "truncated_normal" else 1.0)
            assert np.std(leaf) == pytest.approx(expected, rel=0.02)
            assert np.abs(leaf).max() <= bound * config.init_scale
    assert not np.array_equal(leaves["ffn/down/kernel"].ravel(), leaves["ffn/up/kernel"].ravel())


def test_new_layer_norms_are_initialized_to_the_identity() -> None:
    tree = start(AdapterConfig(new_layer_norm="both"))["ffn"]
    for name in ("norm_before", "norm_after"):
        assert np.array_equal(tree[name]["scale"], np.ones((3, 12)))
        assert np.array_equal(tree[name]["bias"], np.zeros((3, 12)))


def test_initial_value_of_a_leaf_does_not_depend_on_other_leaves() -> None:
    small = flatten(start(AdapterConfig(size=4)))
    large = flatten(start(AdapterConfig(size=4, position="both", new_layer_norm="both", activation="tanh")))
    assert all(np.array_equal(large[path], leaf) for path, leaf in small.items())


def test_adapters_with_different_names_are_initialized_differently() -> None:
    config = AdapterConfig(size=4)
    one, again, other = (start(config, key=named_key(KEY, "adapters", name)) for name in ("one", "one", "other"))
    assert np.array_equal(one["ffn"]["down"]["kernel"], again["ffn"]["down"]["kernel"])
    assert not np.array_equal(one["ffn"]["down"]["kernel"], other["ffn"]["down"]["kernel"])


# Layers with adapters.


def test_layers_default_to_all_and_are_sorted() -> None:
    assert adapter_layers(AdapterConfig(), 3) == (0, 1, 2)
    assert adapter_layers(AdapterConfig(layers=(2, 0)), 3) == (0, 2)


def test_layer_outside_the_trunk_is_refused() -> None:
    with pytest.raises(UserError, match=r"adapter\.layers .*layer 3, .*layers 0 to 2"):
        start(AdapterConfig(layers=(0, 3)))
    with pytest.raises(UserError, match="names layer 3"):
        Model(trunk=TRUNK, head_name="task", adapters=(("a", AdapterConfig(layers=(3,))),))


# Formulas.


def test_bottleneck_equals_hand_computed_values() -> None:
    params = {
        "down": {"kernel": jnp.array([[1.0, -1.0], [2.0, 0.0]]), "bias": jnp.array([0.5, 0.5])},
        "up": {"kernel": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "bias": jnp.array([0.1, 0.2])},
    }
    x = jnp.array([[[1.0, 1.0]], [[-1.0, 0.0]]])
    # The down-projection gives [3.5, -0.5] and [-0.5, 1.5], and ReLU then gives [3.5, 0] and [0, 1.5].
    expected = np.array([[[3.6, 7.2]], [[4.6, 6.2]]])
    np.testing.assert_allclose(bottleneck(params, x, AdapterConfig()), expected, rtol=1e-6)
    np.testing.assert_allclose(bottleneck(params, x, AdapterConfig(scaling=2.0)), 2 * expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # f is the sub-layer's output, a its residual, u the adapter without its residual, norm the trunk's LayerNorm.
        (ADAPTER_PRESETS["pfeiffer"], lambda f, a, u, norm: norm(u(norm(f + a)) + f + a)),
        (ADAPTER_PRESETS["houlsby"], lambda f, a, u, norm: norm(u(f) + f + a)),
        (AdapterConfig(pretrained_layer_norm="before"), lambda f, a, u, norm: u(norm(f + a)) + f),
        (AdapterConfig(pretrained_layer_norm="none"), lambda f, a, u, norm: u(f) + f),
        (AdapterConfig(residual_from="sum"), lambda f, a, u, norm: norm(u(norm(f + a)) + f + a + a)),
        (AdapterConfig(residual_from="input"), lambda f, a, u, norm: norm(u(norm(f + a)) + norm(f + a) + a)),
    ],
)
def test_layouts_equal_their_formulas(config: AdapterConfig, expected: Any) -> None:
    def norm(x: Any) -> Any:
        return 3.0 * x - 1.0

    params = {
        "down": {"kernel": jnp.array([[2.0]]), "bias": jnp.array([0.5])},
        "up": {"kernel": jnp.array([[-0.7]]), "bias": jnp.array([0.2])},
    }
    sublayer, residual = jnp.array([[[0.3]]]), jnp.array([[[0.4]]])
    by_formula = expected(sublayer, residual, lambda x: bottleneck(params, x, config), norm)
    at = Sublayer(
        output=sublayer,
        residual=residual,
        norm=norm,
        layer_input=residual,
        mask=jnp.ones((1, 1), bool),
        attention_dropout=0.0,
    )
    np.testing.assert_allclose(slot(params, config, at), by_formula, rtol=1e-6)


# Complete models.


@pytest.fixture(scope="module")
def params() -> Tree:
    trunk = jax.jit(init_trunk, static_argnums=1)(KEY, TRUNK)
    # Randomize the LayerNorms' scales and biases, so that their position in a layer matters.
    norms = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(KEY, leaf.shape), trunk_layer_norms(trunk))
    blocks = {block: {**trunk["layers"][block], "norm": norms[block]} for block in ("attention", "ffn")}
    trunk = {**trunk, "layers": blocks, "embeddings": {**trunk["embeddings"], "norm": norms["embeddings"]}}
    head = init_head(KEY, Model(trunk=TRUNK, head_name="task").head, 2, trunk=trunk)
    return {"trunk": trunk, "adapters": {}, "fusion": {}, "heads": {"task": head}}


@pytest.fixture(scope="module")
def batch() -> dict[str, jax.Array]:
    tokens = jax.random.randint(jax.random.key(1), (2, 5), 1, 30)
    return {"tokens": tokens, "types": jnp.zeros_like(tokens), "mask": jnp.ones((2, 5), bool)}


def with_adapter(params: Tree, config: AdapterConfig, change: Any) -> tuple[Model, Tree]:
    tree = map_with_path(change, start(config))
    if config.layer_norms:
        tree = {**tree, "layer_norms": trunk_layer_norms(params["trunk"])}
    return Model(trunk=TRUNK, head_name="task", adapters=(("a", config),)), {**params, "adapters": {"a": tree}}


def without_up(path: str, leaf: jax.Array) -> jax.Array:
    return jnp.zeros_like(leaf) if "/up/" in path else leaf


@pytest.mark.parametrize("name", ["pfeiffer", "houlsby"])
def test_adapter_that_adds_nothing_leaves_outputs_bit_identical(params: Tree, batch: Any, name: str) -> None:
    model, changed = with_adapter(params, ADAPTER_PRESETS[name], without_up)
    plain = Model(trunk=TRUNK, head_name="task")
    assert np.array_equal(model(changed, batch).logits, plain(params, batch).logits)


@pytest.mark.parametrize("layers", [(0,), (2,), (0, 2)])
def test_only_configured_layers_have_the_adapter(params: Tree, batch: Any, layers: tuple[int, ...]) -> None:
    def draw(path: str, leaf: jax.Array) -> jax.Array:
        return jax.random.normal(named_key(KEY, path), (3, *leaf.shape[1:]))

    def draw_layers(path: str, leaf: jax.Array) -> jax.Array:
        return draw(path, leaf)[jnp.array(layers)]

    def draw_without_others(path: str, leaf: jax.Array) -> jax.Array:
        others = jnp.array([layer for layer in range(3) if layer not in layers])
        return draw(path, leaf).at[others].set(0.0) if "/up/" in path else draw(path, leaf)

    some, some_params = with_adapter(params, AdapterConfig(size=2, layers=layers), draw_layers)
    whole, whole_params = with_adapter(params, AdapterConfig(size=2), draw_without_others)
    np.testing.assert_allclose(some(some_params, batch).logits, whole(whole_params, batch).logits, atol=1e-6)


@pytest.mark.parametrize("unstacked", [False, True])
def test_adapter_layer_norms_replace_the_trunks(params: Tree, batch: Any, unstacked: bool) -> None:
    model, changed = with_adapter(params, ADAPTER_PRESETS["houlsby"], without_up)
    own = jax.tree.map(lambda leaf: 1.5 * leaf + 0.1, changed["adapters"]["a"]["layer_norms"])
    changed["adapters"]["a"]["layer_norms"] = own
    trunk = params["trunk"]
    as_trunk = {
        "embeddings": {**trunk["embeddings"], "norm": own["embeddings"]},
        "layers": {block: {**trunk["layers"][block], "norm": own[block]} for block in ("attention", "ffn")},
    }
    if unstacked:
        changed = {**changed, "trunk": {**trunk, "layers": unstack_layers(trunk["layers"])}}
    expected = Model(trunk=TRUNK, head_name="task")({**params, "trunk": as_trunk}, batch).logits
    np.testing.assert_allclose(model(changed, batch).logits, expected, atol=1e-6)
    assert np.abs(expected - Model(trunk=TRUNK, head_name="task")(params, batch).logits).max() > 1e-3
