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

# The fields of a prediction, whose names --keep cannot use. Only span tasks have "answers", and only tagging has
# "entities". Rows whose adapter is null only have "embedding". With --all, rows only have "predictions".
FIELDS = ("logits", "label", "probabilities", "answers", "entities", "embedding", "predictions")


def write_predictions(
    output: str,
    task_model: TaskModel,
    rows: PredictionRows,
    *,
    batch_size: int,
    max_length: int | None,
) -> None:
    """Predicts rows and writes one line of JSON per row, in the order of the rows.

    A line has ``logits``, ``label`` and ``probabilities``. In multiple-choice tasks a row has one logit per choice. In
    span tasks the logits are the scores of its ``answers``, a list of ``{"text", "begin", "end", "score",
    "probability"}``, best first. In tagging, logits and probabilities have one list per word, the label is the list of
    tags, and ``entities`` is a list of ``{"type", "text", "begin", "end", "probability"}``. In multi-label tasks the
    label is a list. Fields kept from the input come before the prediction. The file is written completely
    or not at all.

    Args:
      output: The file; ``-`` for the standard output.
      task_model: The model.
      rows: The rows to predict.
      batch_size: Rows per step.
      max_length: Tokens per row; None for the length used in training.

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
        for place, number in enumerate(numbers):
            lines[number] = prediction_line(rows.kept[number], predictions.as_json(place), number)
    write_lines(output, lines)


def prediction_line(kept: Mapping[str, Any], prediction: Mapping[str, Any], row: int) -> str:
    """Formats a line of the output, a JSON object.

    Args:
      kept: The fields kept from the input, which come first.
      prediction: The fields of the prediction.
      row: The row's index, for the error message.

    Raises:
      UserError: The prediction contains NaN or infinity.
    """
    try:
        text = json.dumps(prediction, ensure_ascii=False, allow_nan=False)
    except ValueError:  # For example, the sum of two large logits has overflowed.
        raise UserError(
            f"The scores of row {row + 1} are not finite; check the files of the trunk, the adapter and the head."
        ) from None
    return f"{_kept_fields(kept)[:-1]}, {text[1:]}" if kept else text


def write_lines(output: str, lines: Sequence[str]) -> None:
    """Writes the lines of the output to a file, or to standard output for ``-``."""
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
    except UnicodeEncodeError:  # A text has a lone surrogate, which can only be written as an escape.
        return json.dumps(fields)
    return text
