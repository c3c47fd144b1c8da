"""Regression tasks: each row's label is a number."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Float64

from afjax.config.tasks import TaskConfig
from afjax.data.columns import Columns, number_labels
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import Rows
from afjax.data.tokenization import TokenizedRows
from afjax.tasks.kind import KindSpec, KindText, LabelReading
from afjax.tasks.predictions import Predictions
from afjax.tasks.texts import columns_from_lists, has_labels, pick_texts, read_columns, text_forms, tokenize_texts
from afjax.tasks.weighted_scores import Weighted, value_scores
from afjax.trees import AnyArray


def losses(logits: Float[AnyArray, "batch num_outputs"], batch: Mapping[str, Any]) -> Float[Array, "batch"]:
    """Computes each row's squared error."""
    return jnp.square(logits[:, 0] - batch["labels"])


def read(task: TaskConfig, source: SplitSource, labels: LabelReading) -> Rows:
    """Loads rows from a source; see ``KindSpec.read``."""
    columns = read_columns(task, source, labeled=labels.required)
    return make_rows(columns, labeled=has_labels(columns, labels))


def from_lists(texts: list[Any], labels: list[Any] | None, label_names: tuple[str, ...]) -> Rows:
    """Builds rows from lists; see ``KindSpec.from_lists``."""
    return make_rows(columns_from_lists(texts, labels), labeled=labels is not None)


def make_rows(columns: Columns, *, labeled: bool) -> Rows:
    """Validates labels and builds rows."""
    labels = number_labels(columns) if labeled else None
    return Rows(columns.text_a, columns.text_b, labels, (), ids=columns.ids)


def predict(
    logits: Float[np.ndarray, "rows 1"], data: TokenizedRows, task: TaskConfig, names: Sequence[str]
) -> Predictions:
    """Predicts each row's value."""
    return Predictions(logits, np.zeros((len(logits), 0), np.float32), logits[:, 0].tolist())


def errors(
    predictions: Predictions, labels: Float[np.ndarray, "rows"], task: TaskConfig
) -> Float64[np.ndarray, "rows"]:
    """Computes each row's absolute error."""
    return np.abs(predictions.logits[:, 0].astype(np.float64) - labels)


def weighted(predictions: Predictions, labels: Float[np.ndarray, "rows"], task: TaskConfig) -> Weighted:
    """Prepares the scores as a function of row weights."""
    return value_scores(predictions.logits[:, 0], labels)


KIND = KindSpec(
    name="regression",
    num_outputs=lambda label_names: 1,
    losses=losses,
    label_dtype="float32",
    has_numbers=True,
    metrics=("pearson", "spearman"),
    read=read,
    from_lists=from_lists,
    forms=text_forms,
    pick=pick_texts,
    tokenize=tokenize_texts,
    predict=predict,
    errors=errors,
    weighted=weighted,
    text=KindText(pipeline_tag="text-classification", logits="the value, on the labels' scale"),
)
