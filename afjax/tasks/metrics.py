"""Scores of a split from all its logits and labels, or from its answers."""

import collections
import dataclasses
import re
import string
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from afjax.display.html import Content, shortened, table
from afjax.display.tables import table_lines


def classification_scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The scores of a classification task; an undefined score is 0.

    ``macro_f1`` is over the classes that occur in labels or predictions. With two classes there is also ``f1``, of the
    class with index 1.

    Args:
      logits: ``[rows, classes]``.
      labels: int ``[rows]``, indices of classes.
    """
    from sklearn import metrics

    predictions = logits.argmax(-1)
    with warnings.catch_warnings():
        # scikit-learn warns where only one label occurs.
        warnings.simplefilter("ignore")
        found = {
            "accuracy": metrics.accuracy_score(labels, predictions),
            "macro_f1": metrics.f1_score(labels, predictions, average="macro", zero_division=0),
            "matthews": metrics.matthews_corrcoef(labels, predictions),
        }
        if logits.shape[-1] == 2:
            found["f1"] = metrics.f1_score(labels, predictions, labels=[1], average="micro", zero_division=0)
    return {name: float(value) for name, value in found.items()}


@dataclasses.dataclass(frozen=True, repr=False)
class ConfusionMatrix:
    """How often each label was predicted for the rows of each label.

    ``print(matrix)`` shows it as a table.

    Attributes:
      labels: Label names in the order of both axes.
      counts: int64 ``[right label, predicted label]``, numbers of rows.
    """

    labels: tuple[str, ...]
    counts: np.ndarray

    def __repr__(self) -> str:
        right, total = int(np.trace(self.counts)), int(self.counts.sum())
        return f"<ConfusionMatrix: {len(self.labels)} labels, {right} of {total} rows right>"

    def __str__(self) -> str:
        return "\n".join(table_lines(self._cells()))

    def _repr_html_(self) -> str:
        header, *rows = self._cells()
        contents: list[list[Content]] = [list(row) for row in rows]
        return table(header, contents, numbers=range(1, len(header))).html

    def to_dict(self) -> dict[str, Any]:
        """The matrix for JSON: ``labels``, and ``counts`` with a list per right label."""
        return {"labels": list(self.labels), "counts": self.counts.tolist()}

    def _cells(self) -> list[list[str]]:
        names = [shortened(name, 30) for name in self.labels]
        counts = zip(names, self.counts, strict=True)
        return [["right \\ predicted", *names], *([name, *map(str, of_label)] for name, of_label in counts)]


def confusion_matrix(logits: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> ConfusionMatrix:
    """Counts the predictions of a classification task.

    Args:
      logits: ``[rows, classes]``.
      labels: int ``[rows]``, the right labels.
      names: The label names.
    """
    counts = np.zeros((len(names),) * 2, np.int64)
    np.add.at(counts, (labels, logits.argmax(-1)), 1)
    return ConfusionMatrix(tuple(names), counts)


def regression_scores(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """``pearson``, ``spearman`` and ``mse`` of float64 ``[rows]``; a correlation with a constant is 0."""
    from scipy import stats

    found = {"pearson": 0.0, "spearman": 0.0, "mse": float(np.mean((predictions - labels) ** 2))}
    if len(labels) > 1 and np.ptp(predictions) > 0 and np.ptp(labels) > 0:
        with warnings.catch_warnings():
            # scipy warns where the values are nearly constant.
            warnings.simplefilter("ignore")
            found["pearson"] = float(np.nan_to_num(stats.pearsonr(predictions, labels).statistic))
            found["spearman"] = float(np.nan_to_num(stats.spearmanr(predictions, labels).statistic))
    return found


def span_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, no_answer: bool = False
) -> dict[str, float]:
    """SQuAD's official scores, as shares of 1 (its scripts print percent).

    Args:
      predictions: One text a question; empty: it has no answer.
      answers: The right answers of each; none: it has no answer.
      no_answer: Whether version 2's script is followed, or 1.1's. They differ where nothing is left of an answer, as of
        "the": version 2 takes it for no answer, which matches no answer; in 1.1 it has an F1 of 0.

    Returns:
      ``exact_match`` and ``f1``: means over the questions of the best score against any right answer.
    """
    assert len(predictions) == len(answers) > 0, f"{len(predictions)} predictions, {len(answers)} questions"
    exact, f1 = [], []
    for prediction, texts in zip(predictions, answers, strict=True):
        right = ([text for text in texts if normalise_answer(text)] or [""]) if no_answer else texts
        exact.append(max(normalise_answer(prediction) == normalise_answer(text) for text in right))
        f1.append(max(token_f1(prediction, text, no_answer=no_answer) for text in right))
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(f1))}


def normalise_answer(text: str) -> str:
    """Lower case, without punctuation (ASCII), articles and surplus white space."""
    text = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def token_f1(prediction: str, answer: str, *, no_answer: bool = False) -> float:
    """The F1 of the normalised words of an answer; see :func:`span_scores`."""
    predicted, right = normalise_answer(prediction).split(), normalise_answer(answer).split()
    if no_answer and not (predicted and right):
        return float(predicted == right)
    common = sum((collections.Counter(predicted) & collections.Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)
