"""Dropped adapters are not computed, and a model without them matches one in which they add nothing."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts

from afjax import store
from afjax.adapters.kinds import init_adapter
from afjax.analysis.adapterdrop import adapterdrop_curve, most_used, prune_curve, rank_adapters
from afjax.config.adapters import AdapterConfig, BesideLayers, LhucConfig, PalConfig, TopFfnConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.fusion.checks import check_subset
from afjax.fusion.parameters import init_fusion
from afjax.model.heads import init_head
from afjax.model.loading import load_adapters, load_task_model
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.tasks.load import rows_from_lists
from afjax.trees import Tree, map_with_path, named_key
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

BOTTLENECK = AdapterConfig(size=4)
PAL = PalConfig(size=8, num_heads=2)
NAMES = ("a", "b", "c")


@pytest.fixture(scope="module")
def rows() -> Rows:
    words = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
    texts = [f"{many} of the {number}" for number in words for many in ("all", "some")]
    return rows_from_lists(texts, ["many", "few"] * 8, label_names=("few", "many"))


def draw(tree: Tree, name: str, *, scale: float = 0.4) -> Tree:
    return map_with_path(
        lambda path, leaf: np.asarray(scale * jax.random.normal(named_key(jax.random.key(3), name, path), leaf.shape)),
        tree,
    )


def make(trunk: Trunk, config: Any, *, names: tuple[str, ...] = NAMES, fused: bool = True, **fusion: Any) -> TaskModel:
    """Builds a model whose random parameters are large enough to affect its outputs."""
    mixed = FusionConfig(**fusion)
    size = {"hidden_size": trunk.config.hidden_size, "num_layers": trunk.config.num_layers}
    key = jax.random.key(0)
    model = Model(
        trunk=trunk.config,
        head_name="task",
        adapters=tuple((name, config) for name in names),
        fusion_name="mix" if fused else "",
        fusion=mixed,
    )
    params = {
        "adapters": {name: draw(init_adapter(key, config, trunk.config), name) for name in names},
        # Keep the fusion's parameters small, so that it attends to all adapters. Otherwise a test would divide by an
        # attention weight close to zero.
        "fusion": {"mix": draw(init_fusion(key, mixed, config, **size), "mix", scale=0.1)} if fused else {},
        "heads": {"task": draw(init_head(key, HeadConfig(), 2, trunk=trunk.params), "head")},
    }
    return TaskModel(
        trunk=trunk,
        model=model,
        params=params,
        task=TaskConfig(name="task"),
        labels=("few", "many"),
        metrics={},
        seed=0,
        max_length=8,
    )


def logits(task_model: TaskModel, rows: Rows) -> np.ndarray:
    return task_model.predict_rows(rows).logits


def silenced(task_model: TaskModel, layer: int) -> TaskModel:
    """Copies the model and zeroes the adapters' last parameters in ``layer``, so that they add nothing there."""

    def silent(path: str, leaf: np.ndarray) -> np.ndarray:
        if not any(part in path for part in ("/up/", "/decode/", "ffn/scale")):
            return leaf
        leaf = np.array(leaf)
        leaf[layer] = 0.0
        return leaf

    adapters = {
        name: map_with_path(lambda p, x: silent(f"/{p}", x), tree)
        for name, tree in task_model.params["adapters"].items()
    }
    return dataclasses.replace(task_model, params={**task_model.params, "adapters": adapters})


# Dropping layers.


@pytest.mark.parametrize(
    ("config", "layer", "fused"),
    [
        (BOTTLENECK, 0, False),
        (AdapterConfig(size=4, position="both"), 1, True),
        (dataclasses.replace(PAL, shared_projections=False), 0, True),
        (LhucConfig(), 1, False),
    ],
    ids=str,
)
def test_dropping_a_layer_equals_adapters_that_add_nothing(
    tiny_trunk: Trunk, rows: Rows, config: Any, layer: int, fused: bool
) -> None:
    whole = make(tiny_trunk, config, names=NAMES if fused else ("a",), fused=fused)
    dropped = whole.without_layers([layer])
    np.testing.assert_allclose(logits(dropped, rows), logits(silenced(whole, layer), rows), atol=1e-5)
    assert np.abs(logits(dropped, rows) - logits(whole, rows)).max() > 1e-3
    assert dropped.model.adapters[0][1].layers == (1 - layer,)
    assert dropped.flops_per_row() < whole.flops_per_row()


def test_pal_without_a_layer_keeps_its_shared_projections(tiny_trunk: Trunk, rows: Rows) -> None:
    whole = make(tiny_trunk, PAL, names=("a",), fused=False)
    dropped = whole.without_layers([0])
    assert dropped.params["adapters"]["a"]["shared"] is whole.params["adapters"]["a"]["shared"]
    assert dropped.params["adapters"]["a"]["ffn"]["attention"]["query"]["kernel"].shape[0] == 1
    assert np.all(np.isfinite(logits(dropped, rows)))


def test_invalid_layers_to_drop_are_refused(tiny_trunk: Trunk) -> None:
    whole = make(tiny_trunk, BOTTLENECK)
    cases = [
        (whole, [2], ("Layer 2 ", "drop", "layers are 0, 1.")),
        (whole, [0, 1], ("every layer", "at least one")),
        (whole.without_layers([0]), [0], ("Layer 0 ", "drop", "layers are 1.")),
        (make(tiny_trunk, TopFfnConfig(size=4), names=("a",), fused=False), [0], ("kind top_ffn", "top", "encoder")),
        (make(tiny_trunk, BOTTLENECK, names=(), fused=False), [0], ("without adapters", "drop")),
    ]
    for task_model, layers, facts in cases:
        with pytest.raises(UserError) as raised:
            task_model.without_layers(layers)
        assert has_facts(str(raised.value), *facts)


@pytest.mark.parametrize("from_top", [False, True])
def test_curve_of_dropped_layers(tiny_trunk: Trunk, rows: Rows, from_top: bool) -> None:
    points = list(adapterdrop_curve(make(tiny_trunk, BOTTLENECK), rows, from_top=from_top))
    assert [point.what for point in points] == ["layers dropped: none", f"layers dropped: {1 if from_top else 0}"]
    assert [point.kept for point in points] == [1.0, 0.5]
    assert points[1].flops_per_row < points[0].flops_per_row
    assert all(point.rows_per_second > 0 and "accuracy" in point.scores for point in points)


# Removing adapters from a fusion.


@pytest.mark.parametrize("config", [BOTTLENECK, LhucConfig()], ids=str)
def test_attention_of_a_removed_adapter_goes_to_the_others(tiny_trunk: Trunk, rows: Rows, config: Any) -> None:
    whole = make(tiny_trunk, config)
    fewer = whole.without_adapters(["b"])
    before = whole.predict_rows(rows, fusion_attention=True).fusion_attention["ffn"]
    after = fewer.predict_rows(rows, fusion_attention=True).fusion_attention["ffn"]
    assert after.shape == (*before.shape[:2], 2)
    np.testing.assert_allclose(after.sum(-1), 1.0, atol=1e-5)
    batch = {"tokens": jnp.array([[2, 8, 9, 3]]), "types": jnp.zeros((1, 4), jnp.int32), "mask": jnp.ones((1, 4), bool)}

    def first_layer(task_model: TaskModel) -> np.ndarray:
        params = {"trunk": task_model.trunk.params, **task_model.params}
        return np.asarray(task_model.model(params, batch, fusion_attention=True).fusion_attention["ffn"][0])

    # This is exact only in the first layer, where both models have the same inputs.
    left = first_layer(whole)[..., [0, 2]]
    np.testing.assert_allclose(first_layer(fewer), left / left.sum(-1, keepdims=True), atol=1e-5)


def test_adding_a_removed_adapter_restores_the_model(tiny_trunk: Trunk, rows: Rows) -> None:
    whole = make(tiny_trunk, BOTTLENECK)
    fewer = whole.without_adapters(["c"])
    again = fewer.with_adapters({"c": (BOTTLENECK, whole.params["adapters"]["c"])})
    np.testing.assert_allclose(logits(again, rows), logits(whole, rows), atol=1e-6)
    for name in ("a", "b"):
        assert again.params["adapters"][name] is whole.params["adapters"][name]
    assert again.params["fusion"] is whole.params["fusion"]


def test_adapters_kept_per_layer(tiny_trunk: Trunk, rows: Rows) -> None:
    whole = make(tiny_trunk, BOTTLENECK)
    np.testing.assert_allclose(logits(whole.with_kept((((0, 1, 2),) * 2,)), rows), logits(whole, rows), atol=1e-6)
    # If every layer keeps the same adapters, the result matches without_adapters for the other adapters.
    for kept, names in (((1, 2), ["a"]), ((1,), ["a", "c"])):
        expected = logits(whole.without_adapters(names), rows)
        np.testing.assert_allclose(logits(whole.with_kept(((kept, kept),)), rows), expected, atol=1e-6)
    # If layers keep different adapters, the result matches a model with an adapter assembled from these layers.
    mixed = whole.with_kept((((0,), (2,)),))
    trees = whole.params["adapters"]
    both = {"x": jax.tree.map(lambda a, c: np.stack([a[0], c[1]]), trees["a"], trees["c"])}
    alone = dataclasses.replace(
        whole,
        model=dataclasses.replace(whole.model, adapters=(("x", BOTTLENECK),)),
        params={**whole.params, "adapters": both},
    )
    np.testing.assert_allclose(logits(mixed, rows), logits(alone, rows), atol=1e-6)
    assert mixed.flops_per_row() < whole.flops_per_row()


@pytest.mark.parametrize("config", [PAL, LhucConfig()], ids=str)
def test_task_modules_are_pruned_like_bottlenecks(tiny_trunk: Trunk, rows: Rows, config: BesideLayers) -> None:
    whole = make(tiny_trunk, config)
    expected = logits(whole.without_adapters(["b"]), rows)
    np.testing.assert_allclose(logits(whole.with_kept((((0, 2), (0, 2)),)), rows), expected, atol=1e-5)
    np.testing.assert_allclose(
        logits(whole.with_kept((((0, 2), (1, 2)),)).without_layers([1]), rows),
        logits(whole.without_adapters(["b"]).without_layers([1]), rows),
        atol=1e-5,
    )


def test_most_used_adapters_are_kept(tiny_trunk: Trunk, rows: Rows) -> None:
    whole = make(tiny_trunk, BOTTLENECK)
    shares = rank_adapters(whole, rows)
    assert shares["ffn"].shape == (2, 3)
    np.testing.assert_allclose(shares["ffn"].sum(-1), 1.0, atol=1e-5)
    assert most_used({"ffn": np.array([[0.2, 0.5, 0.3], [0.4, 0.1, 0.5]])}, 2) == (((1, 2), (0, 2)),)
    points = list(prune_curve(whole, rows, shares))
    assert [point.what for point in points] == ["adapters kept: 3", "adapters kept: 2", "adapters kept: 1"]
    flops = [point.flops_per_row for point in points]
    assert flops == sorted(flops, reverse=True)
    assert len(set(flops)) == 3


def test_invalid_pruning_adding_or_removing_is_refused(tiny_trunk: Trunk, rows: Rows) -> None:
    whole, single = make(tiny_trunk, BOTTLENECK), make(tiny_trunk, BOTTLENECK, names=("a",), fused=False)
    pruned = whole.with_kept((((0, 1), (0, 2)),))
    other = (
        AdapterConfig(size=2),
        draw(init_adapter(jax.random.key(0), AdapterConfig(size=2), tiny_trunk.config), "d"),
    )
    wide = (AdapterConfig(size=3), other[1])
    cases = [
        (lambda: whole.with_adapters({"d": wide}), ('"d"', "does not fit", "down")),
        (lambda: whole.without_adapters(["d"]), ('"d"', "not fused", "a, b, c")),
        (lambda: whole.without_adapters(NAMES), ("every adapter", "at least one")),
        (lambda: pruned.without_adapters(["a"]), ("pruned", "remove ")),
        (lambda: pruned.with_adapters({"d": other}), ("pruned", "add ")),
        (lambda: whole.with_adapters({"a": other}), ('"a"', "already fused")),
        (lambda: single.without_adapters(["a"]), ("without a fusion",)),
        (lambda: rank_adapters(single, rows), ("without a fusion", "rank")),
        (lambda: whole.with_kept((((0, 1),),)), ("fusion.kept ", "1 slots", "2 layers")),
        (lambda: whole.with_kept((((0,), (3,)),)), ("fusion.kept ", "adapter 3", "adapters 0 to 2")),
        (lambda: whole.with_kept((((0,), (1, 2)),)), ("fusion.kept is (((0,), (1, 2)),)", "distinct")),
        (lambda: whole.with_kept((((0, 0), (1, 2)),)), ("fusion.kept is (((0, 0), (1, 2)),)", "distinct")),
        (lambda: whole.with_adapters({"d": other}).with_kept((((0,), (1,)),)), ("same architecture",)),
        (lambda: most_used({"ffn": np.ones((2, 3))}, 4), ("4 adapters", "has 3")),
        (lambda: check_subset(FusionConfig(subset=4), 3), ("fusion.subset is 4", "3 adapters")),
        (lambda: rank_adapters(pruned, rows), ("pruned", "rank ")),
        (lambda: FusionConfig(subset=0), ("fusion.subset is 0",)),
    ]
    for attempt, facts in cases:
        with pytest.raises(UserError) as raised:
            attempt()
        assert has_facts(str(raised.value), *facts)


def test_pruned_fusion_is_stored_and_loaded(tiny_trunk: Trunk, rows: Rows, tmp_path: Any) -> None:
    whole = make(tiny_trunk, BOTTLENECK)
    for name in NAMES:
        alone = make(tiny_trunk, BOTTLENECK, names=(name,), fused=False)
        model = dataclasses.replace(alone.model, head_name=name)
        dataclasses.replace(
            alone, model=model, params={**alone.params, "heads": {name: alone.params["heads"]["task"]}}
        ).save(tmp_path)
    whole.save(tmp_path)
    pruned = whole.with_kept((((0, 1), (0, 2)),)).renamed("small")
    pruned.save(tmp_path)
    again = load_task_model(tmp_path, tiny_trunk, head="small", fusion="small")
    assert again.model.fusion.kept == (((0, 1), (0, 2)),)
    np.testing.assert_array_equal(logits(again, rows), logits(pruned, rows))
    with pytest.raises(UserError, match=r'"small" already exists.*fusion'):
        whole.renamed("small").save(tmp_path)
    with pytest.raises(UserError, match=r'adapter "a".*store .*does not match.*fusion'):
        whole.without_layers([0]).renamed("smaller").save(tmp_path)
    with pytest.raises(UserError, match=r'adapter "a".*not in the store .*elsewhere'):
        whole.save(tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    assert store.names(tmp_path, "fusion") == ["mix", "small"]
    assert store.verify(tmp_path) == []
    stored: Mapping[str, Any] = load_adapters(tmp_path, ["c"], tiny_trunk)
    loaded = load_task_model(tmp_path, tiny_trunk, head="task", fusion="mix")
    fewer = loaded.without_adapters(["c"])
    np.testing.assert_array_equal(logits(fewer.with_adapters(stored), rows), logits(loaded, rows))


def test_edited_model_has_no_metrics(tiny_trunk: Trunk, tmp_path: Any) -> None:
    whole = dataclasses.replace(make(tiny_trunk, BOTTLENECK), metrics={"accuracy": 0.75})
    added = {"d": (BOTTLENECK, whole.params["adapters"]["a"])}
    alone = dataclasses.replace(make(tiny_trunk, BOTTLENECK, names=("a",), fused=False), metrics={"accuracy": 0.75})
    edited = [
        whole.without_layers([0]),
        whole.without_adapters(["b"]),
        whole.with_adapters(added),
        whole.with_kept((((0, 1), (0, 2)),)),
        alone.with_adapter(added["d"]),
    ]
    assert [dict(model.metrics) for model in edited] == [{}] * 5
    # Renaming does not change the scores.
    assert alone.renamed("b").metrics == {"accuracy": 0.75}
    alone.without_layers([0]).renamed("smaller").save(tmp_path)
    for kind in ("adapters", "heads"):
        assert not store.read_manifest(tmp_path, kind, "smaller").metrics


# Fusing a random subset of adapters in each training step.


def test_training_step_fuses_a_random_subset_of_adapters(tiny_trunk: Trunk) -> None:
    # At this temperature, the attention weights of the drawn adapters do not underflow to zero.
    whole, drawn = (make(tiny_trunk, BOTTLENECK, temperature=50.0, subset=subset) for subset in (None, 2))
    params = jax.tree.map(jnp.asarray, {"trunk": tiny_trunk.params, **whole.params})
    batch = {"tokens": jnp.array([[2, 8, 9, 3]]), "types": jnp.zeros((1, 4), jnp.int32), "mask": jnp.ones((1, 4), bool)}

    @jax.jit
    def attention(key: jax.Array) -> jax.Array:
        return drawn.model(params, batch, key=key, fusion_attention=True).fusion_attention["ffn"]

    seen = set()
    for seed in range(12):
        used = np.asarray(attention(jax.random.key(seed)) > 0)
        # The subset is the same for all layers and tokens.
        assert np.array_equal(used, np.broadcast_to(used[0, 0, 0], used.shape))
        assert used[0, 0, 0].sum() == 2
        seen.add(tuple(used[0, 0, 0].tolist()))
    assert len(seen) == 3
    plain, again = (model.model(params, batch).logits for model in (whole, drawn))
    assert np.array_equal(plain, again)
    # A fusion trained with random subsets can be pruned to fewer adapters than each step fused.
    drawn.with_kept((((0,), (1,)),))
    drawn.without_adapters(["a", "b"])
