"""Metrics of each kind of task."""

import collections
import dataclasses
import operator
import re
import string
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int64

from afjax.data.tags import chunks
from afjax.display.html import Content, shortened, table
from afjax.display.tables import table_lines
from afjax.display.words import counted


def classification_scores(
    logits: Float[np.ndarray, "rows num_labels"], labels: Int[np.ndarray, "rows"]
) -> dict[str, float]:
    """Computes the scores of a classification task.

    The scores are ``accuracy``, ``macro_f1``, ``matthews`` and, with two classes, ``f1`` of the class with index 1.
    ``macro_f1`` averages over the classes that occur in the labels or predictions. Undefined scores are 0.

    Args:
      logits: One column per class.
      labels: Indices of the true classes.
    """
    from sklearn import metrics

    predictions = logits.argmax(-1)
    with warnings.catch_warnings():
        # scikit-learn warns if there is only one label.
        warnings.simplefilter("ignore")
        scores = {
            "accuracy": metrics.accuracy_score(labels, predictions),
            "macro_f1": metrics.f1_score(labels, predictions, average="macro", zero_division=0),
            "matthews": metrics.matthews_corrcoef(labels, predictions),
        }
        if logits.shape[-1] == 2:
            scores["f1"] = metrics.f1_score(labels, predictions, labels=[1], average="micro", zero_division=0)
    return {name: float(value) for name, value in scores.items()}


def multi_label_scores(
    logits: Float[np.ndarray, "rows num_labels"],
    predicted: Bool[np.ndarray, "rows num_labels"],
    labels: Float[np.ndarray, "rows num_labels"],
) -> dict[str, float]:
    """Computes the scores of a multi-label task.

    ``micro_f1`` pools the counts of all labels. ``macro_f1`` averages over the labels that occur in the true or
    predicted labels. ``average_precision`` averages over the labels that occur in the true labels, and only depends on
    the ranking of the logits. ``exact_match`` is the fraction of rows whose labels are all predicted correctly.
    Undefined scores are 0.

    Args:
      logits: One column per label.
      predicted: Mask of the predicted labels.
      labels: 1 for true labels and 0 for others.
    """
    from sklearn import metrics

    right = labels > 0
    occurs = np.flatnonzero(right.any(0))
    precisions = [metrics.average_precision_score(right[:, label], logits[:, label]) for label in occurs]
    return {
        **label_set_f1(right, predicted),
        "average_precision": float(np.mean(precisions)) if precisions else 0.0,
        "exact_match": float((right == predicted).all(-1).mean()),
    }


def label_set_f1(
    right: Bool[np.ndarray, "rows num_labels"], predicted: Bool[np.ndarray, "rows num_labels"]
) -> dict[str, float]:
    """Computes ``micro_f1`` and ``macro_f1`` as in :func:`multi_label_scores`.

    Args:
      right, predicted: Masks of the true and predicted labels.
    """
    true, total = (right & predicted).sum(0), right.sum(0) + predicted.sum(0)  # [labels]
    f1 = 2 * true[total > 0] / total[total > 0]
    return {
        "micro_f1": float(2 * true.sum() / total.sum()) if total.any() else 0.0,
        "macro_f1": float(f1.mean()) if len(f1) else 0.0,
    }


def entity_counts(predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> Int64[np.ndarray, "rows 5"]:
    """Counts correct entities and tags in each row.

    Args:
      predicted, right: The predicted and true tags of each row's words.

    Returns:
      Columns with the number of correctly predicted entities, predicted entities, true entities, correctly predicted
      tags, and words.
    """
    counts = []
    for predicted_row, right_row in zip(predicted, right, strict=True):
        found, wanted = set(chunks(predicted_row)), set(chunks(right_row))
        num_right = sum(map(operator.eq, predicted_row, right_row))
        counts.append([len(found & wanted), len(found), len(wanted), num_right, len(right_row)])
    return np.array(counts, np.int64)


def entity_scores(predicted: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> dict[str, float]:
    """Computes ``tag_accuracy``, and ``precision``, ``recall`` and ``f1`` of entities.

    An entity is correct if its type, first word and last word all match, as in ``conlleval``. Undefined scores are 0.

    Args:
      predicted, right: The predicted and true tags of each row's words.
    """
    both, found, wanted, num_right, words = entity_counts(predicted, right).sum(0).tolist()
    return {
        "precision": both / found if found else 0.0,
        "recall": both / wanted if wanted else 0.0,
        "f1": 2 * both / (found + wanted) if found + wanted else 0.0,
        "tag_accuracy": num_right / words,
    }


@dataclasses.dataclass(frozen=True, repr=False)
class ConfusionMatrix:
    """A confusion matrix, which ``print`` shows as a table.

    Attributes:
      labels: Label names in the order of both axes.
      counts: Numbers of examples, with one row per true label and one column per predicted label.
    """

    labels: tuple[str, ...]
    counts: Int[np.ndarray, "num_labels num_labels"]

    def __repr__(self) -> str:
        correct, total = int(np.trace(self.counts)), int(self.counts.sum())
        return f"<ConfusionMatrix: {counted(len(self.labels), 'label')}, {correct} of {counted(total, 'row')} correct>"

    def __str__(self) -> str:
        return "\n".join(table_lines(self._cells()))

    def _repr_html_(self) -> str:
        header, *rows = self._cells()
        contents: list[list[Content]] = [list(row) for row in rows]
        return table(header, contents, numbers=range(1, len(header))).html

    def to_dict(self) -> dict[str, Any]:
        """Converts the matrix for JSON.

        Returns:
          ``labels``, and ``counts`` with one list per true label.
        """
        return {"labels": list(self.labels), "counts": self.counts.tolist()}

    def _cells(self) -> list[list[str]]:
        names = [shortened(name, 30) for name in self.labels]
        counts = zip(names, self.counts, strict=True)
        return [["true \\ predicted", *names], *([name, *map(str, label_counts)] for name, label_counts in counts)]


def confusion_matrix(
    logits: Float[np.ndarray, "rows num_labels"], labels: Int[np.ndarray, "rows"], names: Sequence[str]
) -> ConfusionMatrix:
    """Computes the confusion matrix of a classification task.

    Args:
      logits: One column per class.
      labels: Indices of the true classes.
      names: The label names.
    """
    counts = np.zeros((len(names),) * 2, np.int64)
    np.add.at(counts, (labels, logits.argmax(-1)), 1)
    return ConfusionMatrix(tuple(names), counts)


def regression_scores(predictions: Float[np.ndarray, "rows"], labels: Float[np.ndarray, "rows"]) -> dict[str, float]:
    """Computes ``pearson``, ``spearman`` and ``mse``. Undefined correlations are 0."""
    from scipy import stats

    scores = {"pearson": 0.0, "spearman": 0.0, "mse": float(np.mean((predictions - labels) ** 2))}
    if len(labels) > 1 and np.ptp(predictions) > 0 and np.ptp(labels) > 0:
        with warnings.catch_warnings():
            # SciPy warns about nearly constant values.
            warnings.simplefilter("ignore")
            scores["pearson"] = float(np.nan_to_num(stats.pearsonr(predictions, labels).statistic))
            scores["spearman"] = float(np.nan_to_num(stats.spearmanr(predictions, labels).statistic))
    return scores


def span_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, no_answer: bool = False
) -> dict[str, float]:
    """Computes SQuAD's official scores, as fractions instead of percentages.

    Args:
      predictions: One text per question; empty for "no answer".
      answers: The gold answers to each question; empty if the question is unanswerable.
      no_answer: Whether to follow version 2 of the script instead of 1.1. The versions differ for answers such as
        "the", which are empty after normalization. Version 2 treats them as "no answer"; in version 1.1, their F1 is 0.

    Returns:
      ``exact_match`` and ``f1``, averaged over questions. Each question's score is the maximum over its gold answers.
    """
    assert len(predictions) == len(answers) > 0, f"{len(predictions)} predictions, {len(answers)} questions"
    exact, f1 = [], []
    for prediction, texts in zip(predictions, answers, strict=True):
        right = ([text for text in texts if normalize_answer(text)] or [""]) if no_answer else texts
        exact.append(max(normalize_answer(prediction) == normalize_answer(text) for text in right))
        f1.append(max(token_f1(prediction, text, no_answer=no_answer) for text in right))
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(f1))}


def normalize_answer(text: str) -> str:
    """Normalizes an answer like SQuAD's scripts.

    Lowercases the text, and removes ASCII punctuation, articles and extra white space.
    """
    text = "".join(sign for sign in text.lower() if sign not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def token_f1(prediction: str, answer: str, *, no_answer: bool = False) -> float:
    """Computes F1 between the normalized words of a prediction and an answer.

    See :func:`span_scores` for ``no_answer``.
    """
    predicted, right = normalize_answer(prediction).split(), normalize_answer(answer).split()
    if no_answer and not (predicted and right):
        return float(predicted == right)
    common = sum((collections.Counter(predicted) & collections.Counter(right)).values())
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(right)
    return 2 * precision * recall / (precision + recall)
