"""Fusions of task modules match the textbook form, and the module kinds determine if the factored form is used."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.adapters.kinds import init_adapter, slot_kind
from afjax.adapters.placement import plain_output
from afjax.config.adapters import (
    Adapter,
    AdapterConfig,
    BesideLayers,
    LhucConfig,
    LowRankConfig,
    PalConfig,
    ProjectedFfnConfig,
    TopLayerConfig,
)
from afjax.config.fusion import FusionConfig
from afjax.errors import UserError
from afjax.fusion.bank import make_bank
from afjax.fusion.checks import check_fusible, is_factored
from afjax.fusion.parameters import init_fusion
from afjax.fusion.slot import fused_slot
from afjax.fusion.textbook import textbook_fusion
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.trees import Tree, map_with_path, merge, named_key
from afjax.trunk.encoder import init_trunk
from afjax.trunk.slots import Sublayer
from tests.small_trunk import SMALL_TRUNK

pytestmark = pytest.mark.slow

KEY = jax.random.key(0)
TRUNK = dataclasses.replace(SMALL_TRUNK, init_scale=0.3)
MASK = np.array([[True] * 5, [True, True, True, False, False]])
PAL = PalConfig(size=6, num_heads=3)
CODE = PalConfig(size=6, num_heads=3, output_activation="gelu")
CASES: dict[str, tuple[tuple[BesideLayers, ...], bool]] = {
    "equal": ((PAL, PAL, PAL), True),
    "one": ((PAL,), True),
    "of other sizes": ((PAL, PalConfig(size=4, num_heads=1)), True),
    "of other kinds": ((PAL, LowRankConfig(size=3), ProjectedFfnConfig(size=4, intermediate_size=5)), True),
    "of their own projections": ((PalConfig(size=6, num_heads=3, shared_projections=False), PAL), True),
    "serial": ((PalConfig(size=6, num_heads=3, placement="serial"), LowRankConfig(size=2, placement="serial")), True),
    "in some layers": ((PalConfig(size=6, num_heads=3, layers=(0, 2)), LowRankConfig(size=2, layers=(0, 2))), True),
    "nonlinear": ((CODE, CODE), False),
    "linear and not": ((PAL, CODE), False),
    "lhuc": ((LhucConfig(), LhucConfig()), False),
}


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def draw(tree: Tree, seed: int) -> Tree:
    def one(path: str, leaf: jax.Array) -> np.ndarray:
        return 0.4 * np.asarray(jax.random.normal(named_key(jax.random.key(seed), path), leaf.shape))

    return map_with_path(one, tree)


def make_params(configs: tuple[BesideLayers, ...], *, value: bool = True) -> tuple[Tree, list[Tree]]:
    size = {"hidden_size": TRUNK.hidden_size, "num_layers": TRUNK.num_layers}
    fusion = init_fusion(KEY, FusionConfig(value=value), configs[0], **size)
    return draw(fusion, 0), [draw(init_adapter(KEY, config, TRUNK), 1 + i) for i, config in enumerate(configs)]


def fuse_modules(
    fusion: Tree, adapters: list[Tree], configs: tuple[BesideLayers, ...], slot: Sublayer
) -> tuple[jax.Array, jax.Array]:
    """Applies the paper's formula to the modules' outputs, and computes the rest of the layer."""
    outputs = []
    for tree, config in zip(adapters, configs, strict=True):
        output = slot_kind(config).output
        assert output is not None
        outputs.append(output({**tree.get("shared", {}), **tree["ffn"]}, config, slot))
    z = plain_output(slot)
    mixed, attention = textbook_fusion(fusion, jnp.stack(outputs, -2), z)
    if isinstance(configs[0], LhucConfig):
        return z + mixed, attention
    return slot.norm(slot.residual + slot.output + mixed), attention


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("name", "value"), [*((name, True) for name in CASES), ("equal", False), ("nonlinear", False)])
def test_fused_modules_equal_the_textbook_form_in_value_and_gradient(name: str, value: bool) -> None:
    configs, factored = CASES[name]
    assert is_factored(configs) == factored
    fusion, adapters = make_params(configs, value=value)
    output, residual, layer_input = jax.random.normal(KEY, (3, 2, 5, TRUNK.hidden_size))

    def slot_of(x: jax.Array) -> Sublayer:
        def norm(x: jax.Array) -> jax.Array:
            return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-3)

        return Sublayer(
            output=output, residual=residual, norm=norm, layer_input=x, mask=jnp.asarray(MASK), attention_dropout=0.1
        )

    def first(tree: Tree) -> Tree:
        return jax.tree.map(lambda leaf: leaf[0], tree)

    def ours(fusion: Tree, adapters: list[Tree], x: jax.Array) -> Any:
        stacked, shared = make_bank(adapters, configs)
        params = {**merge(first(stacked["ffn"]), shared["ffn"]), "fusion": first(fusion["ffn"])}
        return fused_slot(params, configs, FusionConfig(), slot_of(x), key=None)

    def theirs(fusion: Tree, adapters: list[Tree], x: jax.Array) -> Any:
        of_layer = [{**tree, "ffn": first(tree["ffn"])} for tree in adapters]
        return fuse_modules(first(fusion["ffn"]), of_layer, configs, slot_of(x))

    def values_and_gradients(function: Any) -> Any:
        def loss(*inputs: Any) -> Any:
            hidden, attention = function(*inputs)
            return jnp.sin(hidden).sum() + (attention**2).sum(), (hidden, attention)

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(fusion, adapters, layer_input)

    mine, expected = values_and_gradients(ours), values_and_gradients(theirs)
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(expected), strict=True):
        assert one.dtype == np.float64
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
    assert np.std(mine[1][1]) > 0.01 or len(configs) == 1


@pytest.mark.parametrize("name", ["of other kinds", "serial", "in some layers", "nonlinear", "lhuc"])
def test_fusion_of_modules_in_the_full_model(name: str) -> None:
    configs, factored = CASES[name]
    fusion, adapters = make_params(configs)
    names = [str(number) for number in range(len(configs))]
    trunk = jax.jit(init_trunk, static_argnums=1)(KEY, TRUNK)
    model = Model(trunk=TRUNK, head_name="task", adapters=tuple(zip(names, configs, strict=True)), fusion_name="mix")
    params = {
        "trunk": trunk,
        "adapters": dict(zip(names, adapters, strict=True)),
        "fusion": {"mix": fusion},
        "heads": {"task": init_head(KEY, model.head, 2, trunk=trunk)},
    }
    tokens = jax.random.randint(KEY, (2, 5), 1, 30)
    batch = {"tokens": tokens, "types": jnp.zeros_like(tokens), "mask": jnp.asarray(MASK)}
    expected = model(params, batch, fusion_attention=True)
    depth = 2 if name == "in some layers" else 3
    assert expected.fusion_attention["ffn"].shape == (depth, 2, 5, len(configs))
    folded = model.fold(params)
    assert (folded is not params) == factored
    scanned = Model(**{**vars(model), "scan_layers": True})
    given = ((model, folded), (scanned, params), (scanned, scanned.fold(params)))
    for other, tree in (*given, (model, model.with_bank(params)), (scanned, scanned.with_bank(params))):
        again = other(tree, batch, fusion_attention=True)
        np.testing.assert_allclose(again.logits, expected.logits, atol=1e-5)
        np.testing.assert_allclose(again.fusion_attention["ffn"], expected.fusion_attention["ffn"], atol=1e-5)
        np.testing.assert_allclose(other(tree, batch).logits, expected.logits, atol=1e-5)
    dropped = model(params, batch, key=KEY).logits
    assert np.all(np.isfinite(dropped))
    assert not np.allclose(dropped, expected.logits)


@pytest.mark.parametrize(
    ("one", "two", "facts"),
    [
        (PAL, AdapterConfig(), ("kinds", "pal and bottleneck")),
        (LhucConfig(), LowRankConfig(placement="serial"), ("kinds", "lhuc and low_rank")),
        (PAL, LowRankConfig(placement="serial"), ("slots", 'placement "parallel" and "serial"')),
        (PAL, LowRankConfig(layers=(1,)), ("layers", "None and (1,)")),
        (TopLayerConfig(), TopLayerConfig(), ("kind top_layer", "top", "encoder")),
    ],
)
def test_incompatible_modules_are_refused(one: Adapter, two: Adapter, facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as raised:
        check_fusible({"one": one, "two": two}, 3)
    assert has_facts(str(raised.value), *facts)
