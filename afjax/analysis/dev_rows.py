"""What a model makes of labelled rows: its scores, what it takes for what, where it is wrong, what its fusion uses."""

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
      row: Its number, from 0.
      texts: (what it is, text), in order.
      right: The right label, choice, answers or value.
      predicted: What the model said.
      confidence: The probability that it gave to that; of values how far it is off.
    """

    row: int
    texts: tuple[tuple[str, str], ...]
    right: str
    predicted: str
    confidence: float


@dataclasses.dataclass(frozen=True)
class DevLook:
    """What :func:`look_at` finds.

    Attributes:
      num_rows: How many rows there are.
      digest: Of the rows.
      scores: Every metric.
      labels: Label names, of classification.
      confusion: int [right label, predicted label], of classification; else None.
      values: (labels, predictions) [rows] each, of regression; else None.
      mistakes: The worst, those of which the model was surest (or that are farthest off) first.
      num_wrong: How many rows are wrong; of regression all.
      activations: ``{slot: [layers, adapters]}`` of a fusion; else empty.
      layers: Which layers those are.
      members: Which adapters.
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


def look_at(model: TaskModel, rows: AnyRows, *, num_mistakes: int = 20, batch_size: int = 32) -> DevLook:
    """Runs a model once over labelled rows.

    Raises:
      UserError: The rows have no labels, or other label names than the head.
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
        found = metrics.span_scores(given, right, no_answer=no_answer)
        exact = [
            metrics.span_scores([text], [answers], no_answer=no_answer)["exact_match"]
            for text, answers in zip(given, right, strict=True)
        ]
        wrong = np.array(exact) == 0
    else:
        labels = np.asarray(rows.labels)
        found = scores(logits, labels, kind)
        if kind == "regression":
            values = labels.astype(np.float64), logits[:, 0].astype(np.float64)
            wrong = np.ones(len(rows), bool)
        else:
            chosen = logits.argmax(-1)
            wrong = chosen != labels
            if kind == "classification":
                confusion = metrics.confusion_matrix(logits, labels, model.labels).counts
    surest = _surest(predictions, values)
    worst = sorted(np.flatnonzero(wrong), key=lambda row: (-surest[row], row))[:num_mistakes]
    members = tuple(name for name, _ in model.model.adapters)
    return DevLook(
        num_rows=len(rows),
        digest=rows.digest(),
        scores=found,
        labels=model.labels if kind == "classification" else (),
        confusion=confusion,
        values=values,
        mistakes=tuple(_mistake(int(row), rows, predictions, model.labels, surest) for row in worst),
        num_wrong=int(wrong.sum()),
        activations=mean_activations(predictions),
        layers=tuple(adapter_layers(model.model.adapters[0][1], model.trunk.config.num_layers)) if fused else (),
        members=members if fused else (),
    )


def mean_activations(predictions: Predictions) -> dict[str, np.ndarray]:
    """Mean over rows of each row's attention over adapters, ``{slot: [layers, adapters]}``; padding is left out."""
    return {slot: of_rows.mean(0, dtype=np.float64) for slot, of_rows in predictions.fusion_attention.items()}


def _surest(predictions: Predictions, values: tuple[np.ndarray, np.ndarray] | None) -> np.ndarray:
    """float [rows]: the probability of what was predicted; of values how far off they are."""
    if values is not None:
        return np.abs(values[1] - values[0])
    if predictions.answers is not None:
        return np.array([answers[0].probability for answers in predictions.answers])
    return predictions.probabilities.max(-1)


def _mistake(row: int, rows: AnyRows, predictions: Predictions, labels: Sequence[str], surest: np.ndarray) -> Mistake:
    assert rows.labels is not None
    right: Any = rows.labels[row]
    predicted = str(predictions.labels[row])
    texts = rows.texts_of(row)
    if isinstance(rows, SpanRows):
        return Mistake(row, texts, rows.label_of(row), predicted or "(no answer)", float(surest[row]))
    if isinstance(rows, ChoiceRows):
        chosen = int(predictions.logits[row].argmax())
        return Mistake(row, texts[:1], rows.label_of(row), rows.choices[row][chosen], float(surest[row]))
    assert isinstance(rows, Rows)
    if not labels:
        return Mistake(row, texts, f"{right:.4g}", f"{predictions.labels[row]:.4g}", float(surest[row]))
    return Mistake(row, texts, labels[int(right)], predicted, float(surest[row]))
