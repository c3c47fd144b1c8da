"""Computes scores from a model's outputs."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from afjax.config.tasks import TaskConfig
from afjax.data.tokenization import TokenizedRows
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.predictions import Predictions
from afjax.tasks.weighted_scores import unweighted


def split_scores(
    logits: Float[np.ndarray, "rows ..."], data: TokenizedRows, task: TaskConfig, names: Sequence[str] = ()
) -> dict[str, float]:
    """Computes all scores of a labeled split.

    Args:
      logits: The logits of all tokenized rows, or of all windows for token-level heads. For regression, they must be on
        the labels' scale.
      data: The tokenized rows.
      task: The task.
      names: The label names.
    """
    kind = TASK_KINDS[task.kind]
    assert data.true_labels is not None, "a split without labels is not scored"
    return prediction_scores(kind.predict(logits, data, task, names), data.true_labels, task)


def prediction_scores(predictions: Predictions, labels: Any, task: TaskConfig) -> dict[str, float]:
    """Computes all scores of predictions.

    Args:
      predictions: The predictions of a split.
      labels: The split's true labels.
      task: The task.
    """
    return unweighted(TASK_KINDS[task.kind].weighted(predictions, labels, task), len(labels))
