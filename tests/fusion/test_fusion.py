"""The factored fusion matches the textbook form in value and gradient, in float64."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from afjax.adapters import bottleneck
from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.fusion.attention import ScoreOptions
from afjax.fusion.bank import BankLayout, bank_layout, inner_activations, make_bank
from afjax.fusion.cost import FOLDING_TOKENS, folding_pays
from afjax.fusion.factored import fuse_units
from afjax.fusion.folded import fold_fusion, fuse_folded
from afjax.fusion.parameters import init_fusion, value_penalty
from afjax.fusion.per_adapter import BLOCK, spread_per_adapter, sum_per_adapter
from afjax.fusion.textbook import textbook_fusion
from afjax.trees import Tree, map_with_path
from afjax.trunk.config import TrunkConfig

pytestmark = pytest.mark.slow

LIMIT = 1e-10
HIDDEN = 12
PLAIN_ACTIVATIONS = {
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "swish": jax.nn.swish,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "tanh": jnp.tanh,
}


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# The textbook form of a fusion, for one layer and slot.


def fuse_bank(
    params: Tree, bank: Tree, z: jax.Array, *, layout: BankLayout, options: ScoreOptions = ScoreOptions()
) -> tuple[jax.Array, jax.Array]:
    inner = inner_activations(bank["down"], z, layout)
    return fuse_units(params, bank["up"], z, inner, sizes=layout.sizes, options=options)


def fuse_adapters(
    fusion: Tree,
    adapters: Sequence[Tree],
    configs: Sequence[AdapterConfig],
    z: jax.Array,
    *,
    temperature: float,
    rate: float,
    key: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """Applies the paper's formula to bottleneck adapter outputs."""
    outputs = jnp.stack([textbook_adapter(*pair, z) for pair in zip(adapters, configs, strict=True)], -2)
    return textbook_fusion(fusion, outputs, z, temperature=temperature, dropout_rate=rate, key=key)


def textbook_adapter(params: Tree, config: AdapterConfig, x: jax.Array) -> jax.Array:
    if "norm_before" in params:
        norm = params["norm_before"]
        variance = x.var(-1, keepdims=True)
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(variance + 1e-5) * as_last(norm["scale"], x)
        x = x + as_last(norm["bias"], x)
    down = jnp.einsum("...d,dr->...r", x, params["down"]["kernel"])
    inner = PLAIN_ACTIVATIONS[config.activation](down + as_last(params["down"]["bias"], down))
    return config.scaling * (
        jnp.einsum("...r,rd->...d", inner, params["up"]["kernel"]) + as_last(params["up"]["bias"], x)
    )


def as_last(vector: jax.Array, array: jax.Array) -> jax.Array:
    return vector.reshape((1,) * (array.ndim - 1) + vector.shape)


# Inputs for the textbook and factored forms.


def draw(tree: Tree, seed: int) -> Tree:
    """Draws float64 values for every leaf, large enough to affect outputs."""
    generator = np.random.default_rng(seed)

    def leaf(path: str, old: jax.Array) -> np.ndarray:
        noise = generator.normal(size=old.shape) * (0.5 if path.endswith("bias") else old.shape[-2] ** -0.5)
        return noise + 1.0 if path.endswith("norm_before/scale") else noise

    return map_with_path(leaf, tree)


def make_inputs(
    configs: Sequence[AdapterConfig], *, hidden: int = HIDDEN, layers: int = 1, value: bool = True
) -> tuple[Tree, list[Tree]]:
    """Creates parameters for the fusion and its adapters, stacked over layers."""
    size = {"hidden_size": hidden, "num_layers": layers}
    trunk = TrunkConfig(
        family="bert", vocab_size=9, num_heads=1, intermediate_size=9, max_positions=9, type_vocab_size=2, **size
    )
    shapes = jax.eval_shape(
        lambda key: (
            init_fusion(key, FusionConfig(value=value), configs[0], **size),
            [bottleneck.init(key, config, trunk, layers) for config in configs],
        ),
        jax.random.key(0),
    )
    return draw(shapes[0], 0), [draw(adapter, 1 + index) for index, adapter in enumerate(shapes[1])]


def make_z(*shape: int) -> np.ndarray:
    """Draws hidden states. The last two tokens of the last row are padding, so their hidden states are zero."""
    z = np.random.default_rng(99).normal(size=shape)
    z[-1, -2:] = 0
    return z


def first_layer(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)


def check_close(ours: Any, theirs: Any) -> None:
    """Checks that two trees are equal to within ``LIMIT`` times the largest absolute value in any leaf."""
    scale = max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(theirs))
    for mine, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert mine.dtype == expected.dtype == np.float64
        assert mine.shape == expected.shape
        np.testing.assert_allclose(mine, expected, rtol=0, atol=LIMIT * scale)


SAME = [AdapterConfig(size=3)]
MIXED = [
    AdapterConfig(size=3, scaling=0.5),
    AdapterConfig(size=1, new_layer_norm="before"),
    AdapterConfig(size=4, new_layer_norm="before", activation="tanh"),
    AdapterConfig(size=2, activation="gelu", scaling=2.0),
    AdapterConfig(size=2, activation="swish", new_layer_norm="both"),
    AdapterConfig(size=5, activation="gelu_tanh"),
    AdapterConfig(size=1, activation="leaky_relu"),
]


def bank_of(kinds: Sequence[AdapterConfig], num: int) -> list[AdapterConfig]:
    return [kinds[index % len(kinds)] for index in range(num)]


CASES = {
    **{f"{num} equal": (bank_of(SAME, num), {}) for num in (1, 3, 16)},
    "3 sizes": ([AdapterConfig(size=size) for size in (6, 3, 1)], {}),
    "7 mixed": (MIXED, {}),
    "static": (bank_of(MIXED, 3), {"value": False}),
    "temperature": (bank_of(MIXED, 3), {"temperature": 2.5}),
    "dropout, 1 equal": (bank_of(SAME, 1), {"rate": 0.3}),
    "dropout, 16 mixed": (bank_of(MIXED, 16), {"rate": 0.3, "temperature": 2.5}),
    "dropout, static": (bank_of(MIXED, 3), {"rate": 0.3, "value": False}),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("case", "length"),
    # The number of tokens (two rows of ``length``) determines the form: HIDDEN // 2 selects the factored form, HIDDEN
    # the form that multiplies query and key first, and the last length the folded form.
    [(case, HIDDEN // 2) for case in CASES]
    + [
        (case, length)
        for case in ("3 equal", "7 mixed", "static", "temperature", "dropout, 16 mixed", "dropout, static")
        for length in (HIDDEN, FOLDING_TOKENS // 2)
    ],
)
def test_factored_and_folded_forms_equal_the_textbook_form(case: str, length: int) -> None:
    configs, options = CASES[case]
    rate, temperature = options.get("rate", 0.0), options.get("temperature", 1.0)
    key = jax.random.key(5) if rate else None
    fusion, adapters = make_inputs(configs, value=options.get("value", True))
    inputs = (fusion, adapters, make_z(2, length, HIDDEN))
    layout = bank_layout(configs, HIDDEN)

    def factored(fusion: Tree, adapters: list[Tree], z: jax.Array) -> tuple[jax.Array, jax.Array]:
        bank = first_layer(make_bank(adapters, configs)[0]["ffn"])
        options = ScoreOptions(temperature=temperature, dropout_rate=rate, key=key)
        return fuse_bank(first_layer(fusion["ffn"]), bank, z, layout=layout, options=options)

    def textbook(fusion: Tree, adapters: list[Tree], z: jax.Array) -> tuple[jax.Array, jax.Array]:
        alone = [first_layer(adapter["ffn"]) for adapter in adapters]
        given = {"temperature": temperature, "rate": rate, "key": key}
        return fuse_adapters(first_layer(fusion["ffn"]), alone, configs, z, **given)

    sizes = {7: HIDDEN, 8: len(configs)}
    weights = [np.random.default_rng(seed).normal(size=(2, length, size)) for seed, size in sizes.items()]

    def values_and_gradients(function: Any) -> Any:
        def loss(*inputs: Any) -> Any:
            parts = function(*inputs)
            return sum((weight * part).sum() for weight, part in zip(weights, parts, strict=True)), parts

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*inputs)

    ours, theirs = values_and_gradients(factored), values_and_gradients(textbook)
    for mine, expected in zip(ours, theirs, strict=True):
        check_close(mine, expected)
    if key is None:
        folded = first_layer(jax.jit(fold_fusion)(fusion, *make_bank(adapters, configs))["ffn"])
        inner = inner_activations(folded["down"], inputs[2], layout)
        options = ScoreOptions(temperature=temperature)
        check_close(fuse_folded(folded["fusion"], inputs[2], inner, sizes=layout.sizes, options=options), theirs[1])
    _, attention = ours[1]
    np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("value", [True, False])
def test_textbook_form_equals_the_papers_sum_over_adapters(value: bool) -> None:
    fusion, _ = make_inputs([AdapterConfig(size=2)], value=value)
    params = jax.tree.map(lambda leaf: np.asarray(leaf[0]), fusion["ffn"])
    generator = np.random.default_rng(3)
    z, outputs = generator.normal(size=(2, HIDDEN)), generator.normal(size=(2, 3, HIDDEN))
    found, attention = textbook_fusion(params, jnp.asarray(outputs), jnp.asarray(z), temperature=2.0)
    for token in range(2):
        query = z[token] @ params["query"]["kernel"] + params["query"]["bias"]
        scores = [query @ (u @ params["key"]["kernel"] + params["key"]["bias"]) / 2.0 for u in outputs[token]]
        weights = np.exp(scores) / np.exp(scores).sum()
        values = [u @ params["value"]["kernel"] if value else u for u in outputs[token]]
        np.testing.assert_allclose(attention[token], weights, atol=1e-12)
        np.testing.assert_allclose(found[token], sum(w * v for w, v in zip(weights, values, strict=True)), atol=1e-12)


@pytest.mark.usefixtures("float64")
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    kinds=st.integers(0, 99),
    hidden=st.integers(2, 6),
    shape=st.tuples(st.integers(1, 3), st.integers(2, 4)),
    layers=st.integers(1, 2),
)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_factored_form_equals_the_textbook_form_for_any_shapes(
    sizes: list[int], kinds: int, hidden: int, shape: tuple[int, int], layers: int
) -> None:
    configs = [dataclasses.replace(MIXED[(kinds + index) % len(MIXED)], size=size) for index, size in enumerate(sizes)]
    fusion, adapters = make_inputs(configs, hidden=hidden, layers=layers)
    z, layout = make_z(*shape, hidden), bank_layout(configs, hidden)
    bank = jax.jit(make_bank, static_argnums=1)(adapters, tuple(configs))[0]["ffn"]
    ours = jax.jit(functools.partial(fuse_bank, layout=layout))
    given = {"temperature": 1.0, "rate": 0.0, "key": None}
    theirs = jax.jit(lambda params, alone, z: fuse_adapters(params, alone, configs, z, **given))
    for layer in range(layers):
        of_layer = jax.tree.map(lambda leaf, layer=layer: leaf[layer], (fusion["ffn"], adapters, bank))
        params, alone, bank_of_layer = of_layer[0], [adapter["ffn"] for adapter in of_layer[1]], of_layer[2]
        check_close(ours(params, bank_of_layer, z), theirs(params, alone, z))


def test_folding_in_training_saves_operations() -> None:
    hidden, configs = 64, bank_of([AdapterConfig(size=2)], 4)
    fusion, adapters = make_inputs(configs, hidden=hidden)
    bank, layout = first_layer(make_bank(adapters, configs)[0]["ffn"]), bank_layout(configs, hidden)

    def flops_per_token(tokens: int) -> float:
        def loss(params: Tree, z: jax.Array) -> jax.Array:
            return fuse_bank(params, bank, z, layout=layout)[0].sum()

        compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(first_layer(fusion["ffn"]), make_z(tokens, hidden))
        return compiled.compile().cost_analysis()["flops"] / tokens

    assert flops_per_token(FOLDING_TOKENS) < 0.6 * flops_per_token(FOLDING_TOKENS - 1)
    # Multiplying only query and key first saves 3 d² multiply-adds per token, and the product itself costs 3 d³.
    tokens = FOLDING_TOKENS - 1
    saved = 6 * hidden**2 * (1 - hidden / tokens)
    assert flops_per_token(hidden) - flops_per_token(tokens) == pytest.approx(saved, rel=0.01)


def test_folding_pays_if_it_saves_multiply_adds() -> None:
    # These are the formulas in the docstring of afjax/fusion/cost.py, for BERT-base and 4096 tokens.
    for num_adapters, expected in ((4, True), (16, True), (28, True), (32, False), (200, False)):
        units = 48 * num_adapters
        factored = 4096 * (6 * 768**2 + 6 * units * 768) + 3 * 768**3
        folded = 4096 * 8 * units * 768 + 7 * 768**2 * (units + num_adapters)
        assert folding_pays(4096, [48] * num_adapters, 768) == (folded < factored) == expected
    assert not folding_pays(FOLDING_TOKENS - 1, [48], 768)
    # Folding creates matrices with one row per unit. For large bottlenecks, these cost more than they save.
    assert not folding_pays(10**6, [768] * 8, 768)


def test_fusion_without_dropout_uses_no_key() -> None:
    configs = bank_of(SAME, 3)
    fusion, adapters = make_inputs(configs)
    bank = first_layer(make_bank(adapters, configs)[0]["ffn"])
    z, params = jnp.ones((1, 2, HIDDEN)), first_layer(fusion["ffn"])
    layout = bank_layout(configs, HIDDEN)
    without_key = fuse_bank(params, bank, z, layout=layout, options=ScoreOptions(dropout_rate=0.5))
    without_rate = fuse_bank(params, bank, z, layout=layout, options=ScoreOptions(key=jax.random.key(0)))
    assert all(np.array_equal(*pair) for pair in zip(without_key, without_rate, strict=True))


# Initialization and penalty.


def test_initial_values_are_nearly_the_identity_with_uniform_attention() -> None:
    fusion = init_fusion(jax.random.key(0), FusionConfig(), AdapterConfig(), hidden_size=64, num_layers=2)
    value = fusion["ffn"]["value"]["kernel"]
    assert 0 < np.abs(np.asarray(value) - np.eye(64)).max() < 1e-5
    for name in ("query", "key"):
        assert np.std(fusion["ffn"][name]["kernel"]) == pytest.approx(0.02, rel=0.05)
        assert not np.any(fusion["ffn"][name]["bias"])


@pytest.mark.usefixtures("float64")
def test_penalty_is_the_sum_over_layers_and_slots() -> None:
    config = AdapterConfig(position="both")
    fusion, _ = make_inputs([config], layers=3)
    expected = 0.0
    for slot in ("attention", "ffn"):
        for kernel in fusion[slot]["value"]["kernel"]:
            for row in range(HIDDEN):
                for column in range(HIDDEN):
                    expected += (kernel[row, column] - (row == column)) ** 2
    assert float(value_penalty(fusion)) == pytest.approx(expected, rel=1e-12)
    static, _ = make_inputs([config], value=False)
    assert float(value_penalty(static)) == 0.0


# Sums over units, and broadcasting to units.


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.one_of(
        st.lists(st.integers(1, 4), min_size=1, max_size=2 * BLOCK + 3).map(tuple),
        st.builds(lambda num, size: (size,) * num, st.integers(1, 2 * BLOCK + 3), st.integers(1, 4)),
    )
)
@pytest.mark.usefixtures("float64")
def test_sum_per_adapter_and_spread_to_units_are_transposes(sizes: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    units, values = generator.normal(size=(2, sum(sizes))), generator.normal(size=(2, len(sizes)))
    ends = np.cumsum(sizes)
    summed = np.stack([units[:, end - size : end].sum(-1) for size, end in zip(sizes, ends, strict=True)], -1)
    spread = np.repeat(values, sizes, axis=-1)
    ours, to_units = jax.vjp(lambda units: sum_per_adapter(units, sizes), jnp.asarray(units))
    np.testing.assert_allclose(ours, summed, atol=1e-12)
    np.testing.assert_allclose(to_units(jnp.asarray(values))[0], spread, atol=1e-12)
    ours, to_values = jax.vjp(lambda values: spread_per_adapter(values, sizes), jnp.asarray(values))
    np.testing.assert_allclose(ours, spread, atol=1e-12)
    np.testing.assert_allclose(to_values(jnp.asarray(units))[0], summed, atol=1e-12)


@pytest.mark.parametrize(("platform", "products"), [("tpu", 2), ("cpu", 0)])
def test_only_tpus_sum_and_broadcast_by_matmul(platform: str, products: int) -> None:
    def both(units: jax.Array) -> jax.Array:
        return spread_per_adapter(sum_per_adapter(units, (3,) * 5), (3,) * 5)

    text = jax.jit(both).trace(jnp.zeros((2, 15))).lower(lowering_platforms=(platform,)).as_text()
    assert text.count("stablehlo.dot_general") == products
