"""Paired bootstrap test for the difference between two models' scores.

Each resample draws as many rows as the data has, with replacement, and uses the same rows for both models. A resample
is represented by a weight vector that counts how often each row was drawn. Every score is a function of weighted sums,
so many resamples can be scored at once, and scores that are not means over rows (F1, Matthews, Pearson, Spearman) are
exact.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float, Float64

from afjax.tasks.weighted_scores import Weighted

# Smaller differences are rounding errors of means over pairs of runs, so they count as zero.
_ROUNDING = 1e-9

# Number of weights per block: small enough to fit in memory, and large enough for NumPy to be efficient.
_BLOCK = 2_000_000


@dataclasses.dataclass(frozen=True)
class Paired:
    """One metric of two models, and the uncertainty of the difference.

    Attributes:
      first, second: The models' scores, averaged over the pairs of runs.
      difference: The second score minus the first.
      low, high: The 95% percentile interval of the difference.
      p_value: The two-sided p-value that corresponds to the interval: twice the fraction of resamples on the smaller
        side of zero, after adding one resample with no difference.
      spread: The sample standard deviation of the difference over pairs of runs, or None with a single pair.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float
    spread: float | None


def paired_bootstrap(
    pairs: Sequence[tuple[Weighted, Weighted]], num_rows: int, *, num_resamples: int = 10_000, seed: int = 0
) -> dict[str, Paired]:
    """Compares two models, or several pairs of their runs, on the same rows.

    Runs are typically paired by seed. A resample's difference is the mean over the pairs. The interval and the p-value
    reflect the sampling of rows for these particular runs, not the choice of seeds; ``spread`` shows the variation over
    seeds.

    Args:
      pairs: For each pair of runs, both models' scores as functions of row weights.
      num_rows: The number of rows.
      num_resamples: The number of resamples.
      seed: The random seed.

    Returns:
      ``{metric: Paired}``.
    """
    full_sample = _score_pairs(pairs, np.ones((1, num_rows)))
    drawn = [_score_pairs(pairs, weights) for weights in resample_weights(num_rows, num_resamples, seed)]
    results = {}
    for metric, (first, second) in full_sample.items():
        differences = np.concatenate([(sample[metric][1] - sample[metric][0]).mean(0) for sample in drawn])
        differences[np.abs(differences) < _ROUNDING] = 0.0
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


def resample_weights(num_rows: int, num_resamples: int, seed: int) -> Iterator[Float64[np.ndarray, "resamples rows"]]:
    """Draws bootstrap resamples of the rows.

    Yields:
      Blocks of resamples, ``num_resamples`` in total. An entry counts how often the resample drew the row.
    """
    random = np.random.default_rng(seed)
    size = max(1, _BLOCK // num_rows)
    for begin in range(0, num_resamples, size):
        count = min(size, num_resamples - begin)
        rows = random.integers(num_rows, size=(count, num_rows)) + np.arange(count)[:, None] * num_rows
        yield np.bincount(rows.ravel(), minlength=count * num_rows).reshape(count, num_rows).astype(np.float64)


def _score_pairs(
    pairs: Sequence[tuple[Weighted, Weighted]], weights: Float[np.ndarray, "resamples rows"]
) -> dict[str, tuple[Float[np.ndarray, "pairs resamples"], Float[np.ndarray, "pairs resamples"]]]:
    """Computes both models' scores by metric, for each pair of runs and each resample."""
    scored = [(first(weights), second(weights)) for first, second in pairs]
    return {
        metric: (np.stack([first[metric] for first, _ in scored]), np.stack([second[metric] for _, second in scored]))
        for metric in scored[0][0]
    }
