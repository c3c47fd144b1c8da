"""Span rows are read, and malformed rows are refused with a reason."""

from typing import Any

import pytest
from facts import has_facts

from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.data.sources.kind import SplitSource
from afjax.errors import UserError
from afjax.tasks.load import rows_from_lists
from afjax.tasks.span_columns import pick_spans
from afjax.train.arguments import check_data

ROW = {
    "id": "q1",
    "question": "Who?",
    "context": "It was Zoë, she said.",
    "answers": {"text": ["Zoë"], "answer_start": [7]},
}


def pick(*rows: dict[str, Any], no_answer: bool = False, labeled: bool | None = None) -> Any:
    task = TaskConfig(name="answers", kind="span", span=SpanConfig(no_answer=no_answer))
    source = SplitSource("file", [(f"file:{number}", row) for number, row in enumerate(rows, start=1)])
    return pick_spans(task, source, labeled=labeled)


def test_answers_are_read_with_their_positions() -> None:
    rows = pick(ROW, {**ROW, "id": "q2", "answers": {"text": ["she", "It"], "answer_start": [12, 0]}})
    assert rows.ids == ["q1", "q2"]
    assert rows.labels == [(("Zoë", 7),), (("she", 12), ("It", 0))]
    assert rows.take([1]).labels == [(("she", 12), ("It", 0))]


def test_answers_without_a_known_position_have_position_minus_one() -> None:
    unknown = [
        {"answers": {"text": ["she"]}},
        {"start_guessed": True},
        {"answers": {"text": ["It"], "answer_start": [-1]}},
    ]
    rows = pick(*({**ROW, "id": str(number), **changes} for number, changes in enumerate(unknown)))
    assert [start for ((_, start),) in rows.labels] == [-1, -1, -1]


def test_questions_without_answers_require_the_no_answer_setting() -> None:
    nothing = {**ROW, "answers": {"text": [], "answer_start": []}}
    assert pick(nothing, no_answer=True, labeled=True).labels == [()]
    with pytest.raises(UserError, match=r"file:1 .*no answer;.*span\.no_answer=True"):
        pick(nothing, labeled=True)


def test_questions_without_answers_from_python_require_the_no_answer_setting() -> None:
    answers = [{"text": ["It"], "answer_start": [0]}, {"text": [], "answer_start": []}]
    rows = rows_from_lists([("Who?", "It was."), ("What?", "It was.")], answers, kind="span")
    data = {"train": rows[:1], "dev": rows}
    with pytest.raises(UserError) as error:
        check_data(TaskConfig(name="answers", kind="span"), data)
    assert has_facts(str(error.value), "Row 2", "answers's dev rows", "span.no_answer=True")
    unanswerable = TaskConfig(name="answers", kind="span", span=SpanConfig(no_answer=True))
    assert list(check_data(unanswerable, data)) == ["train", "dev"]


def test_rows_without_answers_are_unlabeled() -> None:
    rows = pick({"question": "Who?", "context": "It"}, {"question": "What?", "context": "was"})
    assert rows.labels is None
    assert rows.ids == ["0", "1"]
    nothing = {**ROW, "answers": {"text": [], "answer_start": []}}
    assert pick(nothing).labels is None
    assert pick(nothing, no_answer=True).labels == [()]
    with pytest.raises(UserError, match=r'file:1 .*no column "answers".*question, context'):
        pick({"question": "Who?", "context": "It"}, labeled=True)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"answers": {"text": ["Zoe"], "answer_start": [7]}}, "file:2 .*answer 'Zoe', .*not in .*context"),
        ({"answers": {"text": ["Zoë"], "answer_start": [6]}}, "file:2 .*answer 'Zoë' .*character 6, .*' Zo'"),
        ({"answers": {"text": ["Zoë"], "answer_start": [99]}}, "file:2 .*answer 'Zoë' .*character 99"),
        ({"answers": {"text": ["Zoë"], "answer_start": [7, 8]}}, "file:2 .*1 answer .*2 answer_start values"),
        ({"answers": {"text": ["Zoë"], "answer_start": ["7"]}}, "file:2 .*answer_start '7'.*non-negative integer"),
        ({"answers": {"text": ["Zoë"], "answer_start": [-7]}}, "file:2 .*answer_start -7"),
        ({"answers": {"text": ["Zoë"], "answer_start": [7.0]}}, r"file:2 .*answer_start 7\.0"),
        ({"answers": {"text": [""], "answer_start": [7]}}, "file:2 .*answer ''"),
        ({"answers": ["Zoë"]}, r"file:2 .*answers \['Zoë'\]"),
        ({"context": None}, 'file:2 .*None .*"context"'),
        ({"id": "q1"}, "file:2 .*id 'q1', .*file:1 "),
    ],
)
def test_malformed_rows_are_refused(changes: dict[str, Any], facts: str) -> None:
    with pytest.raises(UserError, match=facts):
        pick(ROW, {**ROW, "id": "q2", **changes})
