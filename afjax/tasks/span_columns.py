"""Selects and validates the columns of span rows. Errors name the file and line."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.data.columns import first_row, is_null, read_rows, text_of, value_of
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import SpanRows
from afjax.display.words import counted
from afjax.errors import UserError


def pick_spans(task: TaskConfig, source: SplitSource, *, labeled: bool | None = None) -> SpanRows:
    """Extracts questions, contexts and answers from rows.

    Answers are ``{"text": [...], "answer_start": [...]}``, where starts are character offsets in the context. If a
    start is unknown (``answer_start`` is missing, null or -1, or ``start_guessed`` is true), the row can be used for
    evaluation but not for training.

    Args:
      task: The task, which determines the columns and whether questions can be unanswerable.
      source: The split. It has at least one row.
      labeled: Whether answers are required. If False, answers are ignored. If None, they are used if any row has some
        or, if questions can be unanswerable, if there is an answers column.

    Raises:
      UserError: A column is missing, only some rows have answers, an answer is not at its ``answer_start``, or two rows
        have the same id.
    """
    peeked, no_answer = first_row(source.name, source.rows), task.span.no_answer
    names = (task.text_b or "question", task.text_a or "context")
    places, texts, labels, ids = read_rows(
        source.name,
        peeked,
        task.label_column,
        lambda place, row: [text_of(place, row, name) for name in names],
        labeled=labeled,
        read_label=lambda place, row, name: (value_of(place, row, name), row.get("start_guessed") is True),
    )
    questions, contexts = map(list, zip(*texts, strict=True))
    checked = None
    if labels and (labeled or _are_labels([value for value, _ in labels], no_answer=no_answer)):
        checked = [
            check_answers(place, value, context, no_answer=no_answer, guessed=guessed)
            for place, context, (value, guessed) in zip(places, contexts, labels, strict=True)
        ]
    return SpanRows(questions, contexts, checked, ids=ids or list(map(str, range(len(places)))))


def no_answer_error(place: str) -> UserError:
    """Creates the error for an unanswerable question in a task that does not allow them."""
    return UserError(
        f"{place} has no answer; drop the row, or, if questions can be unanswerable as in SQuAD v2, set the task's "
        "span.no_answer=True."
    )


def _are_labels(values: list[Any], *, no_answer: bool) -> bool:
    """Whether the values of a split's column of answers are labels, and not all missing.

    Empty answers are labels only if questions can be unanswerable.
    """
    given = [value for value in values if not is_null(value)]
    return any(no_answer or (value.get("text") if isinstance(value, Mapping) else value) for value in given)


def check_answers(
    place: str, answers: Any, context: str, *, no_answer: bool, guessed: bool = False
) -> tuple[tuple[str, int], ...]:
    """Checks a row's answers.

    Args:
      place: The row's name in error messages.
      answers: ``{"text": [...], "answer_start": [...]}``; the starts are optional.
      context: The row's context.
      no_answer: Whether the question can be unanswerable.
      guessed: Whether the starts are guesses, which are treated as unknown.

    Returns:
      Each answer's text and its start in the context, or -1 if unknown.

    Raises:
      UserError: The answers are malformed or missing, or an answer is not at its ``answer_start``.
    """
    texts = answers.get("text") if isinstance(answers, Mapping) else None
    starts = answers.get("answer_start") if isinstance(answers, Mapping) else None
    if not isinstance(texts, (list, tuple)) or not (starts is None or isinstance(starts, (list, tuple))):
        raise UserError(
            f'{place} has the answers {shorten(answers)}; they must be {{"text": [...], "answer_start": [...]}}.'
        )
    if starts is not None and len(starts) != len(texts):
        numbers = f"{counted(len(texts), 'answer')} and {counted(len(starts), 'answer_start value')}"
        raise UserError(f"{place} has {numbers}; each answer needs one answer_start.")
    if not texts and not no_answer:
        raise no_answer_error(place)
    pairs = []
    for text, start in zip(texts, starts or [None] * len(texts), strict=True):
        if not isinstance(text, str) or not text:
            raise UserError(f"{place} has the answer {shorten(text)}; it must be a non-empty string.")
        if text not in context:
            raise UserError(
                f"{place} has the answer {shorten(text)}, which is not in its context; correct or drop the row."
            )
        unknown = start is None or start == -1
        if not unknown and (isinstance(start, bool) or not isinstance(start, (int, np.integer)) or start < 0):
            raise UserError(
                f"{place} has the answer_start {shorten(start)}; it must be a non-negative integer, or null if unknown."
            )
        start_known = not (unknown or guessed)
        if start_known and context[start : start + len(text)] != text:
            raise UserError(
                f"{place} has the answer {shorten(text)} at character {start}, but its context has "
                f"{shorten(context[start : start + len(text)])} there; correct answer_start (a character offset)."
            )
        pairs.append((text, int(start) if start_known else -1))
    return tuple(pairs)
