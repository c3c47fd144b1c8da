"""The file that ``afjax predict`` writes."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afjax.errors import UserError
from afjax.task_model import TaskModel


def write_predictions(
    path: Path,
    task_model: TaskModel,
    rows: Sequence[tuple[str, str | None]],
    *,
    batch_size: int,
    max_length: int,
) -> None:
    """Predicts rows and writes ``{"logits", "label", "probabilities"}`` a line, in their order.

    Rows of one text and of two may be mixed. The file appears whole or not at all.

    Raises:
      UserError: The file cannot be written.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder; give --output the name of a file.")
    part = path.with_name(path.name + ".part")
    try:
        part.touch()
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); give another --output.") from None
    try:
        lines: list[str] = [""] * len(rows)
        for paired in (False, True):
            chosen = [index for index, (_, second) in enumerate(rows) if (second is not None) == paired]
            if not chosen:
                continue
            texts: Any = [rows[index] if paired else rows[index][0] for index in chosen]
            predictions = task_model.predict(texts, batch_size=batch_size, max_length=max_length)
            for place, index in enumerate(chosen):
                lines[index] = json.dumps(
                    {
                        "logits": predictions.logits[place].tolist(),
                        "label": predictions.labels[place],
                        "probabilities": predictions.probabilities[place].tolist(),
                    },
                    ensure_ascii=False,
                )
        part.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); make room or give another --output.") from None
    finally:
        part.unlink(missing_ok=True)
