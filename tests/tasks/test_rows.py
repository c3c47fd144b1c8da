"""Splits are read from folders and lists, and malformed rows are refused."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts

from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.data.splits import ChoiceRows, Rows, SpanRows
from afjax.errors import UserError
from afjax.tasks.load import load_split, load_task, rows_by_split, rows_from_lists
from afjax.tasks.prediction_rows import read_prediction_rows

PAIRS = [{"text_a": "one", "text_b": "two", "label": 0}, {"text_a": "three", "text_b": "four", "label": 1}]


def write_jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_folder(folder: Path, names: list[str] | None = None, **splits: list[Any]) -> Path:
    for split, rows in splits.items():
        write_jsonl(folder / f"{split}.jsonl", rows)
    if names:
        (folder / "labels.json").write_text(json.dumps(names))
    return folder


def texts(*labels: Any) -> list[dict[str, Any]]:
    return [{"text": f"text {row}", "label": label} for row, label in enumerate(labels)]


def of_kind(kind: Any) -> TaskConfig:
    return TaskConfig(name="t", kind=kind)


def refused(task: TaskConfig, split: Any, *facts: str) -> None:
    with pytest.raises(UserError) as caught:
        load_split(task, split)
    for fact in facts:
        assert fact in str(caught.value)


def test_pairs_with_label_indices_are_read(tmp_path: Path) -> None:
    make_folder(tmp_path, ["no", "yes"], train=PAIRS, dev=PAIRS[::-1])
    splits = load_task(TaskConfig(name="t", source=str(tmp_path)))
    assert list(splits) == ["train", "dev"]
    assert splits["dev"].text_a == ["three", "one"]
    assert splits["dev"].text_b == ["four", "two"]
    assert splits["dev"].label_names == ("no", "yes")
    assert splits["dev"].labels is not None
    assert splits["dev"].labels.dtype == np.int32
    assert splits["dev"].labels.tolist() == [1, 0]
    assert len(splits["dev"]) == 2


def test_label_names_come_from_train_and_are_sorted(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts("b", "c", "a"), dev=texts("b", "a"))
    splits = load_task(TaskConfig(name="t", source=str(tmp_path)))
    assert splits["train"].label_names == splits["dev"].label_names == ("a", "b", "c")
    assert splits["dev"].labels is not None
    assert splits["dev"].labels.tolist() == [1, 0]
    assert load_split(TaskConfig(name="t", source=str(tmp_path)), "dev").label_names == ("a", "b", "c")


def test_integer_labels_sort_as_numbers(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts(10, 9, -1))
    rows = load_split(TaskConfig(name="t", source=str(tmp_path)), "train")
    assert rows.label_names == ("-1", "9", "10")
    assert rows.labels is not None
    assert rows.labels.tolist() == [2, 1, 0]


def test_integer_names_are_names_not_indices(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts(1, 2, 3))
    rows = load_split(TaskConfig(name="t", source=str(tmp_path), labels=("3", "2", "1")), "train")
    assert rows.labels is not None
    assert rows.labels.tolist() == [2, 1, 0]
    make_folder(tmp_path, train=texts(1, 0))
    refused(TaskConfig(name="t", source=str(tmp_path), labels=("3", "2", "1")), "train", ":2 ", "'0'", "3, 2, 1")


def test_tsv_labels_can_be_names_or_indices(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("text\tlabel\none\tyes\ntwo\t0\n")
    rows = load_split(TaskConfig(name="t", source=str(tmp_path), labels=("no", "yes")), "train")
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0]


def test_boolean_labels_are_named_false_and_true(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts(True, False))
    assert load_split(TaskConfig(name="t", source=str(tmp_path)), "train").label_names == ("false", "true")


def test_columns_and_files_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("gold,second,first\nx,B,A\ny,D,C\n")
    task = TaskConfig(name="t", source=str(tmp_path), train="mine.csv", text_a="first", text_b="second", label="gold")
    rows = load_split(task, "train")
    assert (rows.text_a, rows.text_b, rows.label_names) == (["A", "C"], ["B", "D"], ("x", "y"))
    task = TaskConfig(name="t", train=str(tmp_path / "mine.csv"), text_a="first", label="gold")
    assert load_split(task, "train").text_b is None


def test_regression_labels_are_float32(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts(1, 2.5, "3"))
    rows = load_split(TaskConfig(name="t", source=str(tmp_path), kind="regression"), "train")
    assert rows.labels is not None
    assert rows.labels.dtype == np.float32
    assert rows.labels.tolist() == [1.0, 2.5, 3.0]
    assert rows.label_names == ()


@pytest.mark.parametrize("label", [float("nan"), float("inf"), 1e39, "", None, "high", True, [1]])
def test_non_numeric_regression_labels_are_refused(tmp_path: Path, label: Any) -> None:
    make_folder(tmp_path, train=texts(1.0, label))
    refused(TaskConfig(name="t", source=str(tmp_path), kind="regression"), "train", "train.jsonl:2 ", "finite number")


@pytest.mark.parametrize("label", [1.5, [1], {}])
def test_invalid_class_labels_are_refused(tmp_path: Path, label: Any) -> None:
    make_folder(tmp_path, train=texts("a", "b", label))
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "train.jsonl:3 ", "name", "integer")


@pytest.mark.parametrize("label", [None, "", math.nan])
def test_empty_label_is_refused(tmp_path: Path, label: Any) -> None:
    make_folder(tmp_path, train=texts("a", "b", label))
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "train.jsonl:3 ", "has no label")


@pytest.mark.parametrize("label", [2, -1, "yess"])
def test_unknown_label_is_refused(tmp_path: Path, label: Any) -> None:
    make_folder(tmp_path, ["no", "yes"], train=texts(0, label))
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "train.jsonl:2 ", str(label), "no, yes", "0 to 1")


def test_dev_label_missing_from_train_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts("yes", "no"), dev=texts("yes", "yess"))
    refused(TaskConfig(name="t", source=str(tmp_path)), "dev", "dev.jsonl:2 ", 'Did you mean "yes"?')


def test_row_without_label_column_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, train=[*texts("a"), {"text": "one", "lable": "a"}])
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", ":2 ", "text, lable", 'Did you mean "lable"?')


def test_dev_split_needs_labels_but_test_split_does_not(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts("a", "b"), dev=[{"text": "one"}], test=[{"text": "two"}])
    task = TaskConfig(name="t", source=str(tmp_path))
    refused(task, "dev", "dev.jsonl", '"label"')
    assert load_split(task, "dev", labeled=False).labels is None
    make_folder(tmp_path, dev=texts("b", "a"))
    assert load_task(task)["test"].labels is None


@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label"])
def test_test_split_may_lack_the_label_column_that_the_task_names(tmp_path: Path, kind: Any) -> None:
    rows = [{"text": f"text {row}", "stars": row} for row in (1, 2)]
    make_folder(tmp_path, train=rows, dev=rows, test=[{"text": "two"}])
    task = TaskConfig(name="t", source=str(tmp_path), kind=kind, label="stars")
    assert load_task(task)["test"].labels is None
    make_folder(tmp_path, dev=[{"text": "two"}])
    refused(task, "dev", "dev.jsonl:1 ", '"stars"')


@pytest.mark.parametrize(
    ("kind", "row", "label"),
    [
        ("classification", {"text": "one"}, {"label": "a"}),
        ("regression", {"text": "one"}, {"label": 1.0}),
        ("multi_label", {"text": "one"}, {"label": ["a"]}),
        ("multiple_choice", {"context": "one", "choices": ["two", "three"]}, {"label": 0}),
        ("span", {"context": "one", "question": "two"}, {"answers": {"text": ["one"], "answer_start": [0]}}),
        ("tagging", {"words": ["one"]}, {"tags": ["O"]}),
    ],
)
def test_test_split_with_labels_only_in_later_rows_is_refused(
    tmp_path: Path, kind: Any, row: dict[str, Any], label: dict[str, Any]
) -> None:
    make_folder(tmp_path, test=[row, {**row, **label}])
    task = TaskConfig(name="t", source=str(tmp_path), kind=kind)
    with pytest.raises(UserError) as caught:
        load_split(task, "test", labeled=None)
    assert has_facts(str(caught.value), "test.jsonl:2 ", f'"{next(iter(label))}"')
    assert load_split(task, "test", labeled=False).labels is None


def test_test_split_has_the_label_names_of_train_if_dev_is_held_out(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts(*["bad", "fine", "good"] * 20), other=texts("fine", "good"), bad=texts("ugly"))
    task = TaskConfig(name="t", source=str(tmp_path / "train.jsonl"), test="other.jsonl")
    for rows in (load_split(task, "test"), load_task(task)["test"]):
        assert isinstance(rows, Rows)
        assert rows.label_names == ("bad", "fine", "good")
        np.testing.assert_array_equal(rows.labels, [1, 2])
    refused(
        TaskConfig(name="t", source=task.source, test="bad.jsonl"), "test", "bad.jsonl:1 ", "'ugly'", "bad, fine, good"
    )


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan")])
@pytest.mark.parametrize(
    ("kind", "columns", "label", "value"),
    [
        ("tagging", {"words": ["Ada wrote", "it"]}, "tags", ["B-p O", "O"]),
        ("span", {"question": ["q", "r"], "context": ["a b", "c"]}, "answers", [{"text": ["b"]}, {"text": ["c"]}]),
    ],
)
def test_missing_tags_and_answers_of_the_test_split_are_recognized(
    kind: Any, columns: dict[str, Any], label: str, value: list[Any], missing: Any
) -> None:
    task = TaskConfig(name="t", kind=kind)
    labeled, unlabeled = {**columns, label: value}, {**columns, label: [missing] * 2}
    assert rows_by_split(task, {"train": labeled, "dev": labeled, "test": unlabeled})["test"].labels is None
    assert rows_by_split(task, {"train": labeled, "dev": labeled, "test": labeled})["test"].labels is not None
    with pytest.raises(UserError, match=label):
        rows_by_split(task, {"train": labeled, "dev": unlabeled})
    if kind == "span":
        task = TaskConfig(name="t", kind=kind, span=SpanConfig(no_answer=True))
        assert rows_by_split(task, {"train": labeled, "dev": labeled, "test": unlabeled})["test"].labels is None


def test_two_names_for_one_split_are_refused() -> None:
    rows = rows_from_lists(["one", "two"], ["a", "b"])
    with pytest.raises(UserError, match=r"dev and validation.* dev split"):
        rows_by_split(TaskConfig(name="t"), {"train": rows, "dev": rows, "validation": rows})
    # Datasets have other splits too.
    assert list(rows_by_split(TaskConfig(name="t"), {"train": rows, "dev": rows, "unsupervised": rows})) == [
        "train",
        "dev",
    ]


@pytest.mark.parametrize("missing", [None, math.nan, np.float32("nan"), "", "-1", -1, "-1.0", -1.0])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_missing_labels_of_the_test_split_are_recognized(kind: Any, missing: Any) -> None:
    labeled, unlabeled = {"text": ["one", "two"], "label": [1, 2]}, {"text": ["one", "two"], "label": [missing] * 2}
    splits = rows_by_split(of_kind(kind), {"train": labeled, "dev": labeled, "test": unlabeled})
    assert splits["test"].labels is None


def test_class_called_minus_one_is_a_label() -> None:
    labeled, negative = {"text": ["one", "two"], "label": [-1, 1]}, {"text": ["one", "two"], "label": [-1, "-1"]}
    with pytest.warns(UserWarning, match="label"):
        splits = rows_by_split(of_kind("classification"), {"train": labeled, "dev": labeled, "test": negative})
    assert splits["test"].labels.tolist() == [0, 0]


def test_missing_labels_of_pandas_are_recognized() -> None:
    pandas = pytest.importorskip("pandas")
    labeled = pandas.DataFrame({"text": ["one", "two"], "label": [1, 2]})
    for missing in ([pandas.NA, pandas.NA], [pandas.NaT, None], pandas.array([None, None], dtype="Int64")):
        unlabeled = pandas.DataFrame({"text": ["one", "two"], "label": missing})
        splits = rows_by_split(of_kind("classification"), {"train": labeled, "dev": labeled, "test": unlabeled})
        assert splits["test"].labels is None


@pytest.mark.parametrize(
    ("kind", "texts", "labels"),
    [
        ("classification", [f"text {row}" for row in range(60)], ["a", "b"] * 30),
        ("regression", [f"text {row}" for row in range(60)], [0.5] * 60),
        ("multi_label", [f"text {row}" for row in range(60)], [["a"], []] * 30),
        ("tagging", [f"text {row}" for row in range(60)], [["O", "B-a"]] * 60),
        ("multiple_choice", [(f"text {row}", ["one", "two"]) for row in range(60)], [0, 1] * 30),
        ("span", [(f"what {row}", "one") for row in range(60)], [{"text": ["one"], "answer_start": [0]}] * 60),
    ],
)
def test_train_rows_limits_rows_passed_in_python(kind: Any, texts: list[Any], labels: list[Any]) -> None:
    rows, task = rows_from_lists(texts, labels, kind=kind), TaskConfig(name="t", kind=kind, train_rows=7)
    splits = rows_by_split(task, {"train": rows, "dev": rows, "test": rows})
    assert splits["train"].digest() == rows.every(7).digest()
    assert len(splits["dev"]) == len(splits["test"]) == 60
    assert rows_by_split(task, splits)["train"] is splits["train"]
    # If dev is held out from train, the train rows are limited afterwards.
    unlimited = rows_by_split(TaskConfig(name="t", kind=kind), {"train": rows})
    splits = rows_by_split(task, {"train": rows})
    assert splits["train"].digest() == unlimited["train"].every(7).digest()
    assert splits["dev"].digest() == unlimited["dev"].digest()


def test_train_rows_selects_the_same_rows_from_files_and_tables(tmp_path: Path) -> None:
    rows = texts(*"abc" * 10)
    make_folder(tmp_path, train=rows, dev=rows)
    table = {name: [row[name] for row in rows] for name in ("text", "label")}
    task = TaskConfig(name="t", source=str(tmp_path), train_rows=7)
    loaded, given = load_task(task), rows_by_split(task, {"train": table, "dev": table})
    assert len(given["train"]) == 7
    assert {split: part.digest() for split, part in given.items()} == {
        split: part.digest() for split, part in loaded.items()
    }


@pytest.mark.parametrize("missing", [None, math.nan, ""])
@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_train_row_without_a_label_is_refused(kind: Any, missing: Any) -> None:
    with pytest.raises(UserError) as error:
        rows_by_split(of_kind(kind), {"train": {"text": ["one", "two"], "label": [1, missing]}})
    assert 'data["train"]:1 has ' in str(error.value)


def test_missing_text_column_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, train=[{"sentence": "one", "label": "a"}])
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "train.jsonl:1 ", "text_a and text_b", "sentence")
    task = TaskConfig(name="t", source=str(tmp_path), text_a="sentense")
    refused(task, "train", "train.jsonl:1 ", "sentense", 'Did you mean "sentence"?')
    refused(TaskConfig(name="t", source=str(tmp_path), text_b="sentence"), "train", "text_a")


@pytest.mark.parametrize("text", [None, 3, ["one"], {}])
def test_text_that_is_not_a_string_is_refused(tmp_path: Path, text: Any) -> None:
    make_folder(tmp_path, train=[*texts("a"), {"text": text, "label": "b"}])
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "train.jsonl:2 ", "must be a string")


def test_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, train=[*texts("a"), {"text": "\ud800", "label": "b"}])
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "train.jsonl:2 ", "surrogate")
    make_folder(tmp_path, train=[*texts("a"), {"text": "b", "label": "\ud800"}])
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "train.jsonl:2 ", "label", "surrogate")


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint64])
def test_rows_can_be_selected_with_any_integer_dtype(dtype: Any) -> None:
    rows = rows_from_lists([f"text {number}" for number in range(300)], ["x", "y"] * 150)
    selected = rows[np.array([1, 127], dtype)]
    assert isinstance(selected, Rows)
    assert selected.text_a == ["text 1", "text 127"]


def test_missing_split_is_refused(tmp_path: Path) -> None:
    make_folder(tmp_path, training=texts("a"))
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "no train split", 'Did you mean "training.jsonl"?')
    refused(TaskConfig(name="t", source=str(tmp_path), train="trainin.jsonl"), "train", "trainin.jsonl", "Did you")
    refused(TaskConfig(name="t"), "train", "no source")
    refused(TaskConfig(name="t", source=str(tmp_path)), "validation", 'split is "validation"', "train, dev, test")


@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", '["a", "a"]', '["a"]', '["a", ""]', "\xff"])
def test_bad_labels_file_is_refused(tmp_path: Path, content: str) -> None:
    make_folder(tmp_path, train=texts("a", "b"))
    (tmp_path / "labels.json").write_bytes(content.encode("latin-1"))
    refused(TaskConfig(name="t", source=str(tmp_path)), "train", "labels.json")


def test_single_class_warns_once(tmp_path: Path) -> None:
    make_folder(tmp_path, ["a", "b"], train=texts("a", "a"), dev=texts("a", "b"))
    with pytest.warns(UserWarning, match=r"train\.jsonl.*\"a\"") as caught:
        load_task(TaskConfig(name="t", source=str(tmp_path)))
    assert len(caught) == 1


def test_single_class_without_label_names_warns_once_per_split(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts("a", "a"), dev=texts("a", "a"))
    with pytest.warns(UserWarning, match=r'All rows .*label "a"') as caught:
        splits = load_task(TaskConfig(name="t", source=str(tmp_path)))
    assert len(caught) == 2
    assert splits["dev"].label_names == ("a",)


def test_builtin_tasks_load_like_other_tasks() -> None:
    splits = load_task(TaskConfig(name="t", source="builtin:target"))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 200, "dev": 600, "test": 600}
    refused(TaskConfig(name="t", source="builtin:targt"), "train", 'Did you mean "target"?')


def test_lists_of_texts_become_rows() -> None:
    rows = rows_from_lists(["one", "two", "three"], ["b", "a", "b"])
    assert (rows.text_a, rows.text_b, rows.label_names) == (["one", "two", "three"], None, ("a", "b"))
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0, 1]


def test_lists_of_pairs_with_indices_or_numbers_become_rows() -> None:
    rows = rows_from_lists([("one", "two"), ("three", "four")], np.array([1, 0]), label_names=["no", "yes"])
    assert rows.text_b == ["two", "four"]
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0]
    rows = rows_from_lists(["one", "two"], np.array([0.5, 1.0]), kind="regression")
    assert rows.labels is not None
    assert rows.labels.tolist() == [0.5, 1.0]
    assert rows_from_lists(["one"]).labels is None


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (([], None), "empty"),
        ((["one"], ["a", "b"]), "1 text and 2 labels"),
        ((["one", ("two", "three")], None), "texts:1 "),
        (([("one", "two"), "three"], None), "texts:1 "),
        (([("one", "two", "three")], None), "texts:0 "),
        (([None], None), "texts:0 "),
        ((["one", "two"], ["a", None]), "texts:1 .*no label"),
    ],
)
def test_bad_lists_are_refused(arguments: Any, facts: str) -> None:
    with pytest.raises(UserError, match=facts):
        rows_from_lists(*arguments)


def test_prediction_rows_are_grouped_into_single_texts_and_pairs(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [*texts("a"), *PAIRS, *texts("b")])
    (singles, single), (doubles, double) = read_prediction_rows(path, of_kind("classification")).forms
    assert (singles, doubles) == ([0, 3], [1, 2])
    assert isinstance(single, Rows)
    assert (single.text_a, single.text_b) == (["text 0", "text 0"], None)
    assert isinstance(double, Rows)
    assert (double.text_a, double.text_b) == (["one", "three"], ["two", "four"])


def test_prediction_rows_of_choices_and_spans_are_read(tmp_path: Path) -> None:
    rows = [{"context": "one", "choices": ["a", "b"]}, {"context": "two", "question": "x?", "choices": ["c", "d", "e"]}]
    ((numbers, choices),) = read_prediction_rows(
        write_jsonl(tmp_path / "a.jsonl", rows), of_kind("multiple_choice")
    ).forms
    assert numbers == [0, 1]
    assert isinstance(choices, ChoiceRows)
    assert choices.contexts == ["one", "two x?"]
    assert choices.choices == [("a", "b"), ("c", "d", "e")]
    rows = [{"question": "x?", "context": "two", "id": 7}]
    ((numbers, spans),) = read_prediction_rows(write_jsonl(tmp_path / "a.jsonl", rows), of_kind("span")).forms
    assert isinstance(spans, SpanRows)
    assert (spans.questions, spans.contexts, spans.labels) == (["x?"], ["two"], None)


@pytest.mark.parametrize(
    ("kind", "row", "facts"),
    [
        ("classification", {"context": "one", "choices": ["a", "b"]}, r':1 .*\["text_a", "text_b"\] or \["text"\]'),
        ("classification", {}, r":1 .*columns \(none\)"),
        ("multiple_choice", {"text": "one"}, r':1 .*\["context", "choices"\]'),
        ("multiple_choice", {"context": "one", "choices": ["a"]}, ":1 .* 1 choice;.*two"),
        ("multiple_choice", {"context": "one", "choices": []}, ":1 .*no choices;.*two"),
        ("multiple_choice", {"context": "one", "choices": ["a", " "]}, ":1 .*empty choice"),
        ("span", {"text": "one"}, r':1 .*\["question", "context"\]'),
    ],
)
def test_prediction_rows_for_another_task_kind_are_refused(
    tmp_path: Path, kind: Any, row: dict[str, Any], facts: str
) -> None:
    with pytest.raises(UserError, match=rf"a\.jsonl{facts}"):
        read_prediction_rows(write_jsonl(tmp_path / "a.jsonl", [row]), of_kind(kind))


def test_prediction_row_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl:2 "):
        read_prediction_rows(
            write_jsonl(tmp_path / "a.jsonl", [*texts("a"), {"label": "a"}]), of_kind("classification")
        )
    with pytest.raises(UserError, match="jsonl"):
        read_prediction_rows(tmp_path / "a.txt", of_kind("classification"))


@pytest.mark.parametrize("label", [-1, None, ""])
def test_placeholder_labels_count_as_missing(tmp_path: Path, label: Any) -> None:
    make_folder(tmp_path, train=texts("a", "b"), dev=texts("b", "a"), test=texts(label, label))
    assert load_task(TaskConfig(name="t", source=str(tmp_path)))["test"].labels is None
    make_folder(tmp_path, test=texts("a", label))
    with pytest.raises(UserError, match=r"test\.jsonl:2 has"):
        load_task(TaskConfig(name="t", source=str(tmp_path)))


def test_span_rows_without_answer_positions_are_refused_for_training(tmp_path: Path) -> None:
    row = {"question": "what", "context": "one", "answers": {"text": ["one"], "answer_start": [None]}}
    make_folder(tmp_path, train=[row], dev=[row])
    task = TaskConfig(name="t", source=str(tmp_path), kind="span")
    with pytest.raises(UserError, match=r"No row .*t's train split.*answer_start"):
        load_task(task)
    assert len(load_split(task, "dev")) == 1


def test_valid_data_does_not_warn(tmp_path: Path) -> None:
    make_folder(tmp_path, train=texts("a", "b"), dev=texts("b", "a"), test=texts("b", "a"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load_task(TaskConfig(name="t", source=str(tmp_path)))) == 3


def test_single_string_instead_of_a_list_is_refused() -> None:
    with pytest.raises(UserError, match=r"'hello'.*list"):
        rows_from_lists("hello")


# Tests of rows with single texts and with pairs.


def test_splits_must_share_one_form(tmp_path: Path) -> None:
    task = TaskConfig(name="t", source=str(tmp_path))
    for wrong in ("dev", "test"):
        make_folder(tmp_path, ["no", "yes"], train=PAIRS, dev=PAIRS, test=PAIRS)
        make_folder(tmp_path, **{wrong: texts(0, 1)})
        with pytest.raises(UserError, match=f"t's train rows.*pairs of texts.* {wrong} rows.*single texts"):
            load_task(task)


def test_multiple_choice_rows_must_share_one_form(tmp_path: Path) -> None:
    without_question = [{"context": "x", "choices": ["a", "b"], "label": label} for label in (0, 1)]
    with_question = [{**row, "question": "why"} for row in without_question]
    task = TaskConfig(name="t", source=str(tmp_path), kind="multiple_choice")
    make_folder(tmp_path, train=with_question, dev=without_question)
    with pytest.raises(UserError, match=r"context and a question.*dev rows.*context without"):
        load_task(task)
    make_folder(tmp_path, train=without_question, dev=without_question)
    assert load_task(task)["dev"].text_columns == 1
    make_folder(tmp_path, train=[without_question[0], with_question[1]])
    refused(task, "train", "train.jsonl:2 ", "question")
    assert rows_from_lists([("x", ["a", "b"])], kind="multiple_choice").text_columns is None


@pytest.mark.parametrize(
    ("kind", "form", "right", "wrong"),
    [
        ("classification", 2, {"text_a": "x", "text_b": "y"}, {"text": "x"}),
        ("regression", 1, {"text": "x"}, {"text_a": "x", "text_b": "y"}),
        ("multiple_choice", 1, {"context": "x", "choices": ["a", "b"]}, {"question": "q"}),
        (
            "multiple_choice",
            2,
            {"context": "x", "choices": ["a", "b"], "question": "q"},
            {"context": "x", "choices": []},
        ),
    ],
)
def test_prediction_rows_must_match_the_form_of_the_head(
    kind: Any, form: int, right: dict[str, Any], wrong: dict[str, Any], tmp_path: Path
) -> None:
    wrong = {**right, **wrong} if "question" in wrong else wrong
    ((numbers, _),) = read_prediction_rows(write_jsonl(tmp_path / "a.jsonl", [right, right]), of_kind(kind), form).forms
    assert numbers == [0, 1]
    with pytest.raises(UserError, match=r"a\.jsonl:2 .*columns"):
        read_prediction_rows(write_jsonl(tmp_path / "a.jsonl", [right, wrong]), of_kind(kind), form)


def test_form_of_the_head_selects_the_columns(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": "x", "text_a": "y", "text_b": "z"}])
    for form, expected in ((1, ["x"]), (2, ["y"])):
        ((_, rows),) = read_prediction_rows(path, of_kind("classification"), form).forms
        assert isinstance(rows, Rows)
        assert rows.text_a == expected


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match=r'"clasification".*Did you mean "classification"'):
        rows_from_lists(["a", "b"], ["x", "y"], kind="clasification")  # type: ignore[arg-type]
