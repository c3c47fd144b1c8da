"""Classification loss with class weights and label smoothing."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.errors import UserError, did_you_mean
from afjax.trees import AnyArray


@dataclasses.dataclass(frozen=True, eq=False)
class ClassLoss:
    """Class weights and label smoothing of a classification task.

    Attributes:
      weights: The positive weight of each label; 0 for the head's padding outputs.
      label_smoothing: Probability mass of each target that is spread evenly over all labels.
    """

    weights: Float[AnyArray, "num_labels"]
    label_smoothing: float


def make_class_loss(config: TrainConfig, label_names: Sequence[str], labels: Any) -> ClassLoss | None:
    """Computes a task's class weights and label smoothing.

    Returns None if neither is used.

    Args:
      config: Settings that have been validated by :func:`check_class_settings`.
      label_names: The task's label names, in index order.
      labels: int ``[rows]``, the labels of the train split, which are used only for balanced weights.
    """
    if not uses_class_loss(config):
        return None
    weights = np.ones(len(label_names))
    if isinstance(config.class_weights, Mapping):
        weights = np.array([config.class_weights.get(name, 1.0) for name in label_names], np.float64)
    elif config.class_weights == "balanced":
        assert labels is not None, "train rows have labels"
        counts = np.bincount(labels, minlength=len(label_names))
        # A label without train rows keeps a weight of 1, which is the mean weight over rows.
        occurs = counts > 0
        weights[occurs] = len(labels) / (occurs.sum() * counts[occurs])
    return ClassLoss(weights, config.label_smoothing)


def uses_class_loss(config: TrainConfig) -> bool:
    """Whether a run uses class weights or label smoothing."""
    return bool(config.class_weights) or config.label_smoothing > 0


def check_class_settings(config: TrainConfig, tasks: Mapping[TaskConfig, Sequence[str]]) -> None:
    """Checks that class weights and label smoothing are valid for a run's tasks.

    Args:
      config: The run's settings.
      tasks: The label names of each task.

    Raises:
      UserError: A task is not a classification task, or a label in ``class_weights`` is not a label of any task.
    """
    if not uses_class_loss(config):
        return
    for task in tasks:
        if task.kind != "classification":
            setting = "class_weights" if config.class_weights else "label_smoothing"
            raise UserError(
                f"train.{setting} is set, but the task {task.name} is a {task.kind.replace('_', '-')} task. Only "
                "classification tasks support class weights and label smoothing; unset both."
            )
    if isinstance(config.class_weights, Mapping):
        known_labels = list(dict.fromkeys(name for names in tasks.values() for name in names))
        for label in config.class_weights:
            if label not in known_labels:
                names = ", ".join(task.name for task in tasks)
                raise UserError(
                    f'train.class_weights has the label "{label}", which is not a label of {names}; labels: '
                    f"{', '.join(known_labels)}.{did_you_mean(label, known_labels)}"
                )


def weighted_cross_entropy(
    logits: Float[AnyArray, "batch num_labels"],
    labels: Int[AnyArray, "batch"],
    row_weights: Float[AnyArray, "batch"],
    class_weights: Float[AnyArray, "num_labels"],
    label_smoothing: float,
) -> Float[Array, ""]:
    """Computes a batch's mean cross-entropy with class weights and label smoothing.

    Let ``w`` be the class weights, ``p`` the softmax of the logits, ``e`` the label smoothing and ``C`` the number of
    classes. The loss of a row with label ``y`` is ``-(1 - e) w[y] log p[y] - e / C sum_c w[c] log p[c]``. The result is
    the sum of these losses divided by the sum of ``w[y]``, both over all rows of the global batch. This matches
    ``torch.nn.CrossEntropyLoss(weight=w, label_smoothing=e)``.

    Args:
      logits: ``[batch, classes]``.
      labels: int32 ``[batch]``.
      row_weights: float ``[batch]``; 0 for padding rows, else 1.
      class_weights: float ``[classes]``; 0 for the head's padding outputs.
      label_smoothing: ``e``.
    """
    log_probabilities = jax.nn.log_softmax(logits)
    weights = jnp.asarray(class_weights, log_probabilities.dtype)
    # Padding outputs have the dtype's lowest value as log-probability, which must not be multiplied by 0.
    exists = weights > 0
    weighted = jnp.where(exists[None], weights[None] * log_probabilities, 0)
    losses = -jnp.take_along_axis(weighted, labels[:, None], axis=-1)[:, 0]
    if label_smoothing:
        spread = -weighted.sum(-1) / exists.sum()
        losses = (1 - label_smoothing) * losses + label_smoothing * spread
    total = (weights[labels] * row_weights).sum()
    return (losses * row_weights).sum() / jnp.where(total > 0, total, 1)


def mask_missing(
    logits: Float[AnyArray, "*batch outputs"], num_outputs: Int[AnyArray, ""]
) -> Float[Array, "*batch outputs"]:
    """Masks the padding outputs of a head, so that their probability is zero.

    Args:
      logits: The logits of a padded head.
      num_outputs: Number of actual outputs, which come before the padding.
    """
    has_output = jnp.arange(logits.shape[-1]) < num_outputs
    has_output = has_output.reshape((1,) * (logits.ndim - 1) + (-1,))
    return jnp.where(has_output, logits, jnp.finfo(logits.dtype).min)
