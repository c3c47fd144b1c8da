"""The loss of each kind of task."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from afjax.config.from_dict import check_value
from afjax.config.tasks import TaskKind
from afjax.errors import UserError
from afjax.tasks.class_loss import ClassLoss, mask_missing, weighted_cross_entropy
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import AnyArray

Batch = Mapping[str, Any]


def task_loss(
    logits: Float[AnyArray, "batch ..."],
    batch: Batch,
    kind: TaskKind,
    class_loss: ClassLoss | None = None,
    num_outputs: Int[AnyArray, ""] | int | None = None,
) -> Float[Array, ""]:
    """Computes the weighted mean of a batch's losses.

    The loss of a row is the cross-entropy or the squared error. For span tasks, it is the mean of two cross-entropies
    over the row's tokens, one for the answer's first token and one for its last. For multi-label tasks, it is the mean
    binary cross-entropy of the labels. For tagging, the result is the mean cross-entropy over all words of the batch.

    Args:
      logits: float ``[batch, num_outputs]``; ``[batch, choices]`` for multiple choice, ``[batch, length, 2]`` for span
        tasks, ``[batch, length, num_labels]`` for tagging.
      batch: ``labels``: int32 ``[batch]`` classes or choices, int32 ``[batch, 2]`` token positions, float ``[batch]``
        values, float ``[batch, num_labels]`` label sets, or int32 ``[batch, length]`` tags, -1 for tokens without one.
        ``weights``: float ``[batch]``; rows with weight zero are ignored. ``mask``: bool ``[batch, length]``, False for
        padding; only span tasks use it.
      kind: The task's kind.
      class_loss: Class weights and label smoothing of a classification task; see :func:`weighted_cross_entropy`.
      num_outputs: The head's number of outputs without padding. Outputs after these are ignored; class weights and
        label sets must be padded with zeros. None if the head is not padded. Not used for regression, multiple-choice
        and span tasks, whose losses never use padding.

    Returns:
      A scalar, float32 or wider.

    Raises:
      UserError: The kind is unknown, or the labels or weights are missing or have the wrong shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from afjax import task_loss
      >>> batch = {"labels": jnp.array([0, 1]), "weights": jnp.array([1.0, 0.0])}  # the second row is padding
      >>> round(float(task_loss(jnp.zeros((2, 4)), batch, "classification")), 4)  # log(4)
      1.3863
    """
    check_value(TaskKind, kind, "kind")
    spec = TASK_KINDS[kind]
    # Without this check, arrays with an additional axis of size 1 would be broadcast.
    label_shape = spec.label_shape(logits.shape[-1], logits.shape[1] if logits.ndim > 1 else 1)
    for name, shape in (("labels", (*logits.shape[:1], *label_shape)), ("weights", logits.shape[:1])):
        if name not in batch or batch[name].shape != shape:
            given = f"have the shape {batch[name].shape}" if name in batch else "are missing"
            raise UserError(
                f"The batch's {name} {given}; with logits of shape {logits.shape} and the kind {kind}, they must have "
                f"the shape {shape}."
            )
    labels, weights = batch["labels"], batch["weights"]
    if class_loss is not None:
        assert kind == "classification", kind
        if num_outputs is not None:
            logits = mask_missing(logits, jnp.asarray(num_outputs))
        return weighted_cross_entropy(logits, labels, weights, class_loss.weights, class_loss.label_smoothing)
    if num_outputs is not None and spec.padded_losses is not None:
        return weighted_mean(spec.padded_losses(logits, batch, jnp.asarray(num_outputs)), weights)
    return weighted_mean(spec.losses(logits, batch), weights)


def weighted_mean(losses: Float[AnyArray, "batch"], weights: Float[AnyArray, "batch"]) -> Float[Array, ""]:
    """Computes the weighted mean of the rows' losses. Rows with weight 0 are padding."""
    total = weights.sum()
    return (losses * weights).sum() / jnp.where(total > 0, total, 1.0)
