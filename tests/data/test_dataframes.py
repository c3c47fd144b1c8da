"""Rows are built from columns, iterators, arrays and tables in pandas, Polars, or stand-ins for them."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from facts import has_facts

from afjax.config.tasks import TaskConfig
from afjax.data.dataframes import as_list
from afjax.data.splits import ChoiceRows, Rows, SpanRows
from afjax.errors import UserError
from afjax.tasks.load import rows_by_split, rows_from_lists, rows_from_table

TEXTS, LABELS = ["fine", "poor", "fair"], ["good", "bad", "good"]
TASK = TaskConfig(name="t")


class Series:
    """A column like a shuffled pandas Series, whose index labels are not positions."""

    def __init__(self, values: Sequence[Any]) -> None:
        self.by_label = {10 - number: value for number, value in enumerate(values)}

    def __len__(self) -> int:
        return len(self.by_label)

    def __getitem__(self, label: int) -> Any:
        return self.by_label[label]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.by_label.values())


class Frame:
    """A table of named columns. Iterating over it yields the names, as in pandas."""

    def __init__(self, **columns: Sequence[Any]) -> None:
        self.values = {name: Series(column) for name, column in columns.items()}
        self.columns = list(columns)

    def __len__(self) -> int:
        return max(map(len, self.values.values()))

    def __getitem__(self, name: str) -> Series:
        return self.values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


def refused(make: Any, *args: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(*args, **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    "wrap",
    [tuple, iter, Series, lambda values: (value for value in values), lambda values: dict.fromkeys(values).keys()],
    ids=["tuple", "iterator", "series", "generator", "keys"],
)
def test_sequences_and_iterators_of_texts(wrap: Any) -> None:
    rows = rows_from_lists(wrap(TEXTS), [1, 0, 1], label_names=wrap(["bad", "good"]))
    assert isinstance(rows, Rows)
    assert (rows.text_a, rows.label_names) == (TEXTS, ("bad", "good"))
    assert rows.labels is not None
    assert rows.labels.tolist() == [1, 0, 1]
    labels = rows_from_lists(TEXTS, Series(LABELS)).labels
    assert labels is not None
    assert labels.tolist() == [1, 0, 1]


def test_arrays_and_pairs() -> None:
    pairs = np.array([["a", "b"], ["c", "d"]])
    for given in (pairs, zip(["a", "c"], ["b", "d"], strict=True), np.array([("a", "b"), ("c", "d")], object)):
        rows = rows_from_lists(given, np.array(["x", "y"]))
        assert isinstance(rows, Rows)
        assert (rows.text_a, rows.text_b, rows.label_names) == (["a", "c"], ["b", "d"], ("x", "y"))
    rows = rows_from_lists(np.array(TEXTS, object), np.array([0.5, 1.0, 2.0]), kind="regression")
    assert rows.labels is not None
    assert rows.labels.dtype == np.float32


@pytest.mark.parametrize(
    ("texts", "facts"),
    [
        ("fine", ("'fine'", "list")),
        (np.array("fine"), ("'fine'", "list")),
        (7, ("7", "int")),
        (None, ("None", "NoneType")),
        ({"fine", "poor"}, ("set", "order")),
        ({"text": TEXTS}, ("dict", "rows_from_table")),
        (Frame(text=TEXTS), ("Frame", "rows_from_table")),
    ],
    ids=["text", "array of one text", "number", "None", "set", "dict", "frame"],
)
def test_other_types_are_refused_by_name(texts: Any, facts: tuple[str, ...]) -> None:
    message = refused(rows_from_lists, texts)
    assert message.startswith("texts is ")
    for fact in facts:
        assert fact in message
    assert "labels is " in refused(rows_from_lists, ["fine"], 3)


@pytest.mark.parametrize("make", [Frame, dict], ids=["frame", "dict"])
def test_tables(make: Any) -> None:
    rows = rows_from_table(make(label=LABELS, id=[7, 8, 9], text=TEXTS), TASK)
    assert isinstance(rows, Rows)
    assert (rows.text_a, rows.label_names, rows.ids) == (TEXTS, ("bad", "good"), ["7", "8", "9"])
    named = TaskConfig(name="t", text_a="q1", text_b="q2", label="same", labels=("no", "yes"))
    rows = rows_from_table(make(q1=["a", "b"], q2=["c", "d"], same=np.array([1, 0])), named)
    assert isinstance(rows, Rows)
    assert (rows.text_b, rows.labels.tolist()) == (["c", "d"], [1, 0])  # type: ignore[union-attr]
    assert rows_from_table(make(text=TEXTS), TASK, labeled=None).labels is None


def test_columns_with_the_same_name_as_string_and_number_are_refused() -> None:
    assert '"1"' in refused(rows_from_table, {"1": TEXTS, 1: TEXTS, "label": LABELS}, TASK)


@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label"])
def test_rows_to_predict_need_no_label_column(kind: Any) -> None:
    task = TaskConfig(name="t", kind=kind, text_a="review", label="stars")
    rows = rows_from_table({"review": TEXTS}, task, labeled=False)
    assert (rows.text_a, rows.labels) == (TEXTS, None)  # type: ignore[union-attr]
    assert rows_from_table({"review": TEXTS, "stars": [None] * 3}, task, labeled=False).labels is None
    assert "stars" in refused(rows_from_table, {"review": TEXTS}, task)


def test_tables_for_the_other_task_kinds() -> None:
    # Column elements can be arrays, which is how pandas reads lists from Parquet files.
    choices = np.empty(2, object)
    choices[:] = [np.array(["a", "b"]), np.array(["c", "d"])]
    table = {"context": ["x", "y"], "choices": choices, "label": [0, 1]}
    rows = rows_from_table(table, TaskConfig(name="t", kind="multiple_choice"))
    assert isinstance(rows, ChoiceRows)
    assert rows.choices == [("a", "b"), ("c", "d")]
    nested = np.empty(1, object)
    nested[0] = [np.array(["a", "b"], object), np.array(["c"])]
    assert as_list(nested, "values") == [[["a", "b"], ["c"]]]
    answers = [{"text": np.array(["two"]), "answer_start": np.array([4])}]
    table = {"question": ["how many"], "context": ["the two"], "answers": answers}
    spans = rows_from_table(table, TaskConfig(name="t", kind="span"))
    assert isinstance(spans, SpanRows)
    assert spans.labels == [(("two", 4),)]


@pytest.mark.parametrize(
    ("table", "facts"),
    [
        ({"review": TEXTS, "label": LABELS}, ("table:0", "text_a", "review, label")),
        ({"text": TEXTS, "stars": LABELS}, ("table:0", '"label"', "text, stars")),
        ({"text": ["fine", float("nan"), "fair"], "label": LABELS}, ("table:1", "nan", "text, label")),
        ({"text": TEXTS, "label": ["good", float("nan"), "bad"]}, ("table:1", "no label")),
        ({"text": TEXTS, "label": LABELS[:2]}, ("text 3", "label 2")),
        ({"text": "fine", "label": LABELS}, ('"text"', "single text")),
        ({"text": [], "label": []}, ("no rows", "text, label")),
        ({}, ("no rows",)),
        ([("fine", "good")], ("list", "DataFrame")),
        (7, ("int", "DataFrame")),
    ],
    ids=["texts", "labels", "missing text", "missing label", "lengths", "one text", "empty", "nothing", "list", "int"],
)
def test_bad_tables_are_refused(table: Any, facts: tuple[str, ...]) -> None:
    message = refused(rows_from_table, table, TASK)
    for fact in facts:
        assert fact in message


def test_duplicate_column_name_is_refused() -> None:
    frame = Frame(text=TEXTS, label=LABELS)
    frame.columns.append("text")
    assert '"text"' in refused(rows_from_table, frame, TASK)


# Data for a training recipe.


def test_splits_can_be_tables_or_rows() -> None:
    train, dev = Frame(text=TEXTS, label=LABELS), {"text": ["poor", "fine"], "label": ["bad", "good"]}
    for given in (train, rows_from_lists(TEXTS, LABELS)):
        splits = rows_by_split(TASK, {"dev": dev, "train": given, "test": {"text": ["fine"]}})
        assert splits["dev"].label_names == ("bad", "good")
        assert splits["dev"].labels is not None
        assert splits["dev"].labels.tolist() == [0, 1]
        assert splits["test"].labels is None
    message = refused(rows_by_split, TASK, {"train": train, "dev": {"text": ["poor"], "label": ["bda"]}})
    assert 'data["dev"]:0' in message
    assert 'Did you mean "bad"?' in message


def test_dev_rows_are_split_from_train_if_missing(capsys: pytest.CaptureFixture[str]) -> None:
    texts = [f"text {number}" for number in range(100)]
    table = {"text": texts, "label": ["a", "b"] * 50}
    splits = rows_by_split(TASK, {"train": table})
    assert isinstance(splits["dev"], Rows)
    assert isinstance(splits["train"], Rows)
    assert sorted([*splits["train"].text_a, *splits["dev"].text_a]) == sorted(texts)
    assert has_facts(capsys.readouterr().err, "100 rows", f"{len(splits['dev'])} dev row")
    # ``Rows`` are split like a table of the same rows.
    again = rows_by_split(TASK, {"train": rows_from_lists(texts, table["label"])})
    assert again["dev"].digest() == splits["dev"].digest()
    no_share = TaskConfig(name="t", dev_share=0)
    assert '"dev"' in refused(rows_by_split, no_share, {"train": table})


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        (Frame(text=TEXTS), ("Frame", '"train"')),
        ({"text": TEXTS, "label": LABELS}, ("text, label", '"train"')),
        ({"dev": {"text": TEXTS, "label": LABELS}}, ("has dev", '"train"')),
        ({"train": {"text": TEXTS, "label": LABELS}, "held_out": {}}, ("train, held_out", '"dev"')),
        ({"train": [("fine", "good")]}, ("train rows", "list", "DataFrame")),
        ({"train": 7}, ("train rows", "int")),
        (None, ("NoneType",)),
    ],
    ids=["frame", "columns", "no train", "another name", "list", "number", "None"],
)
def test_invalid_data_is_refused(data: Any, facts: tuple[str, ...]) -> None:
    message = refused(rows_by_split, TASK, data)
    for fact in facts:
        assert fact in message


# The real libraries, if they are installed.


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS, "label": [1, 0, 1]}).iloc[[2, 1]]
    rows = rows_from_lists(frame.text, frame.label)
    assert isinstance(rows, Rows)
    assert rows.text_a == list(frame["text"])
    assert rows_from_table(frame, TASK).digest() == rows.digest()
    frame.loc[frame.index[1], "text"] = None
    assert "table:1" in refused(rows_from_table, frame, TASK)
    assert "DataFrame" in refused(rows_from_lists, frame)
    categories = pandas.Series(["a", "b"], dtype="category")
    assert rows_from_lists(["x", "y"], categories).label_names == ("a", "b")


def test_polars() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"text": TEXTS, "label": LABELS})
    rows = rows_from_table(frame, TASK)
    assert rows.digest() == rows_from_lists(frame["text"], frame["label"]).digest()
    choices = polars.DataFrame({"context": ["x"], "choices": [["a", "b"]], "label": [1]})
    assert isinstance(rows_from_table(choices, TaskConfig(name="t", kind="multiple_choice")), ChoiceRows)
