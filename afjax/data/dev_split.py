"""Splits train rows into train and dev by a hash of their texts.

This is for tasks without a dev split.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows, row_texts
from afjax.display.terminal import print_line
from afjax.display.words import counted
from afjax.distributed.hosts import is_first_host
from afjax.distributed.notes import note
from afjax.errors import UserError

# With fewer dev rows, a single row changes the accuracy by more than 5 percentage points.
FEW_ROWS = 20


def divide(task: TaskConfig, rows: AnyRows, name: str) -> tuple[AnyRows, AnyRows]:
    """Splits rows into train and dev, and logs their sizes.

    Args:
      task: The task. Its ``dev_share`` is the expected fraction of dev rows.
      rows: All rows.
      name: The rows' name in messages.

    Returns:
      The train and dev rows, each in their original order.

    Raises:
      UserError: Train or dev would be empty.
    """
    train, dev = (split_part(task, rows, name, split) for split in ("train", "dev"))
    if is_first_host():
        print_line(
            f"{task.name}: no dev split, so the {counted(len(rows), 'row')} of {name} are split into "
            f"{counted(len(train), 'train row')} and {counted(len(dev), 'dev row')} (by a hash of each row's texts, "
            f"task.dev_share={task.dev_share:g})"
        )
    if len(dev) < FEW_ROWS:
        note(
            f"{task.name} has only {counted(len(dev), 'dev row')}, so its dev scores are imprecise. Add a dev split, "
            "or increase task.dev_share."
        )
    return train, dev


def split_part(task: TaskConfig, rows: AnyRows, name: str, split: str) -> AnyRows:
    """Selects the train or dev rows of :func:`divide` without logging.

    Raises:
      UserError: The split would be empty.
    """
    hashes = row_hashes(rows)
    is_dev = hashes < task.dev_share
    chosen = np.flatnonzero(is_dev == (split == "dev"))
    if len(chosen):
        return rows.take(chosen)
    num_dev = int(is_dev.sum())
    advice = f"{_advice(hashes, split)}, or add a dev split" if len(set(hashes)) > 1 else "add a dev split"
    raise UserError(
        f"The task {task.name} has no {split} rows: task.dev_share={task.dev_share:g} puts {num_dev} of "
        f"the {counted(len(rows), 'row')} of {name} into dev and {len(rows) - num_dev} into train; {advice}."
    )


def _advice(hashes: np.ndarray, empty_split: str) -> str:
    """Advises how to change ``dev_share`` so that neither split is empty. The share is rounded to hundredths."""
    lowest, highest = math.floor(100 * hashes.min() + 1) / 100, math.floor(100 * hashes.max()) / 100
    if not hashes.min() < lowest <= highest:
        return "change task.dev_share"
    if empty_split == "dev":
        return f"change task.dev_share to at least {lowest:.2f}"
    return f"change task.dev_share to at most {highest:.2f}"


def row_hashes(rows: AnyRows) -> np.ndarray:
    """Hashes each row's texts to a number in [0, 1); float64 [rows]."""
    return np.fromiter(map(_hash, row_texts(rows)), np.float64, len(rows))


def _hash(texts: Iterable[Any]) -> float:
    digest = hashlib.blake2b(digest_size=8)
    for text in texts:
        for piece in (text,) if isinstance(text, str) else text:
            encoded = piece.encode()
            # Hash the length too, so that ("ab", "c") and ("a", "bc") have different digests.
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    # A float64 represents 53 bits exactly.
    return (int.from_bytes(digest.digest(), "little") >> 11) / 2**53
