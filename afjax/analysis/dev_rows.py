"""Evaluation of a model on labelled rows: scores, confusion matrix, mistakes and fusion activations."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from afjax.adapters.kinds import adapter_layers
from afjax.data.splits import AnyRows, ChoiceRows, Rows, SpanRows
from afjax.model.predictions import Predictions
from afjax.model.task_model import TaskModel
from afjax.tasks import metrics
from afjax.tasks.kinds import scores


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A row that a model got wrong.

    Attributes:
      row: The row's index, from 0.
      texts: The row's texts as ``(name, text)``, in order.
      right: The right label, choice, answers or value.
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
      confusion: The confusion matrix for classification, int [right label, predicted label]; otherwise None.
      values: ``(labels, predictions)`` for regression, each float64 [rows]; otherwise None.
      mistakes: The worst mistakes. The most confident (or the largest errors) are first.
      num_wrong: The number of rows with a wrong prediction; for regression all rows.
      activations: Mean activations of a fusion, ``{slot: [layers, adapters]}``; empty without a fusion.
      layers: The layers of ``activations``.
      members: The adapters of ``activations``.
    """

    num_rows: int
    digest: str
    scores: Mapping[str, float]
    labels: tuple[str, ...]
    confusion: np.ndarray | None
    values: tuple[np.ndarray, np.ndarray] | None
    mistakes: tuple[Mistake, ...]
    num_wrong: int
    activations: Mapping[str, np.ndarray]
    layers: tuple[int, ...]
    members: tuple[str, ...]


def evaluate_dev_rows(
    model: TaskModel, rows: AnyRows, *, num_mistakes: int = 20, batch_size: int = 32
) -> DevEvaluation:
    """Evaluates a model in one pass over labelled rows.

    Args:
      model: The model.
      rows: Labelled rows.
      num_mistakes: The maximum number of mistakes to return.
      batch_size: Rows per step.

    Raises:
      UserError: The rows have no labels, or their label names are not the head's.
    """
    model.check_labels(rows)
    assert rows.labels is not None
    fused = bool(model.model.fusion_name)
    predictions = model.predict_rows(rows, batch_size=batch_size, fusion_attention=fused)
    kind, logits = model.task.kind, predictions.logits
    confusion = values = None
    if isinstance(rows, SpanRows):
        right = [[text for text, _ in answers] for answers in rows.labels]
        given = [str(label) for label in predictions.labels]
        no_answer = model.task.span.no_answer
        dev_scores = metrics.span_scores(given, right, no_answer=no_answer)
        exact = [
            metrics.span_scores([text], [answers], no_answer=no_answer)["exact_match"]
            for text, answers in zip(given, right, strict=True)
        ]
        wrong = np.array(exact) == 0
    else:
        labels = np.asarray(rows.labels)
        dev_scores = scores(logits, labels, kind)
        if kind == "regression":
            values = labels.astype(np.float64), logits[:, 0].astype(np.float64)
            wrong = np.ones(len(rows), bool)
        else:
            chosen = logits.argmax(-1)
            wrong = chosen != labels
            if kind == "classification":
                confusion = metrics.confusion_matrix(logits, labels, model.labels).counts
    confidences = _confidences(predictions, values)
    worst = sorted(np.flatnonzero(wrong), key=lambda row: (-confidences[row], row))[:num_mistakes]
    members = tuple(name for name, _ in model.model.adapters)
    return DevEvaluation(
        num_rows=len(rows),
        digest=rows.digest(),
        scores=dev_scores,
        labels=model.labels if kind == "classification" else (),
        confusion=confusion,
        values=values,
        mistakes=tuple(_mistake(int(row), rows, predictions, model.labels, confidences) for row in worst),
        num_wrong=int(wrong.sum()),
        activations=mean_activations(predictions),
        layers=tuple(adapter_layers(model.model.adapters[0][1], model.trunk.config.num_layers)) if fused else (),
        members=members if fused else (),
    )


def mean_activations(predictions: Predictions) -> dict[str, np.ndarray]:
    """The mean over rows of each row's attention over adapters.

    A row's attention is its mean over tokens, without padding.

    Returns:
      ``{slot: [layers, adapters]}``, empty without a fusion.
    """
    return {
        slot: row_attention.mean(0, dtype=np.float64) for slot, row_attention in predictions.fusion_attention.items()
    }


def _confidences(predictions: Predictions, values: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """The probability of each row's prediction, or its absolute error for regression: float [rows]."""
    if values is not None:
        return np.abs(values[1] - values[0])
    if predictions.answers is not None:
        return np.array([answers[0].probability for answers in predictions.answers])
    return predictions.probabilities.max(-1)


def _mistake(
    row: int, rows: AnyRows, predictions: Predictions, labels: Sequence[str], confidences: np.ndarray
) -> Mistake:
    assert rows.labels is not None
    right: Any = rows.labels[row]
    predicted = str(predictions.labels[row])
    texts = rows.texts_of(row)
    if isinstance(rows, SpanRows):
        return Mistake(row, texts, rows.label_of(row), predicted or "(no answer)", float(confidences[row]))
    if isinstance(rows, ChoiceRows):
        chosen = int(predictions.logits[row].argmax())
        return Mistake(row, texts[:1], rows.label_of(row), rows.choices[row][chosen], float(confidences[row]))
    assert isinstance(rows, Rows)
    if not labels:
        return Mistake(row, texts, f"{right:.4g}", f"{predictions.labels[row]:.4g}", float(confidences[row]))
    return Mistake(row, texts, labels[int(right)], predicted, float(confidences[row]))
