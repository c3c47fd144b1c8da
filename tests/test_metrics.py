"""Scores against cases worked by hand, degenerate ones included."""

import numpy as np
import pytest

from afjax.errors import UserError
from afjax.metrics import check_metric, scores


def logits_of(predictions: list[int], num_labels: int) -> np.ndarray:
    return np.eye(num_labels, dtype=np.float32)[predictions]


def test_two_labels() -> None:
    # 2 true positives, 1 false positive, 1 false negative, 1 true negative.
    found = scores(logits_of([1, 1, 1, 0, 0], 2), np.array([1, 1, 0, 1, 0]), "classification")
    assert found.keys() == {"accuracy", "f1", "macro_f1", "matthews"}
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["f1"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["matthews"] == pytest.approx((2 * 1 - 1 * 1) / 6)
    assert all(type(value) is float for value in found.values())


def test_three_labels_have_no_f1() -> None:
    found = scores(logits_of([0, 1, 2, 2], 3), np.array([0, 1, 2, 1]), "classification")
    assert found.keys() == {"accuracy", "macro_f1", "matthews"}
    assert found["accuracy"] == pytest.approx(3 / 4)
    assert found["macro_f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("prediction", [0, 1])
def test_constant_classes(label: int, prediction: int) -> None:
    found = scores(logits_of([prediction] * 3, 2), np.array([label] * 3), "classification")
    assert found["accuracy"] == float(label == prediction)
    assert found["f1"] == float(label == prediction == 1)
    assert found["matthews"] == 0.0


def test_one_label_only() -> None:
    assert scores(logits_of([0, 0], 1), np.array([0, 0]), "classification")["accuracy"] == 1.0


@pytest.mark.parametrize("shape", [(4,), (4, 1)])
def test_regression(shape: tuple[int, ...]) -> None:
    predictions = np.array([1.0, 2.0, 3.0, 10.0], np.float32).reshape(shape)
    found = scores(predictions, np.array([0.0, 1.0, 2.0, 3.0], np.float32), "regression")
    assert found["spearman"] == pytest.approx(1.0)
    assert found["pearson"] == pytest.approx(np.corrcoef(predictions.ravel(), [0, 1, 2, 3])[0, 1])
    assert found["mse"] == pytest.approx((1 + 1 + 1 + 49) / 4)


@pytest.mark.parametrize(
    ("predictions", "labels"),
    [
        ([1, 1, 1], [1, 2, 3]),
        ([1, 2, 3], [1, 1, 1]),
        ([2], [1]),
        ([float("nan")] * 2, [1, 2]),
        ([1, 1 + 1e-12], [1, 2]),
    ],
)
def test_regression_on_degenerate_input(predictions: list[float], labels: list[float]) -> None:
    found = scores(np.array(predictions, np.float32), np.array(labels, np.float32), "regression")
    assert found["pearson"] == found["spearman"] == 0.0


@pytest.mark.parametrize(
    ("metric", "kind", "num_labels"),
    [
        ("accuracy", "classification", 3),
        ("macro_f1", "classification", 3),
        ("f1", "classification", 2),
        ("matthews", "classification", 2),
        ("pearson", "regression", 0),
        ("spearman", "regression", 0),
    ],
)
def test_metrics_that_fit(metric: str, kind: str, num_labels: int) -> None:
    check_metric(metric, kind, num_labels)


@pytest.mark.parametrize(
    ("metric", "kind", "num_labels", "words"),
    [
        ("f1", "classification", 3, "3 labels; it can be accuracy, macro_f1, matthews"),
        ("pearson", "classification", 2, "classification task with 2 labels"),
        ("accuracy", "regression", 0, "a regression task; it can be pearson, spearman"),
        ("mse", "regression", 0, "pearson, spearman"),
        ("acuracy", "classification", 2, 'Did you mean "accuracy"'),
    ],
)
def test_metrics_that_do_not_fit(metric: str, kind: str, num_labels: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_metric(metric, kind, num_labels)
