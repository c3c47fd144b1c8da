"""Scores of a split from all its logits and labels."""

import warnings

import numpy as np

from afjax.errors import UserError, did_you_mean

# The scores of which more is better, so that early stopping can follow them.
METRICS = {
    "classification": ("accuracy", "f1", "macro_f1", "matthews"),
    "regression": ("pearson", "spearman"),
}


def scores(logits: np.ndarray, labels: np.ndarray, kind: str) -> dict[str, float]:
    """Scores a whole split.

    Args:
      logits: [rows, classes]; for regression [rows] or [rows, 1], the predictions.
      labels: [rows], class indices or numbers.
      kind: "classification" or "regression".

    Returns:
      Classification: ``accuracy``, ``macro_f1`` (over the classes that occur in labels or predictions),
      ``matthews``, and with two classes ``f1`` of the class with index 1. Regression: ``pearson``,
      ``spearman``, ``mse``. Where a score is undefined, as a correlation with a constant, it is 0.
    """
    logits, labels = np.asarray(logits), np.asarray(labels)
    assert len(logits) == len(labels) > 0, f"{len(logits)} rows of logits, {len(labels)} labels"
    if kind == "classification":
        return classification_scores(logits, labels)
    return regression_scores(logits.reshape(len(labels)).astype(np.float64), labels.astype(np.float64))


def check_metric(metric: str, kind: str, num_labels: int) -> None:
    """Raises UserError unless the metric fits a task of this kind with this many labels."""
    allowed = [name for name in METRICS[kind] if name != "f1" or num_labels == 2]
    if metric not in allowed:
        task = f"a classification task with {num_labels} labels" if kind == "classification" else "a regression task"
        raise UserError(
            f'The metric "{metric}" does not fit {task}; it can be {", ".join(allowed)}.{did_you_mean(metric, allowed)}'
        )


def classification_scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
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


def regression_scores(predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    from scipy import stats

    found = {"pearson": 0.0, "spearman": 0.0, "mse": float(np.mean((predictions - labels) ** 2))}
    if len(labels) > 1 and np.ptp(predictions) > 0 and np.ptp(labels) > 0:
        with warnings.catch_warnings():
            # scipy warns where the values are nearly constant.
            warnings.simplefilter("ignore")
            found["pearson"] = float(np.nan_to_num(stats.pearsonr(predictions, labels).statistic))
            found["spearman"] = float(np.nan_to_num(stats.spearmanr(predictions, labels).statistic))
    return found
