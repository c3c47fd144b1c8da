"""Reads rows to predict on from a file or from standard input."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.data.columns import listing, missing_column
from afjax.data.sources.files import shorten
from afjax.data.sources.formats import read_rows, rows_of_stream
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.tasks.kind import Form
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import rows_from_lists

# The name of standard input and standard output on the command line.
STANDARD = "-"


@dataclass(frozen=True)
class PredictionRows:
    """Rows to predict on.

    Attributes:
      forms: For each form (single texts, pairs), the indices of its rows in the input, and the rows.
      kept: The fields to copy to the output, for each row in the input's order.
    """

    forms: list[tuple[list[int], AnyRows]]
    kept: list[dict[str, Any]]

    def __len__(self) -> int:
        return len(self.kept)


def read_prediction_rows(
    path: str | Path,
    task: TaskConfig,
    text_columns: int | None = None,
    *,
    keep: Mapping[str, str] | None = None,
    file_format: str | None = None,
) -> PredictionRows:
    """Reads rows to predict on from a file or from standard input. Labels are ignored.

    Rows have the columns that the task names in ``text_a``, ``text_b`` and ``choices``, or else the default columns:
    ``text``, or ``text_a`` and ``text_b``; for multiple choice ``context``, ``choices`` and optionally ``question``;
    for span tasks ``question`` and ``context``; for tagging ``words`` or ``text``.

    Args:
      path: The file; ``-`` for standard input.
      task: The task that the head was trained on.
      text_columns: The number of texts per row that the head was trained on; see ``Rows.text_columns``. If it is None
        (unknown), single texts and pairs are both accepted, even in the same file.
      keep: ``{column: field}``, the columns to copy to the output, each with its name in the output.
      file_format: One of ``FORMATS`` without the dot, such as "jsonl". If None, it is taken from the file's name, and
        standard input is JSONL.

    Raises:
      UserError: The file cannot be read, its rows have other columns, or a row lacks a column to keep.
    """
    inputs: dict[bool, list[Any]] = {}
    numbers: dict[bool, list[int]] = {}
    kept_values = []
    for number, (place, row) in enumerate(rows_of_input(path, file_format)):
        picked = pick_input(place, row, task, text_columns)
        # rows_from_lists takes either single texts or tuples, so they are collected separately.
        inputs.setdefault(isinstance(picked, tuple), []).append(picked)
        numbers.setdefault(isinstance(picked, tuple), []).append(number)
        kept_values.append(kept_fields(place, row, keep or {}))
    return PredictionRows(
        [(numbers[form], rows_from_lists(inputs[form], kind=task.kind)) for form in sorted(inputs)], kept_values
    )


def rows_of_input(path: str | Path, file_format: str | None = None) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yields the rows of a file or of standard input, each with its name in messages.

    Args:
      path: The file; ``-`` for standard input.
      file_format: The format, as in :func:`read_prediction_rows`.
    """
    if str(path) == STANDARD:
        return rows_of_stream(sys.stdin.buffer, "standard input", f".{file_format or 'jsonl'}")
    return read_rows(Path(path), f".{file_format}" if file_format else "")


def pick_input(place: str, row: dict[str, Any], task: TaskConfig, text_columns: int | None) -> Any:
    """Picks the input of one row from its columns.

    Args:
      place: The row's name in error messages, such as its file and line.
      row: The row's values by column.
      task: The task that the head was trained on.
      text_columns: The number of texts per row that the head was trained on, or None if it is not known.

    Returns:
      The input, as :meth:`afjax.TaskModel.predict` takes it.

    Raises:
      UserError: The row has other columns, or a value has the wrong type.
    """
    kind = TASK_KINDS[task.kind]
    forms = list(dict.fromkeys(kind.forms(task, text_columns)))
    return kind.pick(place, row, _pick_form(place, row, forms, task, text_columns))


def parse_keep(text: str, outputs: Sequence[str]) -> dict[str, str]:
    """Parses the value of ``--keep``, ``COLUMN,COLUMN:FIELD``, to ``{column: field}``.

    A column without a field keeps its name.

    Args:
      text: The flag's value; empty to keep no columns.
      outputs: The fields of a prediction, which cannot be replaced.

    Raises:
      UserError: A name is empty, a column or field occurs twice, or a field is one of ``outputs``.
    """
    keep: dict[str, str] = {}
    for item in text.split(",") if text else ():
        column, colon, field = item.partition(":")
        field = field if colon else column
        if not column or not field:
            raise UserError(f"--keep={text} has an empty name; give columns, as in --keep=text,id.")
        if field in outputs:
            raise UserError(
                f'--keep={text} would replace the prediction\'s own field "{field}"; give the column another name in '
                f"the output, as in --keep={column}:given_{field}."
            )
        if column in keep or field in keep.values():
            raise UserError(f'--keep={text} has "{column if column in keep else field}" twice; give each name once.')
        keep[column] = field
    return keep


def _pick_form(
    place: str, row: dict[str, Any], forms: Sequence[Form], task: TaskConfig, text_columns: int | None
) -> Form:
    """Chooses the form of a row by its columns."""
    form = next((form for form in forms if set(form.columns) <= row.keys()), None)
    question = task.text_b or "question"
    # A head that was trained on contexts without a question would ignore the question.
    unasked = form is not None and TASK_KINDS[task.kind].has_choices and text_columns == 1 and question in row
    if form is None or unasked:
        expected = " or ".join(json.dumps(list(form.columns), ensure_ascii=False) for form in forms)
        no_question = f' and without a "{question}"' if unasked else ""
        trained = ", the form of the rows that it was trained on" if text_columns else ""
        columns = listing(row) if row else "(none)"
        raise UserError(
            f"{place} has the columns {columns}; this head predicts on rows with {expected}{no_question}{trained}."
        )
    return form


def kept_fields(place: str, row: dict[str, Any], keep: Mapping[str, str]) -> dict[str, Any]:
    for column in keep:
        if column not in row:
            raise missing_column(place, column, row, flag="--keep")
        try:
            json.dumps(row[column], allow_nan=False)
        except (TypeError, ValueError):  # The value is, for example, a date, bytes or NaN.
            raise UserError(
                f'{place} has {shorten(row[column])} in the column "{column}", which JSON cannot express; leave the '
                "column out of --keep."
            ) from None
    return {field: row[column] for column, field in keep.items()}
