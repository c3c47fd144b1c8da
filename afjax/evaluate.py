"""A compiled step over every row of a split."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from afjax.data.batches import eval_batches
from afjax.data.tokenise import TokenisedRows
from afjax.trees import Tree


def over_rows(
    step: Callable[[Tree, Any], Any],
    params: Tree,
    data: TokenisedRows,
    *,
    batch_size: int,
    lengths: Sequence[int],
    pad_id: int,
) -> Any:
    """Runs ``step(params, {"tokens", "types", "mask"})`` over every row once.

    Args:
      step: Gives an array, or a tree of them, whose leading axis is the batch's.
      params: On the device.
      data: At least one row.
      batch_size: Rows a step.
      lengths: Padded lengths, rising.
      pad_id: The padding token.

    Returns:
      The same tree with a leading axis of all rows, in their own order; NumPy arrays.
    """
    order, outputs = [], []
    for batch in eval_batches(data, batch_size=batch_size, lengths=lengths, pad_id=pad_id):
        kept = batch["rows"] >= 0
        output = jax.device_get(step(params, {name: batch[name] for name in ("tokens", "types", "mask")}))
        order.append(batch["rows"][kept])
        outputs.append(jax.tree.map(lambda leaf, kept=kept: leaf[kept], output))
    assert outputs, "an empty split reached the model"
    back = np.argsort(np.concatenate(order))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[back], *outputs)
