"""Reads prediction inputs from a file or standard input."""

import csv
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
from afjax.storage.paths import expanded
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import rows_from_lists

# Denotes standard input or output on the command line.
STANDARD = "-"


@dataclass(frozen=True)
class PredictionRows:
    """Inputs for prediction.

    Attributes:
      forms: The rows of each form (single texts, pairs), with their indices in the input.
      kept: The fields to copy to the output for each row, in input order.
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
    """Reads prediction inputs from a file or standard input, ignoring labels.

    The columns are those set in the task's ``text_a``, ``text_b`` and ``choices``, or else the defaults: ``text``, or
    ``text_a`` and ``text_b``; for multiple choice ``context``, ``choices`` and optionally ``question``; for span tasks
    ``question`` and ``context``; for tagging ``words`` or ``text``.

    Args:
      path: The file, or ``-`` for standard input.
      task: The task that the head was trained on.
      text_columns: Number of texts per row in training; see ``Rows.text_columns``. If None (unknown), single texts and
        pairs are both accepted, even in the same file.
      keep: Columns to copy to the output, as ``{column: name in the output}``.
      file_format: One of ``FORMATS`` without the dot, such as "jsonl". If None, it is inferred from the file name, or
        JSONL for standard input.

    Raises:
      UserError: The file cannot be read, its rows have the wrong columns, or a row lacks a column in ``keep``.
    """
    inputs: dict[bool, list[Any]] = {}
    numbers: dict[bool, list[int]] = {}
    kept_values = []
    for number, (place, row) in enumerate(rows_of_input(path, file_format)):
        picked = pick_input(place, row, task, text_columns)
        # Collect single texts and tuples separately, because rows_from_lists does not accept both together.
        inputs.setdefault(isinstance(picked, tuple), []).append(picked)
        numbers.setdefault(isinstance(picked, tuple), []).append(number)
        kept_values.append(kept_fields(place, row, keep or {}))
    return PredictionRows(
        [(numbers[form], rows_from_lists(inputs[form], kind=task.kind)) for form in sorted(inputs)], kept_values
    )


def rows_of_input(path: str | Path, file_format: str | None = None) -> Iterable[tuple[str, dict[str, Any]]]:
    """Yields the rows of an input, each with its name in error messages.

    Args:
      path: The file, or ``-`` for standard input.
      file_format: See :func:`read_prediction_rows`.
    """
    if str(path) == STANDARD:
        return rows_of_stream(sys.stdin.buffer, "standard input", f".{file_format or 'jsonl'}")
    return read_rows(expanded(path), f".{file_format}" if file_format else "")


def pick_input(place: str, row: dict[str, Any], task: TaskConfig, text_columns: int | None) -> Any:
    """Extracts a row's input for :meth:`afjax.TaskModel.predict` from its columns.

    Args:
      place: The row's name in error messages, such as its file and line.
      row: The row's values by column.
      task: The task that the head was trained on.
      text_columns: Number of texts per row in training, or None if unknown.

    Raises:
      UserError: The row has the wrong columns, or a value has the wrong type.
    """
    kind = TASK_KINDS[task.kind]
    forms = list(dict.fromkeys(kind.forms(task, text_columns)))
    form = next((form for form in forms if set(form.columns) <= row.keys()), None)
    question = task.text_b or "question"
    # The question would be ignored by a head that was trained without one.
    ignores_question = form is not None and kind.has_choices and text_columns == 1 and question in row
    if form is None or ignores_question:
        expected = " or ".join(json.dumps(list(form.columns), ensure_ascii=False) for form in forms)
        no_question = f' and no "{question}"' if ignores_question else ""
        trained = ", as in training" if text_columns else ""
        columns = listing(row) if row else "(none)"
        raise UserError(f"{place} has the columns {columns}; it must have {expected}{no_question}{trained}.")
    return kind.pick(place, row, form)


def parse_keep(text: str, outputs: Sequence[str]) -> dict[str, str]:
    """Parses ``--keep=COLUMN,COLUMN:FIELD`` into ``{column: field}``.

    A column without a field keeps its name. As in CSV, a name with a comma is quoted.

    Args:
      text: The flag's value; empty to keep no columns.
      outputs: The fields of a prediction, which must not be overwritten.

    Raises:
      UserError: A name is empty, a column or field is repeated, or a field is in ``outputs``.
    """
    keep: dict[str, str] = {}
    try:
        items = next(csv.reader([text])) if text else []
    except csv.Error as error:
        raise UserError(f"--keep={shorten(text)} cannot be read ({error}); list column names.") from None
    for item in items:
        column, colon, field = item.rpartition(":")
        column = column if colon else field
        if not column or not field:
            raise UserError(f"--keep={text} has an empty name; list column names, for example --keep=text,id.")
        if field in outputs:
            raise UserError(
                f'--keep={text} would overwrite the prediction\'s field "{field}"; rename the column in the output, '
                f"for example --keep={column}:given_{field}."
            )
        if column in keep or field in keep.values():
            raise UserError(f'--keep={text} has "{column if column in keep else field}" twice; names must be unique.')
        keep[column] = field
    return keep


def kept_fields(place: str, row: dict[str, Any], keep: Mapping[str, str]) -> dict[str, Any]:
    for column in keep:
        if column not in row:
            raise missing_column(place, column, row, flag="--keep")
        try:
            json.dumps(row[column], allow_nan=False)
        except (TypeError, ValueError):  # For example, a date, bytes or NaN.
            raise UserError(
                f'{place} has {shorten(row[column])} in the column "{column}", which JSON cannot represent; remove the '
                "column from --keep."
            ) from None
    return {field: row[column] for column, field in keep.items()}
