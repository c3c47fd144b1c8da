"""Evaluates a model: scores, confusion matrix, mistakes and fusion activations."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int

from afjax.data.splits import AnyRows, ChoiceRows
from afjax.model.task_model import TaskModel
from afjax.tasks import metrics
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.predictions import Predictions
from afjax.tasks.scores import prediction_scores


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A row that a model misclassified, or any row for regression.

    Attributes:
      row: The row's index, from 0.
      texts: The row's texts as ``(name, text)``, in order.
      right: The true label, choice, answers or value.
      predicted: The model's prediction.
      confidence: The probability of the prediction, or the absolute error for regression.
    """

    row: int
    texts: tuple[tuple[str, str], ...]
    right: str
    predicted: str
    confidence: float


@dataclasses.dataclass(frozen=True)
class DevEvaluation:
    """The result of :func:`evaluate_dev_rows`.

    Attributes:
      num_rows: The number of rows.
      digest: The digest of the rows.
      scores: Every metric.
      labels: The label names for classification; otherwise empty.
      confusion: The confusion matrix for classification, with true labels as rows and predicted labels as columns;
        otherwise None.
      values: ``(labels, predictions)`` for regression; otherwise None.
      mistakes: The worst mistakes, sorted by decreasing confidence (for regression, by decreasing error).
      num_wrong: The number of incorrect predictions, or of all rows for regression.
      activations: Mean activations of a fusion by slot; empty without a fusion.
      layers: The trunk layers of ``activations``, in order; empty without a fusion.
      members: The names of the fused adapters of ``activations``, in order; empty without a fusion.
    """

    num_rows: int
    digest: str
    scores: Mapping[str, float]
    labels: tuple[str, ...]
    confusion: Int[np.ndarray, "num_labels num_labels"] | None
    values: tuple[Float64[np.ndarray, "rows"], Float64[np.ndarray, "rows"]] | None
    mistakes: tuple[Mistake, ...]
    num_wrong: int
    activations: Mapping[str, Float[np.ndarray, "filled_layers num_adapters"]]
    layers: tuple[int, ...]
    members: tuple[str, ...]


def evaluate_dev_rows(
    model: TaskModel, rows: AnyRows, *, num_mistakes: int = 20, batch_size: int = 32
) -> DevEvaluation:
    """Evaluates a model in one pass over labeled rows.

    Args:
      model: The model.
      rows: Labeled rows.
      num_mistakes: The maximum number of mistakes to return.
      batch_size: Rows per step.

    Raises:
      UserError: The rows have no labels, or their label names do not match the head's.
    """
    model.check_labels(rows)
    assert rows.labels is not None
    fused = bool(model.model.fusion_name)
    predictions = model.predict_rows(rows, batch_size=batch_size, fusion_attention=fused)
    kind = TASK_KINDS[model.task.kind]
    labels: Any = rows.labels
    confusion = values = None
    if kind.has_numbers:
        values = labels.astype(np.float64), predictions.logits[:, 0].astype(np.float64)
    if kind.has_classes:
        confusion = metrics.confusion_matrix(predictions.logits, labels, model.labels).counts
    errors = kind.errors(predictions, labels, model.task)
    wrong = np.ones(len(rows), bool) if kind.has_numbers else errors > 0
    confidences = errors if predictions.confidences is None else predictions.confidences
    worst = sorted(np.flatnonzero(wrong), key=lambda row: (-confidences[row], row))[:num_mistakes]
    return DevEvaluation(
        num_rows=len(rows),
        digest=rows.digest(),
        scores=prediction_scores(predictions, labels, model.task),
        labels=model.labels if kind.has_classes else (),
        confusion=confusion,
        values=values,
        mistakes=tuple(_mistake(int(row), rows, predictions, float(confidences[row])) for row in worst),
        num_wrong=int(wrong.sum()),
        # A row's attention is already a mean over its tokens, excluding padding.
        activations={slot: rows.mean(0, dtype=np.float64) for slot, rows in predictions.fusion_attention.items()},
        layers=predictions.fusion_layers,
        members=tuple(name for name, _ in model.model.adapters) if fused else (),
    )


def _mistake(row: int, rows: AnyRows, predictions: Predictions, confidence: float) -> Mistake:
    if isinstance(rows, ChoiceRows):
        # Show the true and the predicted choice instead of all choices.
        predicted = rows.choices[row][int(predictions.logits[row].argmax())]
        return Mistake(row, rows.texts_of(row)[:1], rows.label_of(row), predicted, confidence)
    return Mistake(row, rows.texts_of(row), rows.label_of(row), predictions.text_of(row), confidence)
