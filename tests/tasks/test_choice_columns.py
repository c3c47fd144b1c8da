"""Multiple-choice rows are read, and malformed rows are refused with a reason."""

import math
from typing import Any

import pytest

from afjax.config.tasks import TaskConfig
from afjax.data.sources.kind import SplitSource
from afjax.errors import UserError
from afjax.tasks import multiple_choice
from afjax.tasks.choice_columns import pick_choices

ROW = {"context": "grass", "choices": ["red", "green"], "label": 1}


def pick(*rows: dict[str, Any], **settings: Any) -> Any:
    source = SplitSource("file", [(f"file:{number}", row) for number, row in enumerate(rows, start=1)])
    given = {name: settings.pop(name) for name in ("label_names", "labeled") if name in settings}
    return pick_choices(TaskConfig(name="choices", kind="multiple_choice", **settings), source, **given)


def test_rows_can_have_different_numbers_of_choices() -> None:
    rows = pick(ROW, {**ROW, "choices": ["a", "b", "c"], "label": 2})
    assert rows.contexts == ["grass", "grass"]
    assert rows.choices == [("red", "green"), ("a", "b", "c")]
    assert rows.labels.tolist() == [1, 2]
    assert rows.num_choices.tolist() == [2, 3]
    assert rows.pairs().text_b == ["red", "green", "a", "b", "c"]
    assert rows.take([1]).labels.tolist() == [2]
    assert rows.texts_digest() != pick({**ROW, "choices": ["red", "gree", "n"]}).texts_digest()


def test_question_is_appended_to_the_context() -> None:
    for name, settings in (("q", {"text_b": "q"}), ("question", {})):
        assert pick({**ROW, name: "Which?"}, **settings).contexts == ["grass Which?"]
    # A column named "question" that is the context is not also the question.
    row = {name: value for name, value in ROW.items() if name != "context"} | {"question": "Which?"}
    rows = pick(row, text_a="question")
    assert (rows.contexts, rows.text_columns) == (["Which?"], 1)


def test_choices_can_be_in_columns_and_labels_can_be_names() -> None:
    row = {"context": "grass", "x": "red", "y": "green", "label": "B"}
    rows = pick(row, choices=("x", "y"), label_names=("A", "B"))
    assert rows.choices == [("red", "green")]
    assert rows.labels.tolist() == [1]


def test_integer_labels_are_indices_and_string_labels_are_names_or_clear_indices() -> None:
    # CSV files have strings, and JSONL files can have integers.
    for label in ("1", 1):
        assert pick({**ROW, "label": label}).labels.tolist() == [1]
        assert pick({**ROW, "label": label}, label_names=("A", "B")).labels.tolist() == [1]
    # If the names are numbers, a string is a name.
    rows = pick({**ROW, "label": "1"}, {**ROW, "label": 1}, label_names=("1", "2"))
    assert rows.labels.tolist() == [0, 1]


def test_choices_without_a_name_are_counted_by_index() -> None:
    row = {**ROW, "choices": ["red", "green", "blue"]}
    rows = pick({**row, "label": "1"}, {**row, "label": "2"}, {**row, "label": "2"}, label_names=("1", "2"))
    assert rows.label_counts() == {"0": 1, "1": 2, "2": 0}


@pytest.mark.parametrize(
    ("changes", "settings", "facts"),
    [
        ({"choices": []}, {}, "file:2 .*no choices.*two"),
        ({"choices": ["red"]}, {}, "file:2 .* 1 choice;.*two"),
        ({"choices": ["red", ""]}, {}, r"file:2 .*empty choice .*number 2"),
        ({"choices": ["red", 3]}, {}, "file:2 .*choice 3"),
        ({"choices": "red"}, {}, "file:2 .*'red'.*choices.*list"),
        ({"choices": None}, {}, "file:2 .*None.*choices"),
        ({"label": 2}, {}, "file:2 .*label 2 .*2 choices.*0 to 1"),
        ({"label": -1}, {}, "file:2 .*label -1"),
        ({"label": True}, {}, "file:2 .*label True"),
        ({"label": "E"}, {"label_names": tuple("ABCDE")}, "file:2 .*label 'E' .*2 choices"),
        ({"label": "Z"}, {"label_names": ("A", "B")}, "file:2 .*label 'Z'.* A, B"),
        ({"label": "0"}, {"label_names": ("1", "2")}, "file:2 .*label '0' .* 1, 2"),
        ({"label": None}, {}, "file:2 .*label None"),
        ({"context": 3}, {}, 'file:2 .*3 .*"context"'),
        ({"id": "x"}, {}, "file:2 .*id 'x', .*file:1 "),
    ],
)
def test_malformed_rows_are_refused(changes: dict[str, Any], settings: dict[str, Any], facts: str) -> None:
    first = {**ROW, "id": "x"} if "id" in changes else ROW
    first = {**first, "label": settings["label_names"][0]} if "label_names" in settings else first
    with pytest.raises(UserError, match=facts):
        pick(first, {**ROW, **changes}, **settings)


@pytest.mark.parametrize("context", ["", " grass ", "grass"])
def test_inputs_for_prediction_have_the_same_contexts_as_training_rows(context: str) -> None:
    task = TaskConfig(name="choices", kind="multiple_choice")
    for changes, columns in (({"question": "Which? "}, 2), ({}, 1)):
        row = {**ROW, "context": context, **changes}
        (form,) = [form for form in multiple_choice.forms(task, columns) if "context" in form.texts][:1]
        assert multiple_choice.pick("file:1", row, form) == (pick(row).contexts[0], ("red", "green"))
    task = TaskConfig(name="choices", kind="multiple_choice", text_a="question")
    assert multiple_choice.forms(task, None)[0].texts == ("question",)


@pytest.mark.parametrize("label", [-1, None, "", "-1", "-1.0", math.nan])
def test_missing_labels_are_accepted_unless_labels_are_needed(label: Any) -> None:
    assert pick({**ROW, "label": label}, {**ROW, "label": label}).labels is None
    with pytest.raises(UserError, match=f"file:1 .*label {label!r}"):
        pick({**ROW, "label": label}, {**ROW, "label": label}, labeled=True)
    with pytest.raises(UserError, match=f"file:2 .*label {label!r}"):
        pick(ROW, {**ROW, "label": label})


def test_missing_columns_are_refused() -> None:
    with pytest.raises(UserError, match=r'file:1 .*no column "choices"'):
        pick({"context": "grass", "label": 0})
    with pytest.raises(UserError, match=r'file:1 .*no column "label".*context, choices'):
        pick({"context": "grass", "choices": ["a", "b"]}, labeled=True)
    assert pick({"context": "grass", "choices": ["a", "b"]}).labels is None
    with pytest.raises(UserError, match=r"file .*no rows"):
        pick()
