"""The loss of each kind of task."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from afjax.config.tasks import TaskKind
from afjax.tasks.class_loss import ClassLoss, weighted_cross_entropy
from afjax.tasks.kinds import TASK_KINDS

Batch = Mapping[str, Any]


def task_loss(logits: Array, batch: Batch, kind: TaskKind, class_loss: ClassLoss | None = None) -> Array:
    """The weighted mean over rows of the cross-entropy, or of the squared error.

    Args:
      logits: ``[batch, num_outputs]``; of span ``[batch, length, 2]``, whose loss is the mean of the cross-entropies of
        the answer's first and last token among the row's tokens.
      batch: ``labels``, int32 ``[batch]`` classes or choices, int32 ``[batch, 2]`` tokens, or float ``[batch]`` values;
        ``weights``, float ``[batch]``, where rows of weight zero count for nothing; and ``mask``.
      kind: The task's kind.
      class_loss: Class weights and label smoothing of a classification task; see :func:`weighted_cross_entropy`.
    """
    labels, weights = batch["labels"], batch["weights"]
    if class_loss is not None:
        assert kind == "classification", kind
        return weighted_cross_entropy(logits, labels, weights, class_loss.weights, class_loss.label_smoothing)
    losses = TASK_KINDS[kind].losses(logits, batch)
    return (losses * weights).sum() / jnp.maximum(weights.sum(), 1.0)
