"""Plain scores of a split, to test the scores as functions of row weights."""

import warnings

import numpy as np
from scipy import stats
from sklearn import metrics


def classification_scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Computes the scores of a classification task with scikit-learn."""
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


def regression_scores(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Computes the scores of a regression task with SciPy."""
    scores = {"pearson": 0.0, "spearman": 0.0, "mse": float(np.mean((predictions - labels) ** 2))}
    if len(labels) > 1 and np.ptp(predictions) > 0 and np.ptp(labels) > 0:
        scores["pearson"] = float(stats.pearsonr(predictions, labels).statistic)
        scores["spearman"] = float(stats.spearmanr(predictions, labels).statistic)
    return scores
