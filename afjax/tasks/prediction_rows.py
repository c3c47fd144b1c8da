"""Reads rows to predict on from a file or from standard input."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from afjax.config.tasks import TaskConfig
from afjax.data.columns import TEXT_COLUMNS, listing, missing_column, text_of
from afjax.data.sources.files import read_rows, rows_of_stream, shorten
from afjax.data.sources.kinds import source_kind
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.tasks.choices import choices_of
from afjax.tasks.load import rows_from_lists

Format = Literal["jsonl", "tsv", "csv"]

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


@dataclass(frozen=True)
class Form:
    """A set of columns that the model can predict on.

    Attributes:
      texts: The text columns, in the model's order.
      choices: For multiple choice, one column with a list or one column per choice.
    """

    texts: tuple[str, ...]
    choices: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.texts, *self.choices)


def read_prediction_rows(
    path: str | Path,
    task: TaskConfig,
    text_columns: int | None = None,
    *,
    keep: Mapping[str, str] | None = None,
    file_format: Format | None = None,
) -> PredictionRows:
    """Reads rows to predict on from JSONL, TSV or CSV, which may be gzipped. Labels are ignored.

    Rows have the columns that the task names in ``text_a``, ``text_b`` and ``choices``, or else the default columns:
    ``text``, or ``text_a`` and ``text_b``; for multiple choice ``context``, ``choices`` and optionally ``question``;
    for span tasks ``question`` and ``context``.

    Args:
      path: The file; ``-`` for standard input.
      task: The task that the head was trained on.
      text_columns: The number of texts per row that the head was trained on; see ``Rows.text_columns``. If None, it is
        not known, and single texts and pairs are both accepted, even in the same file.
      keep: ``{column: field}``, columns to copy to the output and their names there.
      file_format: The input's format. If None, it is taken from the file's name; standard input is JSONL.

    Raises:
      UserError: The file cannot be read, its rows have other columns, or a row lacks a column to keep.
    """
    if str(path) == STANDARD:
        rows = rows_of_stream(sys.stdin.buffer, "standard input", f".{file_format or 'jsonl'}")
    else:
        rows = read_rows(Path(path), f".{file_format}" if file_format else "")
    forms = forms_of(task, text_columns)
    texts: dict[int, list[Any]] = {}
    numbers: dict[int, list[int]] = {}
    kept_values = []
    for number, (place, row) in enumerate(rows):
        parts = _parts(place, row, forms, task, text_columns)
        texts.setdefault(len(parts), []).append(parts[0] if len(parts) == 1 else tuple(parts))
        numbers.setdefault(len(parts), []).append(number)
        kept_values.append(_kept_fields(place, row, keep or {}))
    return PredictionRows(
        [(numbers[length], rows_from_lists(texts[length], kind=task.kind)) for length in sorted(texts)], kept_values
    )


def parse_keep(text: str, outputs: Sequence[str]) -> dict[str, str]:
    """Parses ``COLUMN,COLUMN:FIELD`` to ``{column: field}``. A column without a field keeps its name.

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


def forms_of(task: TaskConfig, text_columns: int | None) -> list[Form]:
    """The columns that rows to predict on can have, in order of preference: the task's, then the defaults."""
    if task.kind == "span":
        forms = [Form((task.text_b or "question", task.text_a or "context")), Form(("question", "context"))]
    elif task.kind == "multiple_choice":
        task_form = Form((task.text_a or "context", task.text_b or "question"), task.choices or ("choices",))
        default_form = Form(("context", "question"), ("choices",))
        # If the number of texts is not known, rows are accepted with or without a question.
        allowed = {1: (1,), 2: (2,)}.get(text_columns or 0, (2, 1))
        forms = [Form(form.texts[:length], form.choices) for form in (task_form, default_form) for length in allowed]
    else:
        default_names = [*source_kind(task.source).text_columns, *TEXT_COLUMNS]
        named = (task.text_a, task.text_b) if task.text_b else (task.text_a,)
        forms = [Form(names) for names in ([named] if task.text_a else []) + default_names]
        forms = [form for form in forms if text_columns in (None, len(form.texts))]
    return list(dict.fromkeys(forms))


def _parts(
    place: str, row: dict[str, Any], forms: Sequence[Form], task: TaskConfig, text_columns: int | None
) -> list[Any]:
    """Picks the model's inputs from a row: one or two texts; for multiple choice, a context and its choices."""
    form = next((form for form in forms if set(form.columns) <= row.keys()), None)
    question = task.text_b or "question"
    unasked = form is not None and task.kind == "multiple_choice" and text_columns == 1 and question in row
    if form is None or unasked:
        expected = " or ".join(json.dumps(list(form.columns), ensure_ascii=False) for form in forms)
        no_question = f' and without a "{question}"' if unasked else ""
        trained = ", the form of the rows that it was trained on" if text_columns else ""
        columns = listing(row) if row else "(none)"
        raise UserError(
            f"{place} has the columns {columns}; this head predicts on rows with {expected}{no_question}{trained}."
        )
    texts = [text_of(place, row, name) for name in form.texts]
    if task.kind != "multiple_choice":
        return texts
    return [" ".join(texts), choices_of(place, row, form.choices)]


def _kept_fields(place: str, row: dict[str, Any], keep: Mapping[str, str]) -> dict[str, Any]:
    for column in keep:
        if column not in row:
            raise missing_column(place, column, row, flag="--keep")
        try:
            json.dumps(row[column], allow_nan=False)
        except ValueError:
            raise UserError(
                f'{place} has {shorten(row[column])} in the column "{column}", which JSON cannot express; leave the '
                "column out of --keep."
            ) from None
    return {field: row[column] for column, field in keep.items()}
