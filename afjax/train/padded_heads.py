"""Heads with more outputs than a task has labels, so that tasks share compiled programs.

A run on two labels and a run on three labels train heads with four outputs. The loss ignores the outputs without a
label: their gradients are zero, and their parameters stay zero. The stored head does not have them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Shaped

from afjax.config.tasks import TaskKind
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree

# The smallest padded head.
SMALLEST = 4


def padded_outputs(kind: TaskKind, num_outputs: int) -> int:
    """Returns the number of outputs of a head while it trains: the next power of two, and at least four.

    It depends only on the run's own task, so another run of a study never changes it.

    Args:
      kind: The task's kind. Heads of kinds whose number of outputs is fixed are not padded.
      num_outputs: The number of outputs of the stored head.
    """
    if TASK_KINDS[kind].padded_losses is None:
        return num_outputs
    return max(SMALLEST, 1 << (num_outputs - 1).bit_length())


def pad_heads(params: Tree, num_outputs: int) -> Tree:
    """Pads the output layer of every head with zeros.

    Args:
      params: A tree with the root ``heads``, whose heads have at most ``num_outputs`` outputs.
      num_outputs: The number of outputs of the padded heads.
    """

    def pad(leaf: Shaped[np.ndarray, "..."]) -> Shaped[np.ndarray, "..."]:
        return np.pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, num_outputs - leaf.shape[-1])])

    return _with_outputs(params, lambda leaf: pad(np.asarray(leaf)))


def trim_heads(params: Tree, num_outputs: int) -> Tree:
    """Removes the outputs that :func:`pad_heads` has added.

    Args:
      params: A tree with the root ``heads``.
      num_outputs: The number of outputs of the stored heads.
    """
    return _with_outputs(params, lambda leaf: leaf[..., :num_outputs])


def pad_labels(
    kind: TaskKind, labels: Shaped[np.ndarray, "batch *label"], num_outputs: int
) -> Shaped[np.ndarray, "batch *padded"]:
    """Pads a batch's labels with zeros if they have one entry per output of the head.

    Args:
      kind: The task's kind.
      labels: A batch's labels.
      num_outputs: The number of outputs of the padded head.
    """
    if TASK_KINDS[kind].label_axes != ("outputs",):
        return labels
    return np.pad(labels, ((0, 0), (0, num_outputs - labels.shape[-1])))


def _with_outputs(params: Tree, change: Callable[[Any], Any]) -> Tree:
    """Returns the tree with the leaves of the heads' output layers changed."""
    heads = {
        name: {**head, "output": {leaf: change(value) for leaf, value in head["output"].items()}}
        for name, head in params["heads"].items()
    }
    return {**params, "heads": heads}
