"""Scores as functions of row weights.

A row's weight is the number of times that it occurs in a resample, for example in the paired bootstrap. Weighting gives
the same scores as repeating the rows. With weights of 1, they are the scores of a split.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Shaped

# Each metric's value in each resample.
Scores = dict[str, Float64[np.ndarray, "resamples"]]
# Computes scores from row weights.
Weighted = Callable[[Float[np.ndarray, "resamples rows"]], Scores]


def unweighted(weighted: Weighted, num_rows: int) -> dict[str, float]:
    """Computes the scores of a split. Each row has the weight 1."""
    return {name: float(values[0]) for name, values in weighted(np.ones((1, num_rows))).items()}


def class_scores(predicted: Int[np.ndarray, "rows"], labels: Int[np.ndarray, "rows"], num_classes: int) -> Weighted:
    """Prepares ``accuracy``, ``macro_f1``, ``matthews`` and, with two classes, ``f1``.

    ``macro_f1`` averages over the classes that occur in the labels or predictions. ``matthews`` is the Matthews
    correlation, and ``f1`` is of the class with index 1. Undefined scores are 0.

    Args:
      predicted, labels: Each row's predicted and true class index.
      num_classes: Number of classes.

    Returns:
      A function that computes these metrics from row weights.
    """
    from scipy import sparse

    rows, ones = np.arange(len(labels)), np.ones(len(labels))

    def one_hot(classes: Int[np.ndarray, "rows"], values: Float[np.ndarray, "rows"]) -> Any:  # [rows, classes]
        return sparse.csr_array((values, (rows, classes)), shape=(len(rows), num_classes))

    is_true, is_given = one_hot(labels, ones), one_hot(predicted, ones)
    is_right = one_hot(labels, (labels == predicted).astype(float))

    def scores(weights: Float[np.ndarray, "resamples rows"]) -> Scores:
        true, given, right = (weights @ each for each in (is_true, is_given, is_right))  # [resamples, classes]
        total = true.sum(1)
        f1 = _ratio(2 * right, true + given)
        # Multi-class Matthews correlation (Gorodkin 2004).
        covariance = right.sum(1) * total - (true * given).sum(1)
        spread = (total**2 - (true**2).sum(1)) * (total**2 - (given**2).sum(1))
        values = {
            "accuracy": right.sum(1) / total,
            "macro_f1": f1.sum(1) / (true + given > 0).sum(1),
            "matthews": _ratio(covariance, np.sqrt(spread)),
        }
        return {**values, "f1": f1[:, 1]} if num_classes == 2 else values

    return scores


def label_set_scores(
    logits: Float[np.ndarray, "rows num_labels"],
    predicted: Bool[np.ndarray, "rows num_labels"],
    labels: Float[np.ndarray, "rows num_labels"],
) -> Weighted:
    """Prepares ``micro_f1``, ``macro_f1``, ``average_precision`` and ``exact_match``.

    ``micro_f1`` pools the counts of all labels. ``macro_f1`` averages over the labels that occur in the true or
    predicted labels. ``average_precision`` averages over the labels that occur in the true labels, and only depends on
    the ranking of the logits. ``exact_match`` is the fraction of rows whose labels are all predicted correctly.
    Undefined scores are 0.

    Args:
      logits: One column per label.
      predicted: Mask of the predicted labels.
      labels: 1 for true labels and 0 for others.

    Returns:
      A function that computes these metrics from row weights.
    """
    right = labels > 0
    f1, exact = label_set_f1(right, predicted), (right == predicted).all(-1).astype(float)
    occurring = np.flatnonzero(right.any(0))
    precisions = [_average_precision(logits[:, index], right[:, index]) for index in occurring]

    def scores(weights: Float[np.ndarray, "resamples rows"]) -> Scores:
        has_rows = weights @ right[:, occurring].astype(float) > 0  # [resamples, occurring]
        average = np.zeros(has_rows.shape)
        for number, precision in enumerate(precisions):
            average[:, number] = precision(weights)
        return {
            **f1(weights),
            "average_precision": _ratio(np.where(has_rows, average, 0).sum(1), has_rows.sum(1)),
            "exact_match": weights @ exact / weights.sum(1),
        }

    return scores


def label_set_f1(
    right: Bool[np.ndarray, "rows num_labels"], predicted: Bool[np.ndarray, "rows num_labels"]
) -> Weighted:
    """Prepares ``micro_f1`` and ``macro_f1`` as in :func:`label_set_scores`.

    Args:
      right, predicted: Masks of the true and predicted labels.

    Returns:
      A function that computes these metrics from row weights.
    """
    both, either = (right & predicted).astype(float), right.astype(float) + predicted

    def scores(weights: Float[np.ndarray, "resamples rows"]) -> Scores:
        true, total = weights @ both, weights @ either  # [resamples, labels]
        return {
            "micro_f1": _ratio(2 * true.sum(1), total.sum(1)),
            "macro_f1": _ratio(_ratio(2 * true, total).sum(1), (total > 0).sum(1)),
        }

    return scores


def entity_weighted_scores(counts: Int[np.ndarray, "rows 5"]) -> Weighted:
    """Prepares ``precision``, ``recall`` and ``f1`` of entities, and ``tag_accuracy``.

    An entity is correct if its type, first word and last word all match, as in ``conlleval``. Undefined scores are 0.

    Args:
      counts: The result of :func:`afjax.tasks.metrics.entity_counts`.

    Returns:
      A function that computes these metrics from row weights.
    """

    def scores(weights: Float[np.ndarray, "resamples rows"]) -> Scores:
        both, found, wanted, num_right, words = (weights @ counts).T
        return {
            "precision": _ratio(both, found),
            "recall": _ratio(both, wanted),
            "f1": _ratio(2 * both, found + wanted),
            "tag_accuracy": _ratio(num_right, words),
        }

    return scores


def _average_precision(
    logits: Float[np.ndarray, "rows"], right: Bool[np.ndarray, "rows"]
) -> Callable[[Float[np.ndarray, "resamples rows"]], Float64[np.ndarray, "resamples"]]:
    """Returns a function that computes a label's average precision from row weights."""
    order = np.argsort(-logits, kind="stable").astype(np.int32)
    # Rows with equal logits share one threshold, at the last of these rows.
    ends = np.append(np.flatnonzero(np.diff(logits[order])), len(order) - 1).astype(np.int32)

    def precision(weights: Float[np.ndarray, "resamples rows"]) -> Float64[np.ndarray, "resamples"]:
        ordered = weights[:, order]
        true = np.cumsum(ordered * right[order], axis=1)[:, ends]
        chosen = np.cumsum(ordered, axis=1)[:, ends]
        gained = np.diff(true, axis=1, prepend=0)
        return _ratio((gained * _ratio(true, chosen)).sum(1), true[:, -1])

    return precision


def mean_scores(of_rows: dict[str, Float[np.ndarray, "rows"]]) -> Weighted:
    """Prepares metrics that are means over rows.

    Args:
      of_rows: Each row's value, by metric.

    Returns:
      A function that computes the means from row weights.
    """
    return lambda weights: {name: weights @ values / weights.sum(1) for name, values in of_rows.items()}


def value_scores(predicted: Float[np.ndarray, "rows"], labels: Float[np.ndarray, "rows"]) -> Weighted:
    """Prepares ``pearson``, ``spearman`` and ``mse``. Undefined correlations are 0.

    Args:
      predicted, labels: Each row's predicted and true value.

    Returns:
      A function that computes these metrics from row weights.
    """
    pair = (np.asarray(predicted, np.float64), np.asarray(labels, np.float64))
    ranks = [_weighted_ranks(values) for values in pair]

    def scores(weights: Float[np.ndarray, "resamples rows"]) -> Scores:
        centered = [np.broadcast_to(values - values.mean(), weights.shape) for values in pair]
        return {
            "pearson": _correlation(weights, *centered),
            "spearman": _correlation(weights, *(rank(weights) for rank in ranks)),
            "mse": weights @ (pair[0] - pair[1]) ** 2 / weights.sum(1),
        }

    return scores


def _weighted_ranks(
    values: Float[np.ndarray, "rows"],
) -> Callable[[Float[np.ndarray, "resamples rows"]], Float[np.ndarray, "resamples rows"]]:
    """Returns a function that computes mid-ranks from row weights."""
    order = np.argsort(values, kind="stable")
    _, begins, group = np.unique(values[order], return_index=True, return_inverse=True)
    group_of_row = np.empty(len(values), np.int64)
    group_of_row[order] = group

    def ranks(weights: Float[np.ndarray, "resamples rows"]) -> Float[np.ndarray, "resamples rows"]:
        counts = np.add.reduceat(weights[:, order], begins, axis=1)  # [resamples, groups]
        return (np.cumsum(counts, axis=1) - counts / 2)[:, group_of_row]

    return ranks


def _correlation(
    weights: Float[np.ndarray, "resamples rows"],
    first: Float[np.ndarray, "resamples rows"],
    second: Float[np.ndarray, "resamples rows"],
) -> Float64[np.ndarray, "resamples"]:
    """Computes the weighted Pearson correlation of two variables; 0 if undefined."""
    total = weights.sum(1, keepdims=True)
    first = first - (weights * first).sum(1, keepdims=True) / total
    second = second - (weights * second).sum(1, keepdims=True) / total
    variances = (weights * first**2).sum(1) * (weights * second**2).sum(1)
    ratio = _ratio((weights * first * second).sum(1), np.sqrt(variances))
    return np.where(_is_constant(weights, first) | _is_constant(weights, second), 0.0, ratio)


def _is_constant(
    weights: Float[np.ndarray, "resamples rows"], values: Float[np.ndarray, "resamples rows"]
) -> Bool[np.ndarray, "resamples"]:
    """Whether all rows with a positive weight have the same value."""
    highest = np.where(weights > 0, values, -np.inf).max(1)
    return highest == np.where(weights > 0, values, np.inf).min(1)


def _ratio(above: Float[np.ndarray, "*shape"], below: Shaped[np.ndarray, "*shape"]) -> Float64[np.ndarray, "*shape"]:
    """Divides two arrays. The result is 0 where the denominator is 0."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)
