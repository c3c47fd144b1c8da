"""Logits of a whole split."""

from collections.abc import Callable
from typing import Any

import numpy as np

from afjax.data.batches import eval_batches
from afjax.data.tokenise import TokenisedRows
from afjax.trees import Tree


def split_logits(
    eval_step: Callable[[Tree, Any], Any],
    params: Tree,
    data: TokenisedRows,
    *,
    batch_size: int,
    lengths: tuple[int, ...],
    pad_id: int,
) -> np.ndarray:
    """Runs the model over every row once.

    Returns:
      ``[rows, num_outputs]`` in the rows' own order, float32.
    """
    logits: np.ndarray | None = None
    for batch in eval_batches(data, batch_size=batch_size, lengths=lengths, pad_id=pad_id):
        rows = batch["rows"]
        output = np.asarray(eval_step(params, model_inputs(batch)))
        if logits is None:
            logits = np.zeros((len(data.offsets) - 1, output.shape[-1]), output.dtype)
        logits[rows[rows >= 0]] = output[rows >= 0]
    assert logits is not None, "an empty split reached the model"
    return logits


def model_inputs(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The part of a batch that the model reads."""
    return {name: batch[name] for name in ("tokens", "types", "mask")}
