"""Questions, contexts and answers: columns, and a clear message for every malformed row."""

from typing import Any

import pytest

from afjax.errors import UserError
from afjax.tasks.spans import pick_spans

ROW = {
    "id": "q1",
    "question": "Who?",
    "context": "It was Zoë, she said.",
    "answers": {"text": ["Zoë"], "answer_start": [7]},
}


def pick(*rows: dict[str, Any], **settings: Any) -> Any:
    return pick_spans("file", [(f"file:{number}", row) for number, row in enumerate(rows, start=1)], **settings)


def test_answers_and_their_positions() -> None:
    rows = pick(ROW, {**ROW, "id": "q2", "answers": {"text": ["she", "It"], "answer_start": [12, 0]}})
    assert rows.ids == ["q1", "q2"]
    assert rows.labels == [(("Zoë", 7),), (("she", 12), ("It", 0))]
    assert rows.take([1]).labels == [(("she", 12), ("It", 0))]


def test_answers_without_a_position() -> None:
    unknown = [
        {"answers": {"text": ["she"]}},
        {"start_guessed": True},
        {"answers": {"text": ["It"], "answer_start": [-1]}},
    ]
    rows = pick(*({**ROW, "id": str(number), **changes} for number, changes in enumerate(unknown)))
    assert [start for ((_, start),) in rows.labels] == [-1, -1, -1]


def test_questions_without_answers() -> None:
    nothing = {**ROW, "answers": {"text": [], "answer_start": []}}
    assert pick(nothing, no_answer=True, labelled=True).labels == [()]
    with pytest.raises(UserError, match=r"file:1 has no answer; drop the row, or set the task's span\.no_answer=True"):
        pick(nothing, labelled=True)


def test_unlabelled_rows() -> None:
    rows = pick({"question": "Who?", "context": "It"}, {"question": "What?", "context": "was"})
    assert rows.labels is None
    assert rows.ids == ["0", "1"]
    nothing = {**ROW, "answers": {"text": [], "answer_start": []}}
    assert pick(nothing).labels is None
    assert pick(nothing, no_answer=True).labels == [()]
    with pytest.raises(UserError, match=r'file:1 has no column "answers".*question, context'):
        pick({"question": "Who?", "context": "It"}, labelled=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"answers": {"text": ["Zoe"], "answer_start": [7]}},
            "file:2 has the answer 'Zoe', which is not in its context",
        ),
        ({"answers": {"text": ["Zoë"], "answer_start": [6]}}, "file:2 has the answer 'Zoë' at character 6 .*' Zo'"),
        ({"answers": {"text": ["Zoë"], "answer_start": [99]}}, "file:2 has the answer 'Zoë' at character 99"),
        ({"answers": {"text": ["Zoë"], "answer_start": [7, 8]}}, "file:2 has 1 answers and 2 answer_start"),
        ({"answers": {"text": ["Zoë"], "answer_start": ["7"]}}, "file:2 has the answer_start '7'; it must be a whole"),
        ({"answers": {"text": ["Zoë"], "answer_start": [-7]}}, "file:2 has the answer_start -7"),
        ({"answers": {"text": ["Zoë"], "answer_start": [7.0]}}, "file:2 has the answer_start 7.0"),
        ({"answers": {"text": [""], "answer_start": [7]}}, "file:2 has the answer ''"),
        ({"answers": ["Zoë"]}, "file:2 has the answers"),
        ({"context": None}, 'file:2 has None in the column "context"'),
        ({"id": "q1"}, "file:2 has the id 'q1', which file:1 already has"),
    ],
)
def test_malformed_rows_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        pick(ROW, {**ROW, "id": "q2", **changes})
