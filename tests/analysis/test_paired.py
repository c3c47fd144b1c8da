"""The vectorized bootstrap matches a loop over resampled rows, and its intervals have the nominal coverage."""

from collections.abc import Callable

import numpy as np
import pytest

from afjax.analysis.paired import paired_bootstrap, resample_weights
from afjax.tasks.weighted_scores import class_scores, mean_scores, value_scores
from tests.reference_scores import classification_scores, regression_scores

RANDOM = np.random.default_rng(0)


def slow_scores(
    scores: Callable[[np.ndarray, np.ndarray], dict[str, float]],
    predictions: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
) -> list[dict[str, float]]:
    """Scores each resample separately, by repeating the drawn rows and scoring them like a split."""
    rows = [np.repeat(np.arange(len(labels)), of.astype(int)) for of in weights]
    return [scores(predictions[of], labels[of]) for of in rows]


@pytest.mark.parametrize("num_classes", [2, 4])
def test_class_scores_equal_a_plain_loop(num_classes: int) -> None:
    logits = RANDOM.normal(size=(23, num_classes))
    labels = RANDOM.integers(num_classes, size=23)
    labels[:15] = logits[:15].argmax(-1)
    (weights,) = resample_weights(23, 40, seed=1)
    # In one resample all rows have the same class, so some scores are undefined.
    weights[0] = np.where(np.arange(23) == 20, 23, 0)
    found = class_scores(logits.argmax(-1), labels, num_classes)(weights)
    slow = slow_scores(classification_scores, logits, labels, weights)
    assert found.keys() == slow[0].keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, [scores[name] for scores in slow], atol=1e-12)


def test_value_scores_equal_a_plain_loop() -> None:
    labels = RANDOM.integers(6, size=31) / 2  # Some labels are tied, as in STS-B.
    predicted = np.round(labels + RANDOM.normal(size=31), 1)
    (weights,) = resample_weights(31, 40, seed=2)
    weights[0] = np.where(np.arange(31) == 3, 31, 0)
    found = value_scores(predicted, labels)(weights)
    slow = slow_scores(regression_scores, predicted, labels, weights)
    for name, values in found.items():
        np.testing.assert_allclose(values, [scores[name] for scores in slow], atol=1e-9)


def test_paired_bootstrap_equals_scores_of_its_resamples() -> None:
    labels = RANDOM.integers(2, size=60)
    answers = [np.where(RANDOM.random(60) < share, labels, 1 - labels) for share in (0.6, 0.7, 0.8, 0.9)]
    scored = [class_scores(answer, labels, 2) for answer in answers]
    pairs = [(scored[0], scored[2]), (scored[1], scored[3])]
    found = paired_bootstrap(pairs, 60, num_resamples=200, seed=3)["macro_f1"]
    (weights,) = resample_weights(60, 200, seed=3)
    logits = [np.eye(2)[answer] for answer in answers]
    slow = [
        [scores["macro_f1"] for scores in slow_scores(classification_scores, each, labels, weights)] for each in logits
    ]
    differences = (np.array(slow[2]) - slow[0] + slow[3] - slow[1]) / 2
    np.testing.assert_allclose((found.low, found.high), np.quantile(differences, (0.025, 0.975)), atol=1e-12)
    side = min((differences <= 0).sum(), (differences >= 0).sum())
    assert found.p_value == pytest.approx(2 * (side + 1) / 201)
    whole = [classification_scores(each, labels)["macro_f1"] for each in logits]
    assert found.difference == pytest.approx((whole[2] - whole[0] + whole[3] - whole[1]) / 2)
    assert found.spread == pytest.approx(abs(whole[2] - whole[0] - whole[3] + whole[1]) / np.sqrt(2))


def test_ties_count_on_both_sides_despite_rounding() -> None:
    # The mean difference over these three pairs is a multiple of 1/30, and zero in many resamples.
    changes = np.array([[1, -1, 0, 0, 0], [0, 1, -1, 0, 0], [0, 0, 0, 1, -1]])
    first = np.array([0.0, 1.0, 1.0, 0.0, 1.0])
    pairs = [tuple(mean_scores({"accuracy": answer}) for answer in (first, first + change)) for change in changes]
    found = paired_bootstrap(pairs, 5, num_resamples=2_000)["accuracy"]
    (weights,) = resample_weights(5, 2_000, seed=0)
    totals = weights.astype(int) @ changes.sum(0)
    assert (totals == 0).sum() > 100
    side = min((totals <= 0).sum(), (totals >= 0).sum())
    assert found.p_value == pytest.approx(min(1.0, 2 * (side + 1) / 2_001))


def test_resample_blocks_are_reproducible_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("afjax.analysis.paired._BLOCK", 35)
    blocks = list(resample_weights(10, 8, seed=0))
    assert [len(block) for block in blocks] == [3, 3, 2]
    assert (np.concatenate(blocks).sum(1) == 10).all()
    again, other = (np.concatenate(list(resample_weights(10, 8, seed=seed))) for seed in (0, 1))
    np.testing.assert_array_equal(np.concatenate(blocks), again)
    assert (again != other).any()


def test_intervals_and_p_values_have_nominal_error_rates() -> None:
    """Compares models with accuracies of 70 % and 80 %, and two models that differ only by chance."""
    covered = rejected = 0
    for trial in range(400):
        random = np.random.default_rng(trial)
        first, second, third = ((random.random(200) < share).astype(float) for share in (0.7, 0.8, 0.7))
        scored = [mean_scores({"accuracy": right}) for right in (first, second, third)]
        found = paired_bootstrap([(scored[0], scored[1])], 200, num_resamples=400, seed=trial)["accuracy"]
        covered += found.low <= 0.1 <= found.high
        null = paired_bootstrap([(scored[0], scored[2])], 200, num_resamples=400, seed=trial)["accuracy"]
        rejected += null.p_value <= 0.05
    assert 0.92 <= covered / 400 <= 0.98
    assert 0.02 <= rejected / 400 <= 0.08


def test_equal_models() -> None:
    scored = mean_scores({"accuracy": np.array([1.0, 0.0, 1.0])})
    found = paired_bootstrap([(scored, scored)], 3, num_resamples=50)["accuracy"]
    assert (found.difference, found.low, found.high, found.p_value, found.spread) == (0, 0, 0, 1, None)
