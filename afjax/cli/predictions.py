"""Writes the output file of ``afjax predict``."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from afjax.data.notices import blank_rows, blank_rows_notice
from afjax.display.terminal import print_line
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.storage.writing import check_output, write_output
from afjax.tasks.prediction_rows import STANDARD, PredictionRows

# The fields of a prediction, whose names are reserved: --keep cannot use them. Only span tasks have "answers", and only
# tagging has "entities". Rows whose adapter is null only have "embedding". With --all, rows only have "predictions".
FIELDS = ("logits", "label", "probabilities", "answers", "entities", "embedding", "predictions")


def write_predictions(
    output: str, task_model: TaskModel, rows: PredictionRows, *, batch_size: int, max_length: int | None
) -> None:
    """Predicts rows and writes one line of JSON per row, in the order of the rows.

    Each line starts with the fields kept from the input, followed by ``logits``, ``label`` and ``probabilities``. For
    multiple choice, a row has one logit per choice. For span, the logits are the scores of the ``answers``, a list of
    ``{"text", "begin", "end", "score", "probability"}``, best first. For tagging, logits and probabilities have one
    list per word, the label is the list of tags, and ``entities`` is a list of ``{"type", "text", "begin", "end",
    "probability"}``. For multi-label tasks, the label is a list. The file is written atomically.

    Args:
      output: The output file, or ``-`` for standard output.
      task_model: The model.
      rows: The rows to predict.
      batch_size: Rows per step.
      max_length: Maximum number of tokens per row; None for the length used in training.

    Raises:
      UserError: The file cannot be written, ``batch_size`` or ``max_length`` is out of range, or the model's outputs
        are NaN or infinite.
    """
    if output != STANDARD:
        check_output(output)
    blank = sorted(int(numbers[row]) for numbers, form_rows in rows.forms for row in blank_rows(form_rows))
    if blank:
        print_line(f"Note: {blank_rows_notice('the input', blank, len(rows))}")
    lines: list[str] = [""] * len(rows)
    for numbers, form_rows in rows.forms:
        predictions = task_model.predict_rows(form_rows, batch_size=batch_size, max_length=max_length)
        for index, number in enumerate(numbers):
            lines[number] = prediction_line(rows.kept[number], predictions.as_json(index), number)
    write_lines(output, lines)


def prediction_line(kept: Mapping[str, Any], prediction: Mapping[str, Any], row: int) -> str:
    """Formats one output line, a JSON object.

    Args:
      kept: The fields kept from the input, which come first.
      prediction: The fields of the prediction.
      row: The row's index, for error messages.

    Raises:
      UserError: The prediction contains NaN or infinity.
    """
    try:
        text = json.dumps(prediction, ensure_ascii=False, allow_nan=False)
    except ValueError:  # For example, a sum of large logits overflowed.
        raise UserError(
            f"The scores of row {row + 1} are not finite; check the files of the trunk, adapter and head."
        ) from None
    return f"{_kept_fields(kept)[:-1]}, {text[1:]}" if kept else text


def write_lines(output: str, lines: Sequence[str]) -> None:
    """Writes lines to the output file, or to standard output for ``-``."""
    text = "".join(f"{line}\n" for line in lines)
    if output != STANDARD:
        write_output(output, text)
        print_line(f"Written to {output}: {counted(len(lines), 'prediction')}")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def _kept_fields(fields: Mapping[str, Any]) -> str:
    """Formats the fields kept from the input as a JSON object."""
    text = json.dumps(fields, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # A field contains a lone surrogate, which must be escaped.
        return json.dumps(fields)
    return text
