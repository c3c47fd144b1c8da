"""Task modules parallel to the layers and on top of them match NumPy implementations of their formulas."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.adapters.kinds import init_adapter, reads_all_tokens, slot_kind, top_kind
from afjax.config.adapters import (
    ADAPTER_PRESETS,
    Adapter,
    BesideLayers,
    LhucConfig,
    LowRankConfig,
    OnTop,
    PalConfig,
    ProjectedFfnConfig,
    TopAttentionConfig,
    TopFfnConfig,
    TopLayerConfig,
)
from afjax.errors import UserError
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.trees import Tree, flatten, map_with_path, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk
from afjax.trunk.encoder_layer import EncoderLayer, SharedInputs
from afjax.trunk.slots import Sublayer

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
HIDDEN, LENGTH = 12, 5
LIMIT = 1e-9
TRUNK = TrunkConfig(
    family="bert",
    vocab_size=30,
    hidden_size=HIDDEN,
    num_layers=3,
    num_heads=2,
    intermediate_size=16,
    max_positions=16,
    type_vocab_size=2,
    init_scale=0.3,
    # If epsilon were small, a wrong value would hardly change the results.
    layer_norm_epsilon=1e-3,
)
MASK = np.array([[True] * 5, [True, True, True, False, False]])


# Reference implementations in float64 NumPy.


def norm(x: np.ndarray, scale: Any = 1.0, bias: Any = 0.0, epsilon: float = 1e-3) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) * scale + bias


def linear(params: Tree, x: np.ndarray) -> np.ndarray:
    return x @ params["kernel"] + params["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return x * 0.5 * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))


def softmax(x: np.ndarray) -> np.ndarray:
    shifted = np.exp(x - x.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def attention(params: Tree, x: np.ndarray, num_heads: int) -> np.ndarray:
    """Computes attention row by row and head by head, over the unmasked tokens."""
    query, key, value = (linear(params[name], x) for name in ("query", "key", "value"))
    size = query.shape[-1] // num_heads
    output = np.zeros_like(query)
    for row, mask in enumerate(MASK):
        for head in range(num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = query[row][:, part] @ key[row][mask][:, part].T / math.sqrt(size)
            output[row][:, part] = softmax(scores) @ value[row][mask][:, part]
    return output


def pal(params: Tree, x: np.ndarray, num_heads: int) -> np.ndarray:
    return linear(params["decode"], attention(params["attention"], linear(params["encode"], x), num_heads))


def low_rank(params: Tree, x: np.ndarray) -> np.ndarray:
    return linear(params["decode"], linear(params["encode"], x))


def projected_ffn(params: Tree, x: np.ndarray) -> np.ndarray:
    inner = gelu(linear(params["intermediate"], linear(params["encode"], x)))
    return linear(params["decode"], linear(params["output"], inner))


PAL = PalConfig(size=6, num_heads=3)
Formula = Callable[[Tree, np.ndarray], np.ndarray]
BESIDE: dict[str, tuple[BesideLayers, Formula]] = {
    "pal": (PAL, lambda params, x: pal(params, x, 3)),
    "pal of one head": (PalConfig(size=6, num_heads=1), lambda params, x: pal(params, x, 1)),
    "pal of its own projections": (
        dataclasses.replace(PAL, shared_projections=False),
        lambda params, x: pal(params, x, 3),
    ),
    "pal of the authors' code": (
        dataclasses.replace(PAL, output_activation="gelu"),
        lambda params, x: gelu(pal(params, x, 3)),
    ),
    "low rank": (LowRankConfig(size=4), low_rank),
    "low rank of the authors' code": (
        LowRankConfig(size=4, activation="gelu"),
        lambda params, x: linear(params["decode"], gelu(linear(params["encode"], x))),
    ),
    "ffn": (ProjectedFfnConfig(size=4, intermediate_size=7), projected_ffn),
    "ffn of its own projections": (
        ProjectedFfnConfig(size=4, intermediate_size=7, shared_projections=False),
        projected_ffn,
    ),
}


def draw(tree: Tree, scale: float = 0.4) -> Tree:
    """Replaces every leaf with random values large enough to affect outputs. LayerNorm scales are around 1."""

    def one(path: str, leaf: jax.Array) -> jax.Array:
        noise = scale * jax.random.normal(named_key(KEY, path), leaf.shape)
        return 1.0 + noise if path.endswith("norm/scale") else noise

    return map_with_path(one, tree)


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def wide(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


def given_slot(queries: int = LENGTH) -> Sublayer:
    output, residual, layer_input = jax.random.normal(jax.random.key(3), (3, 2, LENGTH, HIDDEN))
    return Sublayer(
        output=output[:, :queries],
        residual=residual[:, :queries],
        norm=lambda x: (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-3),
        layer_input=layer_input,
        mask=jnp.asarray(MASK),
        attention_dropout=0.0,
    )


def layer_params(tree: Tree, layer: int) -> Tree:
    return {**tree.get("shared", {}), **jax.tree.map(lambda leaf: leaf[layer], tree["ffn"])}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("placement", ["parallel", "serial"])
@pytest.mark.parametrize("name", BESIDE)
def test_parallel_modules_equal_their_formulas(name: str, placement: Any) -> None:
    config, formula = BESIDE[name]
    config = dataclasses.replace(config, placement=placement)
    params = layer_params(draw(init_adapter(KEY, config, TRUNK)), 2)
    slot = given_slot()
    f, h, x = wide((slot.output, slot.residual, slot.layer_input))
    added = formula(wide(params), x if placement == "parallel" else norm(h + f))
    assert added.std() > 0.05
    np.testing.assert_allclose(slot_kind(config).slot(wide(params), config, slot), norm(h + f + added), atol=LIMIT)


@pytest.mark.parametrize("name", BESIDE)
def test_computing_only_the_first_token_does_not_change_its_output(name: str) -> None:
    config, _ = BESIDE[name]
    params = layer_params(draw(init_adapter(KEY, config, TRUNK)), 1)
    alone, whole = (slot_kind(config).slot(params, config, given_slot(queries)) for queries in (1, LENGTH))
    assert alone.shape == (2, 1, HIDDEN)
    np.testing.assert_allclose(alone, whole[:, :1], atol=1e-6)


@pytest.mark.usefixtures("float64")
def test_lhuc_equals_its_formula() -> None:
    params = layer_params(draw(init_adapter(KEY, LhucConfig(), TRUNK)), 1)
    slot = given_slot()
    f, h = wide((slot.output, slot.residual))
    expected = norm(h + f) * 2.0 / (1.0 + np.exp(-wide(params["scale"])))
    np.testing.assert_allclose(slot_kind(LhucConfig()).slot(params, LhucConfig(), slot), expected, atol=LIMIT)


# Modules on top of the encoder.


def attention_block(params: Tree, x: np.ndarray, num_heads: int) -> np.ndarray:
    output = linear(params["output"], attention(params, x, num_heads))
    return norm(x + output, params["norm"]["scale"], params["norm"]["bias"])


def ffn_block(params: Tree, x: np.ndarray) -> np.ndarray:
    inner = linear(params["0"], x)
    for index in range(1, len(params) - 1):
        inner = linear(params[str(index)], gelu(inner))
    return norm(x + inner, params["norm"]["scale"], params["norm"]["bias"])


def on_top(params: Tree, hidden: np.ndarray, config: OnTop) -> np.ndarray:
    top = params["top"]
    if isinstance(config, TopLayerConfig):
        x = attention_block(top["layer"]["attention"], hidden, TRUNK.num_heads)
        ffn = top["layer"]["ffn"]
        inner = linear(ffn["output"], gelu(linear(ffn["intermediate"], x)))
        return norm(x + inner, ffn["norm"]["scale"], ffn["norm"]["bias"])
    x = linear(top["encode"], hidden)
    for number in range(config.num_layers):
        block = jax.tree.map(lambda leaf, i=number: leaf[i], top["layers"])
        if isinstance(config, TopAttentionConfig):
            x = attention_block(block["attention"], x, config.num_heads)
        else:
            x = ffn_block(block["ffn"], x)
    return linear(top["decode"], x)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    "config",
    [
        TopAttentionConfig(size=6, num_layers=2, num_heads=3),
        TopAttentionConfig(size=6, num_layers=1, num_heads=1),
        TopFfnConfig(size=6, num_layers=2, hidden_sizes=(7,)),
        TopFfnConfig(size=6, num_layers=1, hidden_sizes=(7, 5)),
        TopLayerConfig(),
    ],
)
def test_modules_on_top_equal_their_formulas(config: OnTop) -> None:
    params = draw(init_adapter(KEY, config, TRUNK))
    hidden = jax.random.normal(KEY, (2, LENGTH, HIDDEN))
    ours = top_kind(config).top(wide(params)["top"], config, TRUNK, hidden, jnp.asarray(MASK), key=None)
    np.testing.assert_allclose(ours, on_top(wide(params), wide(hidden), config)[:, :1], atol=LIMIT)


def test_layer_on_top_is_a_trunk_layer() -> None:
    params = draw(init_adapter(KEY, TopLayerConfig(), TRUNK))
    hidden = jax.random.normal(KEY, (2, LENGTH, HIDDEN))
    layer: Any = EncoderLayer(TRUNK)
    expected, _ = layer.apply({"params": params["top"]["layer"]}, hidden, SharedInputs(jnp.asarray(MASK)))
    ours = top_kind(TopLayerConfig()).top(params["top"], TopLayerConfig(), TRUNK, hidden, jnp.asarray(MASK), key=None)
    np.testing.assert_allclose(ours, expected[:, :1], atol=1e-6)


# Complete models.


@pytest.fixture(scope="module")
def params() -> Tree:
    trunk = jax.jit(init_trunk, static_argnums=1)(KEY, TRUNK)
    head = init_head(KEY, Model(trunk=TRUNK, head_name="task").head, 2, trunk=trunk)
    return {"trunk": trunk, "adapters": {}, "fusion": {}, "heads": {"task": head}}


@pytest.fixture(scope="module")
def batch() -> dict[str, jax.Array]:
    tokens = jax.random.randint(jax.random.key(1), (2, LENGTH), 1, 30)
    return {"tokens": tokens, "types": jnp.zeros_like(tokens), "mask": jnp.asarray(MASK)}


def model_with(config: Adapter, **changes: Any) -> Model:
    return Model(trunk=TRUNK, head_name="task", adapters=(("a", config),), **changes)


IN_LAYERS = [
    *(config for config, _ in BESIDE.values()),
    dataclasses.replace(PAL, placement="serial"),
    dataclasses.replace(PAL, layers=(0, 2)),
    LhucConfig(),
]


@pytest.mark.parametrize("config", IN_LAYERS, ids=str)
def test_module_that_adds_nothing_leaves_outputs_bit_identical(params: Tree, batch: Any, config: BesideLayers) -> None:
    def silent(path: str, leaf: jax.Array) -> jax.Array:
        return jnp.zeros_like(leaf) if "decode/" in path or path.endswith("ffn/scale") else leaf

    adapter = map_with_path(silent, draw(init_adapter(KEY, config, TRUNK)))
    plain = Model(trunk=TRUNK, head_name="task")
    ours = model_with(config)({**params, "adapters": {"a": adapter}}, batch)
    # The logits must be bit-identical, so the last layer must compute the same tokens in both models. A different
    # number of tokens can change the summation order and thus the rounding.
    expected = plain(params, batch, fusion_attention=reads_all_tokens(config, 3))
    assert np.array_equal(ours.logits, expected.logits)


@pytest.mark.parametrize(
    "config",
    [
        *IN_LAYERS[-3:],
        PAL,
        ProjectedFfnConfig(size=4, intermediate_size=7),
        TopAttentionConfig(size=6, num_heads=3, num_layers=2),
        TopFfnConfig(size=6, num_layers=2),
        TopLayerConfig(),
    ],
    ids=str,
)
def test_computation_paths_agree_and_the_module_affects_outputs(params: Tree, batch: Any, config: Adapter) -> None:
    adapter = draw(init_adapter(KEY, config, TRUNK))
    changed = {**params, "adapters": {"a": adapter}}
    expected = model_with(config)(changed, batch, fusion_attention=True).logits
    np.testing.assert_allclose(model_with(config)(changed, batch).logits, expected, atol=1e-6)
    np.testing.assert_allclose(model_with(config, scan_layers=True)(changed, batch).logits, expected, atol=1e-6)
    assert np.abs(expected - Model(trunk=TRUNK, head_name="task")(params, batch).logits).max() > 1e-3
    others = {**batch, "tokens": jnp.where(batch["mask"], batch["tokens"], 7)}
    np.testing.assert_allclose(model_with(config)(changed, others).logits, expected, atol=1e-6)


@pytest.mark.parametrize("config", [PAL, TopAttentionConfig(size=6, num_heads=3), TopFfnConfig(size=6)], ids=str)
def test_dropout_is_applied_in_modules(params: Tree, batch: Any, config: Adapter) -> None:
    trunk = dataclasses.replace(TRUNK, hidden_dropout=0.0 if config is PAL else 0.5, attention_dropout=0.0)
    config = dataclasses.replace(config, dropout=0.5) if isinstance(config, PalConfig) else config
    model = dataclasses.replace(model_with(config), trunk=dataclasses.replace(trunk))
    changed = {**params, "adapters": {"a": draw(init_adapter(KEY, config, TRUNK))}}
    first, again, other = (model(changed, batch, key=jax.random.key(seed)).logits for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (PAL, False),
        (dataclasses.replace(PAL, placement="serial"), True),
        (dataclasses.replace(PAL, placement="serial", layers=(0, 1)), False),
        (LhucConfig(), False),
        (TopFfnConfig(), False),
        (TopAttentionConfig(), True),
        (TopLayerConfig(), True),
    ],
    ids=str,
)
def test_modules_that_use_all_tokens_of_the_last_layer(config: Adapter, expected: bool) -> None:
    assert reads_all_tokens(config, 3) == expected


# Initialization.


@pytest.mark.parametrize("config", [*IN_LAYERS, TopAttentionConfig(), TopFfnConfig(), TopLayerConfig()], ids=str)
def test_initial_values(config: Adapter) -> None:
    tree = flatten(init_adapter(KEY, config, TRUNK))
    for path, leaf in tree.items():
        if path.endswith("kernel"):
            assert 0 < np.std(leaf) < 0.03
        else:
            assert np.all(leaf == (1.0 if path.endswith("norm/scale") else 0.0))


def test_invalid_sizes_and_layers_are_refused() -> None:
    makers: list[tuple[Callable[[], Any], tuple[str, ...]]] = [
        (lambda: PalConfig(size=0), ("adapter.size is 0;", "at least 1")),
        (lambda: PalConfig(size=10), ("adapter.size is 10 ", "divide")),
        (lambda: LowRankConfig(size=0), ("adapter.size is 0;", "at least 1")),
        (lambda: ProjectedFfnConfig(intermediate_size=0), ("adapter.intermediate_size is 0",)),
        (lambda: TopAttentionConfig(num_layers=0), ("adapter.num_layers is 0",)),
        (lambda: TopFfnConfig(hidden_sizes=()), ("adapter.hidden_sizes is empty;",)),
        (lambda: LhucConfig(layers=(1, 1)), ("adapter.layers is (1, 1)",)),
        (lambda: PalConfig(dropout=1.0), ("adapter.dropout is 1.0",)),
        (lambda: model_with(dataclasses.replace(PAL, layers=(3,))), ("layer 3", "layers 0 to 2")),
    ]
    for make, facts in makers:
        with pytest.raises(UserError) as raised:
            make()
        assert has_facts(str(raised.value), *facts)


def test_every_kind_has_a_preset() -> None:
    assert {type(config) for config in ADAPTER_PRESETS.values()} == set(Adapter.__args__)
