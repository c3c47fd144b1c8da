"""A routed model predicts each row like the model of the row's task."""

import contextlib
import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from facts import has_facts
from random_tasks import random_task

from afjax import Capacity, RoutedModel, TaskModel, Trunk, UserError, load_routed_model, store
from afjax.config.adapters import (
    ADAPTER_PRESETS,
    AdapterConfig,
    Ia3Config,
    LhucConfig,
    LoraConfig,
    LowRankConfig,
    PalConfig,
    ProjectedFfnConfig,
    TopAttentionConfig,
    TopFfnConfig,
    TopLayerConfig,
)
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.serve.columns import pick_inputs
from afjax.serve.loading import find_artifact
from afjax.serve.requests import ServedTask, predict_rows, read_rows
from afjax.trunk.embedding import EmbeddingConfig
from tests.small_trunk import distinct_families, small_trunk_on_disk

pytestmark = pytest.mark.slow

BOTTLENECK = AdapterConfig(size=4)
SMALL = Capacity(batch_sizes=(4,), lengths=(16,))
TEXTS = ("all cats are small", "no dogs", "some small cats are not dogs")


def check_rows(
    routed: RoutedModel, models: dict[str, TaskModel], rows: list[Any], names: list[str | None], max_length: int = 16
) -> None:
    """Compares each prediction with the prediction of the task's own model.

    For a row without a task, the prediction is the trunk's embedding.
    """
    predictions = routed.predict(rows, names)
    assert len(predictions) == len(rows)
    for row, name, prediction in zip(rows, names, predictions, strict=True):
        if name is None:
            expected = {"embedding": routed.trunk.embed([row], max_length=max_length)[0].tolist()}
        else:
            expected = models[name].predict([row]).as_json(0)
        check_equal(prediction, expected, f"{name}: {row}")


def check_equal(actual: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for field, value in expected.items():
            check_equal(actual[field], value, f"{where}: {field}")
    elif isinstance(expected, list) and expected and not isinstance(expected[0], float):
        assert len(actual) == len(expected), where
        for value, expected_value in zip(actual, expected, strict=True):
            check_equal(value, expected_value, where)
    elif isinstance(expected, list | float):
        np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-5, err_msg=where)
    else:
        assert actual == expected, where


@contextlib.contextmanager
def no_compilation() -> Iterator[None]:
    """Checks that the block compiles nothing."""
    events: list[str] = []

    def record(event: str, duration: float, **_: Any) -> None:
        if "backend_compile" in event:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(record)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(record)
    assert events == []


ADAPTERS = {
    "plain": (),
    "pfeiffer": (BOTTLENECK,),
    "narrow": (AdapterConfig(size=2, scaling=2.5, init_scale=0.1),),
    "one_layer": (AdapterConfig(size=3, layers=(1,)),),
    "houlsby": (dataclasses.replace(ADAPTER_PRESETS["houlsby"], size=3),),
    "new_norms": (AdapterConfig(size=3, new_layer_norm="both", residual_from="input", activation="gelu"),),
    "lora": (LoraConfig(rank=2, alpha=3.0),),
    "lora_all": (LoraConfig(target_modules=("query", "attention_output", "output"), rank=3, layers=(0,)),),
    "lora_wide": (LoraConfig(rank=4, dropout=0.1),),
    "ia3": (Ia3Config(),),
    "pal": (PalConfig(size=4, num_heads=2),),
    "low_rank": (LowRankConfig(size=3, layers=(0,)),),
    "projected_ffn": (ProjectedFfnConfig(size=3, intermediate_size=5),),
    "lhuc": (LhucConfig(),),
    "top_attention": (TopAttentionConfig(size=4, num_layers=2, num_heads=2),),
    "top_ffn": (TopFfnConfig(size=4, num_layers=2, hidden_sizes=(3,)),),
    "top_layer": (TopLayerConfig(),),
}


def test_all_kinds_of_adapters_in_one_batch(tiny_trunk: Trunk) -> None:
    models = {name: random_task(tiny_trunk, name, *adapters) for name, adapters in ADAPTERS.items()}
    routed = RoutedModel(tiny_trunk, models, dataclasses.replace(SMALL, batch_sizes=(32,)))
    names: list[str | None] = [*models, None]
    with no_compilation_after(routed):
        predictions = routed.predict([TEXTS[0]] * len(names), names)
    # The adapters change the predictions, so no two tasks have the same logits.
    logits = {tuple(np.round(prediction["logits"], 4)) for prediction in predictions[:-1]}
    assert len(logits) == len(models)
    check_rows(routed, models, [TEXTS[number % 3] for number in range(len(names))], names)


@contextlib.contextmanager
def no_compilation_after(routed: RoutedModel) -> Iterator[None]:
    routed.warm_up()
    with no_compilation():
        yield


PAL = PalConfig(size=4, num_heads=2)


@pytest.mark.parametrize("name", ["pfeiffer", "houlsby", "lora", "ia3", "pal", "new_norms"])
def test_bfloat16_trunk_stores_adapters_in_bfloat16(tiny_trunk: Trunk, name: str) -> None:
    narrow = dataclasses.replace(tiny_trunk, dtype="bfloat16")
    model = dataclasses.replace(random_task(tiny_trunk, name, *ADAPTERS[name]), trunk=narrow)
    routed = RoutedModel(narrow, {name: model}, SMALL)
    for text in TEXTS:
        (prediction,) = routed.predict([text], [name])
        np.testing.assert_allclose(prediction["logits"], model.predict([text]).logits[0], rtol=0.03, atol=0.03)
    dense = [leaf for leaf in jax.tree.leaves(routed.task(name).entries[0]) if leaf.dtype == "bfloat16"]
    assert len(dense) == {"pfeiffer": 8, "houlsby": 16, "lora": 8, "ia3": 0, "pal": 16, "new_norms": 8}[name]


@pytest.mark.parametrize("family", distinct_families())
def test_every_encoder_can_be_routed(family: str, tiny_trunk_folder: Path, tmp_path: Path) -> None:
    trunk = small_trunk_on_disk(family, tiny_trunk_folder, tmp_path)
    names = ("plain", "pfeiffer", "houlsby", "lora")
    models = {name: random_task(trunk, name, *ADAPTERS[name], max_length=12) for name in names}
    models["fused"] = random_task(trunk, "fused", BOTTLENECK, BOTTLENECK, fusion=FusionConfig(), max_length=12)
    routed = RoutedModel(trunk, models, Capacity(batch_sizes=(8,), lengths=(12,)))
    check_rows(routed, models, [TEXTS[number % 3] for number in range(6)], [*models, None], max_length=12)


FUSIONS: dict[str, tuple[tuple[Any, ...], FusionConfig]] = {
    "two": ((BOTTLENECK, BOTTLENECK), FusionConfig()),
    "three_sizes": ((BOTTLENECK, AdapterConfig(size=2, scaling=0.5), AdapterConfig(size=5)), FusionConfig(value=False)),
    "warm": ((BOTTLENECK, AdapterConfig(size=3)), FusionConfig(temperature=3.0)),
    "pruned": ((BOTTLENECK,) * 3, FusionConfig(kept=(((2, 0), (1, 2)),))),
    "upper_layer": ((AdapterConfig(size=4, layers=(1,)),) * 2, FusionConfig()),
    "mixed_activations": ((BOTTLENECK, AdapterConfig(size=2, activation="gelu")), FusionConfig()),
    "pals": ((PAL, PAL), FusionConfig()),
    "curved_pals": ((dataclasses.replace(PAL, output_activation="gelu"), PAL), FusionConfig()),
}


def test_fusions_and_adapters_in_one_batch(tiny_trunk: Trunk) -> None:
    models = {
        name: random_task(tiny_trunk, name, *adapters, fusion=fusion) for name, (adapters, fusion) in FUSIONS.items()
    }
    models |= {"adapter": random_task(tiny_trunk, "adapter", BOTTLENECK), "head": random_task(tiny_trunk, "head")}
    routed = RoutedModel(tiny_trunk, models, dataclasses.replace(SMALL, batch_sizes=(16,)))
    # The arrays of "two", "three_sizes", "warm" and "pruned" are stacked. The temperature of "warm" differs.
    check_rows(routed, models, [TEXTS[number % 3] for number in range(11)], [*models, None])


def test_fusion_attention_equals_the_attention_of_each_model(tiny_trunk: Trunk) -> None:
    models = {
        name: random_task(tiny_trunk, name, *adapters, fusion=fusion) for name, (adapters, fusion) in FUSIONS.items()
    }
    houlsby = dataclasses.replace(BOTTLENECK, position="both")
    models["both_slots"] = random_task(tiny_trunk, "both_slots", houlsby, houlsby, fusion=FusionConfig())
    models["adapter"] = random_task(tiny_trunk, "adapter", BOTTLENECK)
    choices = {"task": TASKS["choices"], "labels": ()}
    models["choices"] = random_task(tiny_trunk, "choices", BOTTLENECK, BOTTLENECK, fusion=FusionConfig(), **choices)
    span = {"task": TASKS["span"], "labels": ()}
    models["span"] = random_task(tiny_trunk, "span", BOTTLENECK, BOTTLENECK, fusion=FusionConfig(), **span)
    routed = RoutedModel(tiny_trunk, models, dataclasses.replace(SMALL, batch_sizes=(16,)))
    routed.warm_up(fusion_attention=True)
    rows: list[Any] = [ROWS[name][0] if name in ROWS else TEXTS[number % 3] for number, name in enumerate(models)]
    with no_compilation():
        predictions = routed.predict([*rows, TEXTS[0]], [*models, None], fusion_attention=True)
    assert "fusion_attention" not in predictions[-1]
    for row, prediction, (name, model) in zip(rows, predictions[:-1], models.items(), strict=True):
        if name == "adapter":
            assert "fusion_attention" not in prediction
            continue
        expected = model.predict([row], fusion_attention=True)
        assert prediction["fusion_attention"].keys() == expected.fusion_attention.keys()
        for slot, attention in prediction["fusion_attention"].items():
            assert attention["layers"] == list(expected.fusion_layers)
            assert attention["adapters"] == [list(names) for names in expected.fusion_adapters[slot]]
            np.testing.assert_allclose(attention["attention"], expected.fusion_attention[slot][0], atol=2e-5)
        check_equal({**prediction, "fusion_attention": 0}, {**expected.as_json(0), "fusion_attention": 0}, name)


TASKS = {
    "three_classes": TaskConfig(name="task"),
    "number": TaskConfig(name="task", kind="regression", scale=5.0),
    "choices": TaskConfig(name="task", kind="multiple_choice"),
    "span": TaskConfig(name="task", kind="span", span=SpanConfig(doc_stride=3)),
    "tags": TaskConfig(name="task", kind="tagging"),
    "topics": TaskConfig(name="task", kind="multi_label"),
}
LABELS = {
    "three_classes": ("few", "many", "none"),
    "tags": ("O", "B-animal", "I-animal"),
    "topics": ("animals", "sizes", "counts", "other"),
}
ROWS = {
    "three_classes": [("all cats are small", "no dogs"), ("no cats", "some dogs are not small")],
    "number": [("all cats are small", "no dogs"), ("no cats", "some dogs are not small")],
    "choices": [("all cats are", ["small", "not dogs", "cats"]), ("some dogs are", ["not small", "cats"])],
    "span": [
        ("some dogs", "all cats are small , no dogs are cats , some dogs are not small and most cats are dogs"),
        ("no dogs", "some small cats are not dogs"),
    ],
    "tags": [["all", "cats", "are", "small"], ["some", "dogs"] * 11],
    "topics": [("all cats are small", "no dogs"), ("no cats", "some dogs are not small")],
}


def test_all_kinds_of_tasks_and_heads_in_one_batch(tiny_trunk: Trunk) -> None:
    heads = (HeadConfig(), HeadConfig(pooling="mean", pooler="none", hidden_layers=1, activation="relu"))
    models = {
        name: random_task(tiny_trunk, name, BOTTLENECK, head=heads[number % 2], task=task, labels=LABELS.get(name, ()))
        for number, (name, task) in enumerate(TASKS.items())
    }
    routed = RoutedModel(tiny_trunk, models, SMALL)
    rows: list[Any] = [row for number in range(2) for row in (*(ROWS[name][number] for name in models), TEXTS[number])]
    check_rows(routed, models, rows, [*models, None] * 2)


def test_word_without_tokens_is_refused_with_its_row(tiny_trunk: Trunk) -> None:
    models = {
        name: random_task(tiny_trunk, name, BOTTLENECK, task=TASKS[name], labels=LABELS[name])
        for name in ("three_classes", "tags")
    }
    routed = RoutedModel(tiny_trunk, models, SMALL)
    rows = [ROWS["three_classes"][0], ROWS["tags"][0], ["all", "\u200b"]]
    with pytest.raises(UserError) as refused:
        routed.predict(rows, ["three_classes", "tags", "tags"])
    assert has_facts(str(refused.value), "rows[2] ", '"tags"', "u200b", "number 2")


def test_every_row_is_predicted_for_all_tasks(tiny_trunk: Trunk) -> None:
    upper = AdapterConfig(size=4, layers=(1,))
    models = {
        "upper": random_task(tiny_trunk, "upper", upper),
        "probe": random_task(tiny_trunk, "probe", labels=("a", "b", "c")),
        "fused": random_task(tiny_trunk, "fused", upper, upper, fusion=FusionConfig()),
        "number": random_task(tiny_trunk, "number", upper, task=TASKS["number"], labels=()),
        "tags": random_task(tiny_trunk, "tags", upper, task=TASKS["tags"], labels=LABELS["tags"]),
        "short": random_task(tiny_trunk, "short", upper, max_length=5),
    }
    routed = RoutedModel(tiny_trunk, models, Capacity(batch_sizes=(2,), lengths=(16,), tasks_per_row=3))
    routed.warm_up(all_tasks=True)
    with no_compilation():
        predictions = routed.predict_all(TEXTS)
    assert len(predictions) == len(TEXTS)
    for text, row in zip(TEXTS, predictions, strict=True):
        assert list(row) == list(models)
        for name, prediction in row.items():
            check_equal(prediction, models[name].predict([text]).as_json(0), f"{name}: {text}")
    assert list(routed.predict_all(TEXTS[:1], ["short", "fused"])[0]) == ["short", "fused"]
    check_equal(routed.predict_all(TEXTS[:1], ["upper"])[0], {"upper": predictions[0]["upper"]}, "one task")
    for names, fact in ((["upper", "upper"], "2 names"), ([], "0 names"), (["uper"], 'Did you mean "upper"')):
        with pytest.raises(UserError, match=fact):
            routed.predict_all(TEXTS, names)
    with pytest.raises(UserError, match="0 rows"):
        routed.predict_all([])
    with pytest.raises(UserError, match=r'rows\[0\] \(for "probe"\): the text is 7'):
        routed.predict_all([7], ["probe"])


def test_layers_below_the_first_adapter_are_computed_once_per_row(tiny_trunk: Trunk) -> None:
    """Compares the FLOPs of the compiled programs for one task and for eight tasks."""

    def flops(tasks: int, *layers: int) -> float:
        models = {
            str(number): random_task(tiny_trunk, str(number), AdapterConfig(size=4, layers=layers))
            for number in range(tasks)
        }
        routed = RoutedModel(tiny_trunk, models, Capacity(batch_sizes=(1,), lengths=(16,)))
        return float(routed._runner._program(1, 16, "all").cost_analysis()["flops"])

    one = flops(1, 1)
    assert flops(8, 0, 1) > 3.5 * one
    # In the upper layer, attention and the feed-forward network come before the adapter, so all tasks share them. Only
    # adapters, poolers and heads are computed per task.
    assert flops(8, 1) < 2 * one


def test_few_tasks_are_computed_as_rows_if_fewer_layers_are_computed(
    tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {str(number): random_task(tiny_trunk, str(number), BOTTLENECK) for number in range(4)}
    routed = RoutedModel(tiny_trunk, models, Capacity(batch_sizes=(1, 2, 8), lengths=(16,), tasks_per_row=4))
    shapes: list[tuple[int, str]] = []
    program = routed._runner._program

    def recorded(batch_size: int, length: int, kind: Any) -> Any:
        shapes.append((batch_size, kind))
        return program(batch_size, length, kind)

    monkeypatch.setattr(routed._runner, "_program", recorded)
    # The program for all tasks computes two layers for each of four tasks, so it computes 8 layers. With one row per
    # task, two tasks need a batch of 2 rows (4 layers), and three tasks need a batch of 8 rows (16 layers).
    for names, shape in ((["0"], (1, "rows")), (["0", "3"], (2, "rows")), (["1", "0", "3"], (1, "all"))):
        shapes.clear()
        (row,) = routed.predict_all(TEXTS[:1], names)
        assert shapes == [shape]
        for name in names:
            check_equal(row[name], models[name].predict(TEXTS[:1]).as_json(0), name)


@pytest.fixture(scope="module")
def many(tiny_trunk: Trunk) -> dict[str, TaskModel]:
    return {f"task{number}": random_task(tiny_trunk, f"task{number}", BOTTLENECK) for number in range(12)}


def test_least_recently_used_tasks_are_evicted(tiny_trunk: Trunk, many: dict[str, TaskModel]) -> None:
    routed = RoutedModel(tiny_trunk, many, dataclasses.replace(SMALL, resident=3))
    routed.warm_up()
    expected = {name: model.predict([TEXTS[1]]).as_json(0) for name, model in many.items()}
    generator = np.random.default_rng(0)
    with no_compilation():
        for _ in range(3):
            names = [f"task{number}" for number in generator.integers(0, 12, 9)]
            predictions = routed.predict([TEXTS[1]] * 9, names)
            for name, prediction in zip(names, predictions, strict=True):
                check_equal(prediction, expected[name], name)


def test_single_fusion_does_not_split_batches(tiny_trunk: Trunk, many: dict[str, TaskModel]) -> None:
    fused = random_task(tiny_trunk, "fused", BOTTLENECK, BOTTLENECK, fusion=FusionConfig())
    models = {**many, "fused": fused}
    routed = RoutedModel(tiny_trunk, models, Capacity(batch_sizes=(16,), lengths=(16,)))
    programs: list[Any] = []
    run = routed._runner._start

    def recorded(*arguments: Any) -> Any:
        programs.append(arguments)
        return run(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(routed._runner, "_start", recorded)
        check_rows(routed, models, [TEXTS[0]] * 13, [*models])
        assert len(programs) == 1
        predictions = routed.predict_all([TEXTS[1]])
        assert len(programs) == 2
    for name, prediction in predictions[0].items():
        check_equal(prediction, models[name].predict([TEXTS[1]]).as_json(0), name)


def test_tasks_are_added_and_removed_without_compilation(tiny_trunk: Trunk, many: dict[str, TaskModel]) -> None:
    routed = RoutedModel(tiny_trunk, {"a": many["task0"], "b": many["task1"]}, SMALL)
    routed.warm_up()
    expected = {name: many[name].predict([TEXTS[0]]).as_json(0) for name in ("task0", "task1", "task2")}
    with no_compilation():
        assert routed.names == ("a", "b")
        check_equal(routed.predict([TEXTS[0]], ["a"])[0], expected["task0"], "before")
        routed.remove("a")
        assert routed.names == ("b",)
        # The new task "a" must not use the parameters of the removed task "a", which are still on the device.
        routed.add("a", many["task2"])
        a, b = routed.predict([TEXTS[0]] * 2, ["a", "b"])
    check_equal(a, expected["task2"], "added")
    check_equal(b, expected["task1"], "not changed")
    with pytest.raises(UserError, match='"a" is already in service'):
        routed.add("a", many["task0"])


def test_predictions_do_not_depend_on_other_rows_and_tasks(tiny_trunk: Trunk, many: dict[str, TaskModel]) -> None:
    broken = dataclasses.replace(
        many["task0"], params=jax.tree.map(lambda leaf: np.full_like(leaf, np.nan), many["task0"].params)
    )
    models = {"broken": broken, "a": many["task1"], "b": many["task2"]}
    routed = RoutedModel(tiny_trunk, models, SMALL)
    with pytest.raises(UserError, match=r'"broken".*row 1 \(of 1\)'):
        routed.predict(TEXTS[:2], ["broken", "a"])
    single = routed.predict([TEXTS[0]], ["a"])
    batched = routed.predict([TEXTS[0], TEXTS[0], TEXTS[1]], ["a", "b", "a"])
    assert batched[0] == single[0]


def test_text_column_can_have_the_name_of_the_adapter_column(many: dict[str, TaskModel]) -> None:
    task = dataclasses.replace(many["task0"].task, text_a="adapter")
    served = ServedTask(0, "task0", dataclasses.replace(many["task0"], task=task), 0, {})
    assert pick_inputs([("rows[0]", {"adapter": "all of the two"})], [served]) == [([served], ["all of the two"])]


def test_rows_can_be_read_by_several_threads(tiny_trunk: Trunk, many: dict[str, TaskModel]) -> None:
    routed = RoutedModel(tiny_trunk, many, SMALL)
    texts, names = TEXTS * 4, ["task0", None, "task1"] * 4
    tasks = [None if name is None else routed.task(name) for name in names]
    expected = routed.read(texts, tasks)
    with ThreadPoolExecutor(8) as pool:
        for parts in pool.map(lambda _: routed.read(texts, tasks), range(200)):
            assert [part.rows for part in parts] == [part.rows for part in expected]
            for part, expected_part in zip(parts, expected, strict=True):
                np.testing.assert_array_equal(part.data.tokens, expected_part.data.tokens)


def test_non_finite_embedding_is_refused(tiny_trunk: Trunk) -> None:
    sequences = read_rows(None, TEXTS[:2], (0, 1), tiny_trunk.tokenizer(), EmbeddingConfig(max_length=16))
    outputs = np.ones((2, 32), np.float32)
    assert [len(row["embedding"]) for row in predict_rows(sequences, outputs)] == [32, 32]
    outputs[1, 3] = np.inf
    with pytest.raises(UserError, match=r"row 2 \(of 2\)"):
        predict_rows(sequences, outputs)


def test_invalid_requests_are_refused_before_anything_is_computed(
    tiny_trunk: Trunk, many: dict[str, TaskModel]
) -> None:
    routed = RoutedModel(tiny_trunk, many, SMALL)
    with pytest.raises(UserError, match=r'"tsak1" is not in service .*Did you mean "task1"'):
        routed.predict(TEXTS[:2], ["task1", "tsak1"])
    for name in (float("nan"), 3, ["task1"]):
        with pytest.raises(UserError, match="is not in service"):
            routed.predict(["all cats"], [name])
    with pytest.raises(UserError, match="2 rows and 1 name"):
        routed.predict(TEXTS[:2], ["task1"])
    with pytest.raises(UserError, match="0 rows and 0 names"):
        routed.predict([], [])
    with pytest.raises(UserError, match=r'rows\[2\] \(for "task1"\): the text is 7'):
        routed.predict([TEXTS[0], TEXTS[1], 7], ["task0", "task1", "task1"])
    with pytest.raises(UserError, match='"task12" is not in service'):
        routed.remove("task12")
    with pytest.raises(UserError, match='"task12" is not in service'):
        routed.bytes_per_task("task12")
    assert routed._runner._programs == {}


def test_tasks_that_do_not_fit_are_refused(tiny_trunk: Trunk, many: dict[str, TaskModel]) -> None:
    routed = RoutedModel(tiny_trunk, {"a": many["task0"]}, SMALL)
    for model, fact in (
        (random_task(tiny_trunk, "x", AdapterConfig(size=5)), "size=5"),
        (random_task(tiny_trunk, "x", PAL), "PalConfig"),
        (random_task(tiny_trunk, "x", BOTTLENECK, BOTTLENECK, fusion=FusionConfig()), "fusion of 2"),
        (random_task(tiny_trunk, "x", BOTTLENECK, labels=("a", "b", "c")), "3 outputs"),
        (random_task(tiny_trunk, "x", BOTTLENECK, head=HeadConfig(pooler="none")), "pooler='none'"),
        (dataclasses.replace(many["task1"], trunk=dataclasses.replace(tiny_trunk, sha256="0" * 64)), "000000000000"),
        (dataclasses.replace(many["task1"], trunk=dataclasses.replace(tiny_trunk, dtype="bfloat16")), "bfloat16"),
        (dataclasses.replace(many["task1"], max_length=32), "32 tokens"),
    ):
        with pytest.raises(UserError, match=f'"x".*{fact}'):
            routed.add("x", model)
        assert routed.names == ("a",)
    damaged = jax.tree.map(lambda leaf: leaf, many["task1"].params)
    damaged["adapters"]["0"]["ffn"]["down"]["bias"] = np.zeros((2, 4), np.float64)
    with pytest.raises(UserError, match=r'"x" is damaged: .*down/bias.*float64'):
        routed.add("x", dataclasses.replace(many["task1"], params=damaged))
    routed.add("narrow", random_task(tiny_trunk, "narrow", AdapterConfig(size=1)))
    with pytest.raises(UserError, match="at least one"):
        RoutedModel(tiny_trunk, {})
    for lengths, fact in (((8,), "16 tokens"), ((16, 129), "ends with 129")):
        with pytest.raises(UserError, match=fact):
            RoutedModel(tiny_trunk, many, Capacity(lengths=lengths))


def test_single_texts_and_pairs_can_be_mixed(tiny_trunk: Trunk, many: dict[str, TaskModel]) -> None:
    routed = RoutedModel(tiny_trunk, many, SMALL)
    rows: list[Any] = [TEXTS[0], (TEXTS[0], TEXTS[1]), TEXTS[1], (TEXTS[1], TEXTS[2])]
    check_rows(routed, many, rows, ["task0", "task0", None, None])
    for row, predictions in zip(rows, routed.predict_all(rows, ["task0", "task1"]), strict=True):
        for name, prediction in predictions.items():
            check_equal(prediction, many[name].predict([row]).as_json(0), name)


@pytest.mark.parametrize(
    ("field", "value"), [("resident", 0), ("batch_sizes", ()), ("batch_sizes", (8, 1)), ("lengths", (0, 4))]
)
def test_invalid_capacities_are_refused(field: str, value: Any) -> None:
    with pytest.raises(UserError, match=field):
        Capacity(**{field: value})


def test_bytes_of_a_task_are_counted(tiny_trunk: Trunk, many: dict[str, TaskModel]) -> None:
    routed = RoutedModel(tiny_trunk, many, SMALL)
    adapter = 2 * (32 * 4 + 4 + 4 * 32 + 32) * 4
    head = (32 * 32 + 32 + 32 * 2 + 2) * 4
    layer_flags = 2
    assert routed.bytes_per_task("task3") == adapter + head + layer_flags


def test_stored_tasks_are_loaded_by_name(tiny_trunk: Trunk, tmp_path: Path) -> None:
    models = {name: random_task(tiny_trunk, name, BOTTLENECK).renamed(name) for name in ("entail", "topic")}
    models["probe"] = random_task(tiny_trunk, "probe").renamed("probe")
    for model in models.values():
        model.save(tmp_path)
    routed = load_routed_model(tmp_path, tiny_trunk, ["entail", "topic", "probe"], capacity=SMALL)
    assert routed.names == ("entail", "topic", "probe")
    check_rows(routed, models, list(TEXTS), ["topic", "probe", "entail"])
    for names, fact in ((["entail", "entail"], "twice"), (["entali"], 'Did you mean "entail"'), ([], "at least one")):
        with pytest.raises(UserError, match=fact):
            load_routed_model(tmp_path, tiny_trunk, names)


def test_kind_can_precede_a_name(tiny_trunk: Trunk, tmp_path: Path) -> None:
    for kind in ("adapters", "fusion", "heads"):
        for name in ("both", kind):
            store.save(
                tmp_path, store.Draft(kind, name, {"ffn": {"x": np.zeros(1)}}, config={}, trunk={"sha256": "ab"})
            )
    assert find_artifact(tmp_path, "fusion/both") == ("fusion", "both")
    assert find_artifact(tmp_path, "heads/both") == ("heads", "both")
    assert find_artifact(tmp_path, "adapters") == ("adapters", "adapters")
    assert find_artifact(tmp_path, "heads") == ("heads", "heads")
    for name, fact in (("both", '"adapters/both" or "fusion/both"'), ("fusion/adapters", "no adapter, fusion or head")):
        with pytest.raises(UserError, match=fact):
            find_artifact(tmp_path, name)


def test_tasks_of_different_dtypes_are_refused(tiny_trunk: Trunk, tmp_path: Path) -> None:
    narrow = dataclasses.replace(tiny_trunk, dtype="bfloat16")
    random_task(tiny_trunk, "wide", BOTTLENECK).renamed("wide").save(tmp_path)
    dataclasses.replace(random_task(tiny_trunk, "narrow", BOTTLENECK), trunk=narrow).renamed("narrow").save(tmp_path)
    assert load_routed_model(tmp_path, tiny_trunk, ["narrow"]).trunk.dtype == "bfloat16"
    with pytest.raises(UserError, match=r'"narrow".*bfloat16'):
        load_routed_model(tmp_path, tiny_trunk, ["wide", "narrow"])


@pytest.mark.parametrize("scan", [False, True])
def test_models_share_the_trunk_on_the_device(scan: bool, tiny_trunk: Trunk) -> None:
    # Other tests may already have put the trunk's arrays on the device. A copy of the trunk has no such arrays.
    trunk = dataclasses.replace(tiny_trunk)
    models = {name: random_task(trunk, name, AdapterConfig(size=4)) for name in ("first", "second")}
    if scan:
        models = {
            name: dataclasses.replace(model, model=dataclasses.replace(model.model, scan_layers=True))
            for name, model in models.items()
        }
    expected = random_task(tiny_trunk, "second", AdapterConfig(size=4)).predict(["no dogs"]).logits
    models["first"].predict(["no dogs"])
    arrays = {id(array) for array in jax.live_arrays()}
    logits = models["second"].predict(["no dogs"]).logits
    new = sum(array.nbytes for array in jax.live_arrays() if id(array) not in arrays)
    assert 0 < new < sum(leaf.nbytes for leaf in jax.tree.leaves(trunk.params)) / 2
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
