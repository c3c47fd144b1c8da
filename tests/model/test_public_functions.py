"""Other JAX code can use the public functions that compute adapters and fusions."""

import dataclasses
import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

import afjax
from afjax.adapters import pal as pal_module
from afjax.adapters.kinds import init_adapter, layer_params
from afjax.config.adapters import AdapterConfig, LhucConfig, PalConfig, TopFfnConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.errors import UserError
from afjax.fusion.parameters import init_fusion
from afjax.fusion.textbook import textbook_fusion
from afjax.model.setup import fusion_setup
from afjax.trees import Tree, map_with_path, named_key
from afjax.trunk.slots import Sublayer
from tests.small_trunk import SMALL_TRUNK

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
TRUNK = SMALL_TRUNK
BOTTLENECK = AdapterConfig(size=3)
NORMED = AdapterConfig(size=2, new_layer_norm="before", activation="gelu", scaling=0.5)
PAL = PalConfig(size=4, num_heads=2)
X = jax.random.normal(KEY, (2, 5, 12))
MASK = np.array([[True] * 5, [True] * 3 + [False] * 2])


def random_adapter(config: Any, seed: int = 1) -> Tree:
    """Makes an adapter's tree with random leaves."""
    return randomized(init_adapter(KEY, config, TRUNK), seed)


def randomized(tree: Tree, seed: int) -> Tree:
    return map_with_path(
        lambda path, leaf: np.asarray(jax.random.normal(named_key(jax.random.key(seed), path), leaf.shape)), tree
    )


def test_layer_params_returns_one_layer_and_the_shared_parameters() -> None:
    tree = random_adapter(PalConfig(size=4, num_heads=2, layers=(0, 2)))
    params = layer_params(tree, PalConfig(size=4, num_heads=2, layers=(0, 2)), 2)
    assert params.keys() == {"encode", "decode", "attention"}
    np.testing.assert_array_equal(params["encode"]["kernel"], tree["shared"]["encode"]["kernel"])
    np.testing.assert_array_equal(params["attention"]["key"]["kernel"], tree["ffn"]["attention"]["key"]["kernel"][1])
    both = AdapterConfig(size=3, position="both")
    np.testing.assert_array_equal(
        layer_params(random_adapter(both), both, 1, "attention")["down"]["bias"],
        random_adapter(both)["attention"]["down"]["bias"][1],
    )


@pytest.mark.parametrize(
    ("config", "layer", "slot", "facts"),
    [
        (BOTTLENECK, 3, "ffn", ("Layer 3 ", "layers are 0, 1, 2.")),
        (BOTTLENECK, -1, "ffn", ("Layer -1 ", "layers are 0, 1, 2.")),
        (AdapterConfig(size=3, layers=(0, 2)), 1, "ffn", ("Layer 1 ", "layers are 0, 2.")),
        (BOTTLENECK, 0, "attention", ('slot "attention"', "bottleneck", "ffn")),
        (TopFfnConfig(), 0, "ffn", ("no slots", "top", "encoder")),
    ],
)
def test_layer_params_refuses_missing_layers_and_slots(
    config: Any, layer: int, slot: str, facts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as error:
        layer_params(random_adapter(config), config, layer, slot)
    assert has_facts(str(error.value), *facts)


def test_fuse_equals_the_textbook_form() -> None:
    configs, config = (BOTTLENECK, NORMED), FusionConfig(temperature=2.0)
    trees = [random_adapter(member, seed) for seed, member in enumerate(configs, 2)]
    fusion = randomized(init_fusion(KEY, config, BOTTLENECK, hidden_size=12, num_layers=3), 4)
    params = layer_params(fusion, BOTTLENECK, 2)
    adapters = [layer_params(*pair, 2) for pair in zip(trees, configs, strict=True)]
    outputs = jnp.stack(
        [afjax.bottleneck(adapter, X, member) for adapter, member in zip(adapters, configs, strict=True)], -2
    )
    for key in (None, jax.random.key(1)):
        expected = textbook_fusion(params, outputs, X, temperature=2.0, dropout_rate=0.3, key=key)
        fused = afjax.fuse(params, adapters, X, configs, config, dropout_rate=0.3, key=key)
        for ours, theirs in zip(fused, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())


@pytest.mark.parametrize(
    "config", [PAL, PalConfig(size=4, num_heads=1, shared_projections=False, output_activation="gelu")]
)
def test_pal_equals_the_output_of_the_slot(config: PalConfig) -> None:
    params = layer_params(random_adapter(config), config, 1)
    sublayer = Sublayer(
        output=X, residual=X, norm=lambda x: x, layer_input=X, mask=jnp.asarray(MASK), attention_dropout=0.0
    )
    expected = pal_module.output(params, config, sublayer)
    for mask in (MASK, MASK.astype(np.int32)):
        np.testing.assert_allclose(afjax.pal(params, X, mask, config), expected, rtol=1e-6)
    dropped = afjax.pal(params, X, MASK, config, dropout_rate=0.5, key=KEY)
    assert np.abs(dropped - expected).max() > 1e-2


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_results_have_the_dtype_of_the_input(dtype: str) -> None:
    x = X.astype(dtype)
    fusion = init_fusion(KEY, FusionConfig(), BOTTLENECK, hidden_size=12, num_layers=3)
    adapter = layer_params(random_adapter(BOTTLENECK), BOTTLENECK, 0)
    outputs = (
        afjax.bottleneck(adapter, x, BOTTLENECK),
        *afjax.fuse(layer_params(fusion, BOTTLENECK, 0), [adapter], x, [BOTTLENECK]),
        afjax.pal(layer_params(random_adapter(PAL), PAL, 0), x, MASK, PAL),
    )
    assert {str(output.dtype) for output in outputs} == {dtype}


def narrowed(params: Tree, name: str) -> Tree:
    """Removes the last output of one dense layer from the parameters."""
    return {**params, name: {leaf: array[..., :-1] for leaf, array in params[name].items()}}


def test_errors_explain_invalid_arguments() -> None:
    tree, pal_tree = random_adapter(BOTTLENECK), random_adapter(PAL)
    one = layer_params(tree, BOTTLENECK, 0)
    fusion = layer_params(init_fusion(KEY, FusionConfig(), BOTTLENECK, hidden_size=12, num_layers=3), BOTTLENECK, 0)
    # Call pal without jaxtyping's shape checks, which are only active in tests and would refuse the arguments first.
    unchecked_pal = inspect.unwrap(afjax.pal)
    cases: list[tuple[Any, tuple[str, ...]]] = [
        (lambda: afjax.bottleneck(tree, X, BOTTLENECK), (" ffn, ", 'no "down/kernel"')),
        (lambda: afjax.bottleneck(tree["ffn"], X, BOTTLENECK), ('"down/kernel"', "(3, 12, 3)")),
        (lambda: afjax.bottleneck(one, X[..., :8], BOTTLENECK), ("size 12", "size 8")),
        (lambda: afjax.fuse(fusion, [one], X, []), ("1 adapters", "0 architectures")),
        (lambda: afjax.fuse(fusion, [], X, []), ("0 adapters", "0 architectures")),
        (lambda: afjax.fuse(fusion, [one], X, [LhucConfig()]), ("Adapter 0 ", "kind lhuc")),
        (lambda: afjax.fuse(fusion, [one], X, [NORMED]), ("Adapter 0 ", "size 3", "architecture has 2")),
        (lambda: afjax.fuse(one, [one], X, [BOTTLENECK]), ("down, up, ", 'no "query/kernel"')),
        (
            lambda: afjax.fuse(fusion, [one], X, [dataclasses.replace(BOTTLENECK, new_layer_norm="before")]),
            ("Adapter 0 ", "norm_before", 'new_layer_norm="before"'),
        ),
        (lambda: afjax.pal(layer_params(pal_tree, PAL, 0), X, MASK, PalConfig(size=8, num_heads=2)), ("encode", "8")),
        (
            lambda: fusion_setup({}, FusionConfig(), HeadConfig(), TRUNK, name="x", reads="pooled", num_outputs=2),
            ("at least one adapter",),
        ),
        (lambda: afjax.pal(pal_tree["ffn"], X, MASK, PAL), (" attention, ", 'no "encode/kernel"')),
        (lambda: unchecked_pal(layer_params(pal_tree, PAL, 0), X[0], MASK, PAL), ("x ", "(5, 12)")),
        (lambda: unchecked_pal(layer_params(pal_tree, PAL, 0), X, MASK[:, :3], PAL), ("mask ", "(2, 3)")),
    ]
    # Without a check, a matrix with the wrong number of outputs would give a result of the wrong size.
    pal_params = layer_params(pal_tree, PAL, 0)
    for name in ("key", "value"):
        cases.append(
            (partial(afjax.fuse, narrowed(fusion, name), [one], X, [BOTTLENECK]), (f"{name}/kernel", "11", "12"))
        )
    cases += [
        (lambda: afjax.bottleneck(narrowed(one, "up"), X, BOTTLENECK), ("up/kernel", "11", "12")),
        (lambda: afjax.fuse(fusion, [narrowed(one, "up")], X, [BOTTLENECK]), ("up/kernel", "11", "12")),
        (lambda: afjax.pal(narrowed(pal_params, "decode"), X, MASK, PAL), ("decode/kernel", "11", "12")),
    ]
    for call, facts in cases:
        with pytest.raises(UserError) as error:
            call()
        assert has_facts(str(error.value), *facts)
