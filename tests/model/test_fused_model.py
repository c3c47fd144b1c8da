"""Models with a fusion have the right attention, folded form and penalty.

Incompatible adapters are refused.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.errors import UserError
from afjax.fusion.checks import check_fusible
from afjax.fusion.parameters import init_fusion, value_penalty
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.trees import Tree, flatten, named_key
from afjax.trunk.encoder import init_trunk
from tests.small_trunk import SMALL_TRUNK

pytestmark = pytest.mark.slow

TRUNK = dataclasses.replace(SMALL_TRUNK, init_scale=0.3)
# With these scales, every leaf affects the outputs.
FUSION = FusionConfig(init_scale=0.4, value_init_scale=0.2)


def make_model(**changes: Any) -> tuple[Model, Tree, dict[str, jax.Array]]:
    """Returns ``(model, params, batch)`` for a fusion of two adapters.

    ``params`` also has an adapter, a fusion and a head that the model does not use.
    """
    configs = {name: AdapterConfig(size=size, init_scale=0.5, **changes) for name, size in (("one", 3), ("two", 2))}
    model = Model(trunk=TRUNK, head_name="task", adapters=tuple(configs.items()), fusion_name="both", fusion=FUSION)
    size = {"hidden_size": TRUNK.hidden_size, "num_layers": TRUNK.num_layers}
    key = jax.random.key(1)
    trunk = jax.jit(init_trunk, static_argnums=1)(key, TRUNK)
    adapters = {name: init_adapter(named_key(key, "adapters", name), config, TRUNK) for name, config in configs.items()}
    params = {
        "trunk": trunk,
        "adapters": {**adapters, "unused": {"ffn": jnp.zeros(())}},
        "fusion": {"both": init_fusion(key, FUSION, configs["one"], **size), "unused": {}},
        "heads": {"task": init_head(key, model.head, 3, trunk=trunk), "unused": {}},
    }
    tokens = jax.random.randint(key, (2, 6), 1, 30)
    mask = jnp.arange(6)[None] < jnp.array([[6], [4]])
    return model, params, {"tokens": tokens, "types": jnp.zeros_like(tokens), "mask": mask}


@pytest.mark.parametrize(
    ("changes", "slots", "layers"),
    [
        ({}, ["ffn"], 3),
        ({"layers": (0, 2)}, ["ffn"], 2),
        ({"position": "both", "pretrained_layer_norm": "after"}, ["attention", "ffn"], 3),
    ],
)
def test_attention_over_adapters_is_returned_for_every_layer(
    changes: dict[str, Any], slots: list[str], layers: int
) -> None:
    model, params, batch = make_model(**changes)
    outputs = model(params, batch, fusion_attention=True)
    assert outputs.logits.shape == (2, 3)
    assert sorted(outputs.fusion_attention) == slots
    for attention in outputs.fusion_attention.values():
        assert attention.shape == (layers, 2, 6, 2)
        np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-6)
        assert np.std(attention) > 0.01
    scanned = dataclasses.replace(model, scan_layers=True)
    for other, tree in ((scanned, params), (model, model.fold(params)), (scanned, scanned.fold(params))):
        other_outputs = other(tree, batch, fusion_attention=True)
        np.testing.assert_allclose(other_outputs.logits, outputs.logits, atol=1e-5)
        for slot in slots:
            np.testing.assert_allclose(other_outputs.fusion_attention[slot], outputs.fusion_attention[slot], atol=1e-5)
        without_attention = other(tree, batch)
        assert without_attention.fusion_attention == {}
        np.testing.assert_allclose(without_attention.logits, outputs.logits, atol=1e-5)


@pytest.mark.parametrize("scan_layers", [False, True])
@pytest.mark.parametrize("changes", [{}, {"layers": (0, 2)}, {"position": "both"}])
def test_fusion_gradients_are_the_same_with_banked_and_separate_adapters(
    changes: dict[str, Any], scan_layers: bool
) -> None:
    model, params, batch = make_model(**changes)
    model = dataclasses.replace(model, scan_layers=scan_layers)
    with_bank = model.with_bank(params)
    assert with_bank.keys() == (params.keys() - {"adapters"}) | {"bank"}

    @jax.jit
    def loss_and_gradients(fusion: Tree, rest: Tree) -> Any:
        def loss(fusion: Tree) -> jax.Array:
            logits = model({**rest, "fusion": {"both": fusion}}, batch, key=jax.random.key(2)).logits
            return jnp.sin(logits).sum()

        return jax.value_and_grad(loss)(fusion)

    banked, separate = (loss_and_gradients(params["fusion"]["both"], tree) for tree in (with_bank, params))
    for leaf, expected in zip(jax.tree.leaves(banked), jax.tree.leaves(separate), strict=True):
        assert np.abs(expected).max() > 1e-4
        np.testing.assert_allclose(leaf, expected, atol=1e-5)
    # The folded matrices for evaluation are also the same.
    folded, folded_bank = (flatten(model.fold(tree)["fusion"]["both"]) for tree in (params, with_bank))
    assert folded.keys() == folded_bank.keys()
    for path, leaf in folded.items():
        np.testing.assert_allclose(folded_bank[path], leaf, atol=1e-6)


def test_padding_tokens_affect_neither_logits_nor_attention() -> None:
    model, params, batch = make_model()
    changed_batch = {**batch, "tokens": jnp.where(batch["mask"], batch["tokens"], 7)}
    outputs, changed = (model(params, rows, fusion_attention=True) for rows in (batch, changed_batch))
    np.testing.assert_allclose(changed.logits, outputs.logits, atol=1e-6)
    mask = np.asarray(batch["mask"])
    np.testing.assert_allclose(
        changed.fusion_attention["ffn"][:, mask], outputs.fusion_attention["ffn"][:, mask], atol=1e-6
    )


def test_penalty_is_weighted_and_is_zero_without_a_fusion() -> None:
    model, params, _ = make_model()
    weighted = dataclasses.replace(model, fusion=FusionConfig(regularization=0.5))
    assert float(weighted.penalty(params)) == pytest.approx(0.5 * float(value_penalty(params["fusion"]["both"])))
    assert Model(trunk=TRUNK, head_name="task").penalty(params) == 0.0


def test_folding_without_a_fusion_returns_the_same_tree() -> None:
    _, params, _ = make_model()
    assert Model(trunk=TRUNK, head_name="task").fold(params) is params


def test_folding_does_not_modify_its_argument() -> None:
    model, params, _ = make_model()
    before = list(flatten(params))
    folded = model.fold(params)
    assert list(flatten(params)) == before
    assert folded["trunk"] is params["trunk"]


# Tests of adapters that cannot be fused.


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"position": "attention"}, ('"one"', '"two"', "slots", 'position "ffn" and "attention"')),
        ({"pretrained_layer_norm": "after"}, ('"one"', '"two"', "slots", 'pretrained_layer_norm "both" and "after"')),
        ({"residual_from": "input"}, ('"one"', '"two"', "slots", 'residual_from "sublayer" and "input"')),
        ({"layers": (0, 1)}, ('"one"', '"two"', "layers", "None and (0, 1)")),
        ({"layer_norms": True}, ('"two"', "LayerNorms")),
        ({"layers": (0, 3)}, ("adapter.layers ", "layer 3", "layers 0 to 2")),
    ],
)
def test_incompatible_adapters_are_refused(changes: dict[str, Any], facts: tuple[str, ...]) -> None:
    configs = {"one": AdapterConfig(), "two": AdapterConfig(**changes)}
    with pytest.raises(UserError) as raised:
        check_fusible(configs, 3)
    assert has_facts(str(raised.value), *facts)
    with pytest.raises(UserError):
        Model(trunk=TRUNK, head_name="task", adapters=tuple(configs.items()), fusion_name="both")


def test_adapters_with_the_same_layout_can_be_fused() -> None:
    other = AdapterConfig(size=3, activation="tanh", new_layer_norm="both", scaling=2.0, layers=(0, 1, 2))
    check_fusible({"one": AdapterConfig(), "two": other}, 3)
