"""Public values have short reprs and HTML tables for notebooks.

Rows can be sliced, and runs started from Python can be reported.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts

import afjax
from afjax.analysis.activations import mean_activations, token_activations
from afjax.cli.main import main
from afjax.config.methods import FusionMethod, Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.tasks.load import rows_from_lists
from afjax.tasks.metrics import confusion_matrix
from afjax.tasks.predictions import Predictions
from afjax.train.fusion import train_fusion
from afjax.train.options import RunOptions
from afjax.train.sequential import TaskSequence
from afjax.train.single import train_single
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

HOSTILE = "<script>alert('&')</script>"
# Maximum number of characters of a repr. This is about one screen of a notebook.
LIMIT = 1000

PAIRS = rows_from_lists([("one " * 500, "two"), (HOSTILE, "b")], ["x", "y"])
CHOICES = rows_from_lists([(HOSTILE, ["a " * 300, "b"]), ("context", ["c", "d"])], [1, 0], kind="multiple_choice")
VALUES = rows_from_lists(["a", "b"], [0.5, 4.25], kind="regression")
SPANS = rows_from_lists(
    [("who", "they did " * 200), (HOSTILE, "it")],
    [{"text": ["they"], "answer_start": [0]}, {"text": ["it"], "answer_start": [0]}],
    kind="span",
)
MANY = rows_from_lists([f"text {number}" for number in range(150)], [f"{HOSTILE} {n}" for n in range(150)])
ALL_ROWS = {"pairs": PAIRS, "choices": CHOICES, "values": VALUES, "spans": SPANS, "many labels": MANY, "one": MANY[:1]}


@pytest.fixture(scope="module")
def fused(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[TaskModel, Path]:
    """Trains a fusion of two adapters from Python.

    Returns:
      ``(model, folder)``. The folder has the workdir ``run`` and the store ``store``.
    """
    folder = tmp_path_factory.mktemp("fused")
    config = dataclasses.replace(tiny, max_steps=2, eval_every=2)
    shared: dict[str, Any] = {"trunk": tiny_trunk, "task": task, "data": rows, "config": config}
    for name in ("first", "second"):
        train_single(workdir=folder / name, options=RunOptions(name=name), **shared).save(folder / "store")
    method = FusionMethod(adapters=("first", "second"), store=folder / "store")
    model = train_fusion(method=method, workdir=folder / "run", **shared)
    model.save(folder / "store")
    return model, folder


def public_values(model: TaskModel, rows: Mapping[str, Rows], store: Path) -> dict[str, Any]:
    """Returns the public objects, and examples of the values that they return.

    The keys are the objects' names in ``afjax.__all__``, or short descriptions.
    """
    labels = tuple(f"label {number}" for number in range(150))
    return {
        **{name: getattr(afjax, name) for name in afjax.__all__},
        **ALL_ROWS,
        "load_task": rows,
        "model": model,
        "trunk": model.trunk,
        "predictions": model.predict_rows(rows["dev"], fusion_attention=True),
        "values": Predictions(np.ones((2, 1)), np.zeros((2, 0)), [0.5, 1.5], {}),
        "long texts": Predictions(np.ones((200, 1)), np.ones((200, 1)), ["long " * 100] * 200, {}, [[]] * 200),
        "TaskConfig": TaskConfig(name="many", labels=labels),
        "TrainConfig": TrainConfig(class_weights=dict.fromkeys(labels, 1.0)),
        "FusionConfig": afjax.FusionConfig(kept=(tuple((0,) for _ in range(500)),)),
        "train_multitask": {"a": model, "b": model},
        "train_sequential": TaskSequence({"a": model}, [[{"accuracy": 0.5}]]),
        "mean_activations": mean_activations(model, rows["dev"], by_label=True),
        "token_activations": token_activations(model, "some text"),
        "confusion": confusion_matrix(np.eye(150), np.arange(150), labels),
        "stored config": afjax.load_adapter(store, "first")[0],
    }


def test_public_values_have_short_reprs(fused: tuple[TaskModel, Path], rows: Mapping[str, Rows]) -> None:
    model, folder = fused
    lengths = {name: len(repr(value)) for name, value in public_values(model, rows, folder / "store").items()}
    assert {name: length for name, length in lengths.items() if length > LIMIT} == {}


def test_reprs_contain_the_main_facts(fused: tuple[TaskModel, Path], rows: Mapping[str, Rows]) -> None:
    model, _ = fused
    for fact in ("quantity", "few, many", "quantity-fusion", "first, second", model.trunk.name, "accuracy"):
        assert fact in repr(model)
    for fact in (model.trunk.name, "bert", model.trunk.sha256[:12]):
        assert fact in repr(model.trunk)
    assert "24 texts" in repr(rows["train"])
    assert "few (12)" in repr(rows["train"])
    assert "2 pairs of texts" in repr(PAIRS)
    assert [repr(split[:1]).partition(",")[0] for split in (PAIRS, CHOICES, VALUES, SPANS)] == [
        "<Rows: 1 pair of texts",
        "<ChoiceRows: 1 row of a context and its choices",
        "<Rows: 1 text",
        "<SpanRows: 1 question with its context",
    ]
    assert "0.5 to 4.25" in repr(VALUES)
    assert "150" not in repr(MANY[:3])
    predictions = model.predict_rows(rows["dev"], fusion_attention=True)
    for fact in ("8 rows", predictions.labels[0], "first, second"):
        assert str(fact) in repr(predictions)
    assert repr(model.predict_rows(rows["dev"][0])).startswith("<Predictions: 1 row, ")
    found = mean_activations(model, rows["dev"])
    assert (
        repr(found) == "<Activations: fusion quantity-fusion of 2 adapters first, second in ffn, mean of all rows (8)>"
    )
    assert repr(token_activations(model, "some text")).endswith(" tokens>")


@pytest.mark.parametrize("rows", ALL_ROWS.values(), ids=ALL_ROWS)
def test_rows_are_shown_as_an_escaped_table(rows: Any) -> None:
    page = rows._repr_html_()
    assert page.count("<tr>") == 1 + min(len(rows), 10)
    assert "<script>" not in page
    assert len(page) < 10_000
    assert "<table" in rows[:0]._repr_html_()


def test_models_and_predictions_are_shown_as_escaped_tables(
    fused: tuple[TaskModel, Path], rows: Mapping[str, Rows]
) -> None:
    model = dataclasses.replace(
        fused[0], trunk=dataclasses.replace(fused[0].trunk, name=HOSTILE), labels=("few", HOSTILE)
    )
    predictions = model.predict_rows(rows["dev"], fusion_attention=True)
    pages = [value._repr_html_() for value in (model, model.trunk, predictions)]
    pages.append(confusion_matrix(np.eye(2), np.arange(2), model.labels)._repr_html_())
    for page in pages:
        assert "<table" in page
        assert "<script>" not in page
    assert "second" in pages[2]


def test_fusion_attention_has_names_of_adapters_and_layers(
    fused: tuple[TaskModel, Path], rows: Mapping[str, Rows]
) -> None:
    model = fused[0]
    predictions = model.predict_rows(rows["dev"], fusion_attention=True)
    assert predictions.fusion_attention["ffn"].shape == (8, 2, 2)
    assert predictions.fusion_adapters == {"ffn": (("first", "second"),) * 2}
    assert predictions.fusion_layers == (0, 1)
    pruned = model.with_kept((((1,), (0,)),)).predict_rows(rows["dev"], fusion_attention=True)
    assert pruned.fusion_adapters == {"ffn": (("second",), ("first",))}
    assert "first" in pruned._repr_html_()
    upper = model.without_layers([0]).predict_rows(rows["dev"], fusion_attention=True)
    assert upper.fusion_layers == (1,)
    plain = model.predict_rows(rows["dev"])
    assert (plain.fusion_adapters, plain.fusion_layers) == ({}, ())


@pytest.mark.parametrize("rows", ALL_ROWS.values(), ids=ALL_ROWS)
def test_rows_can_be_sliced(rows: Any) -> None:
    assert len(rows[:1]) == 1
    assert type(rows[:1]) is type(rows)
    assert len(rows[10_000:]) == 0
    assert rows[-1].texts_of(0) == rows.texts_of(len(rows) - 1)
    assert rows[0].label_of(0) == rows.label_of(0)
    assert [one.texts_of(0) for one in rows] == [rows.texts_of(row) for row in range(len(rows))]


def test_rows_can_be_indexed_with_lists_and_masks() -> None:
    assert MANY[[3, -1]].text_a == ["text 3", "text 149"]
    assert MANY[np.array([3, 5])].labels.tolist() == MANY.labels[[3, 5]].tolist()
    assert MANY[::50].text_a == ["text 0", "text 50", "text 100"]
    assert MANY[MANY.labels == MANY.labels[7]].text_a == ["text 7"]
    assert MANY[[]].labels.dtype == np.int32
    assert MANY[:3].label_names == MANY.label_names


@pytest.mark.parametrize("index", ["text_a", 1.5, [0.5], None, [[1, 2]], [True, False], True, (slice(1), 0)], ids=str)
def test_invalid_indices_of_rows_are_refused(index: Any) -> None:
    with pytest.raises(UserError, match="slice"):
        MANY[index]


@pytest.mark.parametrize("index", [150, -151, [0, 150]], ids=str)
def test_out_of_range_indices_are_refused(index: Any) -> None:
    with pytest.raises(IndexError, match="15"):
        MANY[index]


def test_empty_splits_are_refused(fused: tuple[TaskModel, Path], rows: Mapping[str, Rows], tmp_path: Path) -> None:
    model, _ = fused
    empty = rows["dev"][:0]
    for call in (model.predict_rows, model.evaluate):
        with pytest.raises(UserError, match="empty"):
            call(empty)
    with pytest.raises(UserError, match="no dev rows"):
        train_single(model.trunk, model.task, {**rows, "dev": empty}, workdir=tmp_path / "run")


def test_confusion_matrix_counts_rows_by_label(fused: tuple[TaskModel, Path], rows: Mapping[str, Rows]) -> None:
    model, _ = fused
    scores = model.evaluate(rows["dev"], confusion=True)
    matrix = scores.pop("confusion")
    assert scores == model.evaluate(rows["dev"])
    predicted = model.predict_rows(rows["dev"]).labels
    labels = [rows["dev"].label_of(row) for row in range(8)]
    expected = [
        [sum(pair == (one, other) for pair in zip(labels, predicted, strict=True)) for other in model.labels]
        for one in model.labels
    ]
    assert matrix.counts.tolist() == expected
    assert matrix.to_dict() == {"labels": ["few", "many"], "counts": expected}
    lines = str(matrix).splitlines()
    assert lines[0].split()[-2:] == ["few", "many"]
    assert [line.split() for line in lines[1:]] == [["few", *map(str, expected[0])], ["many", *map(str, expected[1])]]


def test_regression_tasks_have_no_confusion_matrix(fused: tuple[TaskModel, Path]) -> None:
    task = TaskConfig(name="values", kind="regression")
    model = dataclasses.replace(fused[0], task=task, labels=())
    with pytest.raises(UserError) as caught:
        model.evaluate(VALUES, confusion=True)
    for fact in ("values", "regression", "classification"):
        assert fact in str(caught.value)


def write_split(path: Path, rows: Rows) -> Path:
    lines = [json.dumps({"text": rows.text_a[row], "label": rows.label_of(row)}) for row in range(len(rows))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_eval_command_prints_a_confusion_matrix(
    fused: tuple[TaskModel, Path], rows: Mapping[str, Rows], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder = fused
    source = write_split(tmp_path / "dev.jsonl", rows["dev"])
    arguments = ["eval", f"--store={folder / 'store'}", f"--trunk={model.trunk.name}", "--fusion=quantity-fusion"]
    assert main([*arguments, "--head=quantity-fusion", f"--source={source}", "--confusion"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert found["confusion"] == model.evaluate(rows["dev"], confusion=True)["confusion"].to_dict()
    assert any(line.split()[:1] == ["many"] for line in err.splitlines())
    assert {"split", "rows", "accuracy", "macro_f1", "matthews", "f1", "confusion"} == found.keys()


def test_run_from_python_can_be_reported(
    fused: tuple[TaskModel, Path], rows: Mapping[str, Rows], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, folder = fused
    source = write_split(tmp_path / "dev.jsonl", rows["dev"])
    page = tmp_path / "report.html"
    arguments = ["report", f"--output={page}", f"--source={source}", f"--store={folder / 'store'}"]
    assert main([*arguments, f"--workdir={folder / 'run'}"]) == 0
    text = page.read_text(encoding="utf-8")
    for fact in ("first, second", "Mean attention", f"{model.metrics['accuracy']:.4f}"):
        assert fact in text
    assert "cannot be" not in text
    assert "their digests differ" not in text
    # A folder with several runs can be reported without a store.
    assert main(["report", f"--output={page}", f"--workdir={folder}"]) == 0
    text = page.read_text(encoding="utf-8")
    assert has_facts(text, "3 of 3 runs", "finished")
    # Runs of earlier versions have no trained.json. Calling the recipe again writes the file.
    earlier = tmp_path / "earlier"
    config = dataclasses.replace(TrainConfig(), max_steps=1, batch_size=8, max_length=8, buckets=(8,))
    shared: dict[str, Any] = {"method": Method(partition="head"), "config": config}
    train_single(model.trunk, model.task, rows, workdir=earlier, **shared)
    (earlier / "trained.json").unlink()
    capsys.readouterr()
    assert main(["report", f"--output={page}", f"--workdir={earlier}"]) == 2
    assert has_facts(capsys.readouterr().err, f"{earlier} ", "no finished run", "earlier version", "recipe")
    train_single(model.trunk, model.task, rows, workdir=earlier, **shared)
    assert main(["report", f"--output={page}", f"--workdir={earlier}"]) == 0
    assert "cannot be loaded" in page.read_text(encoding="utf-8")
