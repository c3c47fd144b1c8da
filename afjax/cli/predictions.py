"""The file that ``afjax predict`` writes."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afjax.data.splits import AnyRows, ChoiceRows
from afjax.errors import UserError
from afjax.storage.writing import check_output, write_output
from afjax.task_model import Predictions, TaskModel


def write_predictions(
    path: Path,
    task_model: TaskModel,
    rows: Sequence[tuple[list[int], AnyRows]],
    *,
    batch_size: int,
    max_length: int,
) -> None:
    """Predicts rows and writes ``{"logits", "label", "probabilities"}`` a line, in their order.

    Of multiple choice a row has as many logits as choices. Of span the logits are the scores of its ``answers``, a list
    of ``{"text", "begin", "end", "score", "probability"}``, best first. The file appears whole or not at all.

    Args:
      rows: Of ``read_prediction_rows``: rows of one form each, with their numbers.

    Raises:
      UserError: The file cannot be written, or a model whose outputs are NaN or infinite.
    """
    check_output(path)
    lines: list[str] = [""] * sum(len(numbers) for numbers, _ in rows)
    for numbers, of_form in rows:
        predictions = task_model.predict_rows(of_form, batch_size=batch_size, max_length=max_length)
        for place, number in enumerate(numbers):
            line = _line(predictions, of_form, place)
            try:
                lines[number] = json.dumps(line, ensure_ascii=False, allow_nan=False)
            except ValueError:  # The sum of two large logits overflowed.
                raise UserError(
                    f"The scores of row {number + 1} are not finite; check the files of the trunk, the adapter and the "
                    "head."
                ) from None
    write_output(path, "".join(f"{line}\n" for line in lines))


def _line(predictions: Predictions, rows: AnyRows, row: int) -> dict[str, Any]:
    answers = None if predictions.answers is None else predictions.answers[row]
    count = len(answers) if answers is not None else len(rows.choices[row]) if isinstance(rows, ChoiceRows) else None
    line = {
        "logits": predictions.logits[row, :count].tolist(),
        "label": predictions.labels[row],
        "probabilities": predictions.probabilities[row, :count].tolist(),
    }
    return line if answers is None else {**line, "answers": [dataclasses.asdict(answer) for answer in answers]}
