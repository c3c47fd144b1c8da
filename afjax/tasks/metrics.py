"""Confusion matrices, entity counts and SQuAD's scores of each question."""

import collections
import dataclasses
import operator
import re
import string
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int, Int64

from afjax.data.tags import chunks
from afjax.display.html import Content, shortened, table
from afjax.display.tables import table_lines
from afjax.display.words import counted


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


def span_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, no_answer: bool = False
) -> dict[str, Float64[np.ndarray, "rows"]]:
    """Computes SQuAD's official scores of each question, as fractions instead of percentages.

    Args:
      predictions: One text per question; empty for "no answer".
      answers: The gold answers to each question; empty if the question is unanswerable.
      no_answer: Whether to follow version 2 of the script instead of 1.1. The versions differ for answers such as
        "the", which are empty after normalization. Version 2 treats them as "no answer"; in version 1.1, their F1 is 0.

    Returns:
      ``exact_match`` and ``f1``. A question's score is the maximum over its gold answers.
    """
    exact, f1 = [], []
    for prediction, texts in zip(predictions, answers, strict=True):
        right = ([text for text in texts if normalize_answer(text)] or [""]) if no_answer else texts
        exact.append(max(normalize_answer(prediction) == normalize_answer(text) for text in right))
        f1.append(max(token_f1(prediction, text, no_answer=no_answer) for text in right))
    return {"exact_match": np.array(exact, np.float64), "f1": np.array(f1)}


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
