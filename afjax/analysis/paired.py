"""The paired bootstrap: a significance test for the difference of two models' scores on the same rows.

A resample draws as many rows as there are, with replacement and the same rows for both models. It is represented as a
vector of weights, the number of times that each row was drawn. Every score is a function of weighted sums, which are
computed for many resamples at once. Scores that are not means over rows (F1, Matthews, Pearson, Spearman) are therefore
exactly the scores of the resampled rows.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

import numpy as np

# The number of weights in a block: small enough to fit in memory, large enough for NumPy to be efficient.
_BLOCK = 2_000_000

Scores = dict[str, np.ndarray]
Weighted = Callable[[np.ndarray], Scores]


@dataclasses.dataclass(frozen=True)
class Paired:
    """One metric of two models, and the uncertainty of their difference.

    Attributes:
      first, second: The models' scores, averaged over the pairs of runs.
      difference: The second score minus the first.
      low, high: The 95 % percentile interval of the difference.
      p_value: The two-sided p-value from inverting that interval: twice the fraction of resamples on the smaller side
        of zero, counting one additional resample without a difference.
      spread: The sample standard deviation of the difference over pairs of runs, or None with a single pair.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    spread: float | None


def class_scores(predicted: np.ndarray, labels: np.ndarray, num_classes: int) -> Weighted:
    """Classification metrics: accuracy, macro F1, Matthews and, with two classes, F1.

    Args:
      predicted, labels: int [rows].
      num_classes: The number of classes.

    Returns:
      A function ``weights [resamples, rows] -> {metric: [resamples]}``. Its values equal ``scores`` of the repeated
      rows.
    """
    cells = np.zeros((len(labels), num_classes**2))
    cells[np.arange(len(labels)), labels * num_classes + predicted] = 1

    def scores(weights: np.ndarray) -> Scores:
        # [resamples, label, prediction]
        counts = (weights @ cells).reshape(-1, num_classes, num_classes)
        right, total = np.diagonal(counts, axis1=1, axis2=2), counts.sum((1, 2))
        true, given = counts.sum(2), counts.sum(1)
        f1 = _ratio(2 * right, true + given)
        # Matthews correlation for multiple classes (Gorodkin 2004).
        covariance = right.sum(1) * total - (true * given).sum(1)
        spread = (total**2 - (true**2).sum(1)) * (total**2 - (given**2).sum(1))
        values = {
            "accuracy": right.sum(1) / total,
            # The mean over the classes that occur, as in scikit-learn.
            "macro_f1": f1.sum(1) / (true + given > 0).sum(1),
            "matthews": _ratio(covariance, np.sqrt(spread)),
        }
        return {**values, "f1": f1[:, 1]} if num_classes == 2 else values

    return scores


def mean_scores(of_rows: dict[str, np.ndarray]) -> Weighted:
    """Metrics that are means over rows, from ``{metric: [rows]}``. Returns a function as :func:`class_scores` does."""
    return lambda weights: {name: weights @ values / weights.sum(1) for name, values in of_rows.items()}


def value_scores(predicted: np.ndarray, labels: np.ndarray) -> Weighted:
    """Pearson and Spearman correlation of float [rows]. Returns a function as :func:`class_scores` does."""
    pair = (np.asarray(predicted, np.float64), np.asarray(labels, np.float64))
    ranks = [_weighted_ranks(values) for values in pair]

    def scores(weights: np.ndarray) -> Scores:
        centred = [np.broadcast_to(values - values.mean(), weights.shape) for values in pair]
        return {
            "pearson": _correlation(weights, *centred),
            "spearman": _correlation(weights, *(rank(weights) for rank in ranks)),
        }

    return scores


def paired_bootstrap(
    pairs: Sequence[tuple[Weighted, Weighted]], num_rows: int, *, num_resamples: int = 10_000, seed: int = 0
) -> dict[str, Paired]:
    """Compares two models, or several pairs of their runs, on the same rows.

    The runs of a pair have, for example, the same seed. A resample's difference is the mean of the pairs' differences.
    The interval and the p-value describe the uncertainty over similar rows for these runs. They do not cover other
    seeds; ``spread`` shows the variation over seeds.

    Args:
      pairs: Both models' scores for each pair of runs, as returned by :func:`class_scores`, :func:`mean_scores` or
        :func:`value_scores`.
      num_rows: The number of rows.
      num_resamples: The number of resamples.
      seed: The seed of the random generator.

    Returns:
      ``{metric: Paired}``.
    """
    full_sample = _differences(pairs, np.ones((1, num_rows)))
    drawn = [_differences(pairs, weights) for weights in resample_weights(num_rows, num_resamples, seed)]
    results = {}
    for metric, (first, second) in full_sample.items():
        differences = np.concatenate([(sample[metric][1] - sample[metric][0]).mean(0) for sample in drawn])
        low, high = np.quantile(differences, (0.025, 0.975))
        side = min((differences <= 0).sum(), (differences >= 0).sum())
        pair_differences = (second - first)[:, 0]
        results[metric] = Paired(
            float(first.mean()),
            float(second.mean()),
            float(pair_differences.mean()),
            float(low),
            float(high),
            float(min(1.0, 2 * (side + 1) / (num_resamples + 1))),
            float(pair_differences.std(ddof=1)) if len(pairs) > 1 else None,
        )
    return results


def resample_weights(num_rows: int, num_resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Draws resamples, as the number of times that each row was drawn.

    Yields:
      Blocks of float64 [some resamples, num_rows], with ``num_resamples`` resamples in total.
    """
    random = np.random.default_rng(seed)
    size = max(1, _BLOCK // num_rows)
    for begin in range(0, num_resamples, size):
        count = min(size, num_resamples - begin)
        rows = random.integers(num_rows, size=(count, num_rows)) + np.arange(count)[:, None] * num_rows
        yield np.bincount(rows.ravel(), minlength=count * num_rows).reshape(count, num_rows).astype(np.float64)


def _differences(
    pairs: Sequence[tuple[Weighted, Weighted]], weights: np.ndarray
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Both models' scores by metric, each [pairs, resamples]."""
    scored = [(first(weights), second(weights)) for first, second in pairs]
    return {
        metric: (
            np.stack([first[metric] for first, _ in scored]),
            np.stack([second[metric] for _, second in scored]),
        )
        for metric in scored[0][0]
    }


def _weighted_ranks(values: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function for the mid-ranks of the rows in resamples: ``weights -> [resamples, rows]``."""
    order = np.argsort(values, kind="stable")
    _, begins, group = np.unique(values[order], return_index=True, return_inverse=True)
    group_of_row = np.empty(len(values), np.int64)
    group_of_row[order] = group

    def ranks(weights: np.ndarray) -> np.ndarray:
        counts = np.add.reduceat(weights[:, order], begins, axis=1)  # [resamples, groups]
        return (np.cumsum(counts, axis=1) - counts / 2)[:, group_of_row]

    return ranks


def _correlation(weights: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The weighted correlation of [resamples, rows] with [resamples, rows], or 0 where it is undefined."""
    total = weights.sum(1, keepdims=True)
    first = first - (weights * first).sum(1, keepdims=True) / total
    second = second - (weights * second).sum(1, keepdims=True) / total
    variances = (weights * first**2).sum(1) * (weights * second**2).sum(1)
    return _ratio((weights * first * second).sum(1), np.sqrt(variances))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Divides two arrays. The result is 0 where the denominator is 0, as for undefined scores."""
    return np.divide(above, below, out=np.zeros(np.broadcast(above, below).shape), where=below > 0)
