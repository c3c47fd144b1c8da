"""Selects and validates the columns of multiple-choice rows. Errors name the row."""

from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.data.columns import check_text, first_row, is_missing, read_rows, text_of, value_of
from afjax.data.labels import indices_are_clear
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import ChoiceRows
from afjax.errors import UserError, did_you_mean


def pick_choices(
    task: TaskConfig, source: SplitSource, *, label_names: tuple[str, ...] = (), labeled: bool | None = None
) -> ChoiceRows:
    """Extracts contexts, choices and labels from rows.

    Args:
      task: The task, whose settings select the columns:

        - ``text_a``: the context; default ``context``;
        - ``text_b``: a question to append to the context; default ``question``, if that column exists and is not the
          context;
        - ``choices``: one column with a list of choices, or one column per choice; default ``choices``;
        - ``label``: the correct choice, as its index or its name in ``label_names``; default ``label``.
      source: The split, with at least one row.
      label_names: Names of the first, second, ... choice.
      labeled: Whether labels are required. If False, labels are ignored. If None, they are used if any row has one.

    Raises:
      UserError: A column is missing, only some rows have a question or a label, a row has fewer than two choices or an
        empty one, a label does not match any choice, or two rows have the same id.
    """
    peeked = first_row(source.name, source.rows)
    names, label, context = task.choices or ("choices",), task.label or "label", task.text_a or "context"
    question = task.text_b or ("question" if "question" in {*peeked[1]} - {context} else "")

    def read(place: str, row: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
        if not question and "question" in {*row} - {context}:
            raise UserError(
                f"{place} has a question, but the first row of {source.name} has none; either all rows or none must "
                "have one."
            )
        return context_of(place, row, (context, question) if question else (context,)), choices_of(place, row, names)

    places, inputs, labels, ids = read_rows(source.name, peeked, label, read, labeled=labeled)
    contexts, lists = map(list, zip(*inputs, strict=True))
    indices = None
    if labels and (labeled or not all(map(is_missing, labels))):
        labeled_rows = zip(places, labels, lists, strict=True)
        numbers = [choice_index(place, label, len(choices), label_names) for place, label, choices in labeled_rows]
        indices = np.array(numbers, np.int32)
    return ChoiceRows(contexts, lists, indices, label_names, ids=ids, has_question=bool(question))


def context_of(place: str, row: dict[str, Any], names: tuple[str, ...]) -> str:
    """Extracts a row's context. If ``names`` also has the question's column, the question is appended."""
    texts = [text_of(place, row, name) for name in names]
    return " ".join(texts).strip() if len(texts) == 2 else texts[0]


def choices_of(place: str, row: dict[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    """Extracts a row's choices from one column with a list or one column per choice."""
    values = value_of(place, row, names[0]) if len(names) == 1 else [value_of(place, row, name) for name in names]
    return check_choices(place, values)


def check_choices(place: str, values: Any) -> tuple[str, ...]:
    """Checks a row's choices and converts them to a tuple.

    Raises:
      UserError: The choices are not a list of two or more non-blank strings.
    """
    if not isinstance(values, (list, tuple)):
        raise UserError(f"{place} has {shorten(values)} as its choices; they must be a list of strings.")
    if len(values) < 2:
        raise UserError(f"{place} has {'1 choice' if values else 'no choices'}; it must have at least two.")
    for number, choice in enumerate(values, start=1):
        if not isinstance(choice, str) or not choice.strip():
            problem = "an empty choice" if isinstance(choice, str) else f"the choice {shorten(choice)}"
            raise UserError(
                f"{place} has {problem} (number {number}); every choice must be a string that is not blank."
            )
        check_text(place, choice)
    return tuple(values)


def choice_index(place: str, label: Any, num_choices: int, names: tuple[str, ...]) -> int:
    """Converts a label to the index of a choice.

    Integers are indices. Strings are names or, unless a name could be mistaken for an index
    (:func:`indices_are_clear`), indices in digits.

    Raises:
      UserError: The label does not match any choice.
    """
    if isinstance(label, (int, np.integer)) and not isinstance(label, bool):
        index = int(label)
    elif isinstance(label, str) and label in names:
        index = names.index(label)
    elif isinstance(label, str) and indices_are_clear(names) and label.isdecimal() and len(label) < 10:
        index = int(label)
    else:
        index = -1
    if not 0 <= index < num_choices:
        allowed = f"a number from 0 to {num_choices - 1}" + (f" or one of {', '.join(names)}" if names else "")
        hint = did_you_mean(label, names) if isinstance(label, str) else ""
        raise UserError(
            f"{place} has the label {shorten(label)} but {num_choices} choices; the label must be {allowed}.{hint}"
        )
    return index
