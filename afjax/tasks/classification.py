"""Classification tasks: each row has one of several labels."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Float64, Int

from afjax.config.tasks import TaskConfig
from afjax.data.columns import Columns, listing
from afjax.data.labels import class_labels, find_label_names, note_indices
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import Rows
from afjax.data.tokenization import TokenizedRows
from afjax.tasks.kind import KindSpec, KindText, LabelReading, masked
from afjax.tasks.predictions import Predictions, softmax
from afjax.tasks.texts import (
    columns_from_lists,
    given_names,
    has_labels,
    pick_texts,
    read_columns,
    text_forms,
    tokenize_texts,
)
from afjax.tasks.weighted_scores import Weighted, class_scores
from afjax.trees import AnyArray


def losses(logits: Float[AnyArray, "batch num_labels"], batch: Mapping[str, Any]) -> Float[Array, "batch"]:
    """Computes each row's cross-entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])


def read(task: TaskConfig, source: SplitSource, labels: LabelReading) -> Rows:
    """Loads rows from a source; see ``KindSpec.read``."""
    columns = read_columns(task, source, labeled=labels.required)
    given = given_names(task, source, labels)
    names, labeled = given.names, has_labels(columns, labels)
    if labeled and not names:
        names = find_label_names(read_columns(task, labels.train()) if labels.train else columns)
    if labeled and given.of_head:
        note_indices(columns, names)
    return make_rows(columns, names, listed=given.listed, labeled=labeled)


def from_lists(texts: list[Any], labels: list[Any] | None, label_names: tuple[str, ...]) -> Rows:
    """Builds rows from lists; see ``KindSpec.from_lists``."""
    columns = columns_from_lists(texts, labels)
    names = label_names if labels is None else label_names or find_label_names(columns)
    return make_rows(columns, names, listed=bool(label_names), labeled=labels is not None)


def make_rows(columns: Columns, names: tuple[str, ...], *, listed: bool, labeled: bool) -> Rows:
    """Validates labels and builds rows, warning if there is only one class.

    If ``listed`` is true, integer labels can be indices into ``names``.
    """
    if not labeled:
        return Rows(columns.text_a, columns.text_b, None, names, ids=columns.ids)
    labels = class_labels(columns, names, listed=listed)
    if (labels == labels[0]).all():
        warnings.warn(one_class(columns, names[labels[0]]), stacklevel=3)
    return Rows(columns.text_a, columns.text_b, labels, names, ids=columns.ids)


def one_class(columns: Columns, name: str) -> str:
    """Formats the warning that all rows have the same label."""
    rows = f'All rows of {columns.source} have the label "{name}"'
    if columns.names:
        rows += (
            f' in the column "{columns.label}" ({columns.places[0]} to '
            f"{columns.places[-1]}; the columns are {listing(columns.names)})"
        )
    return f"{rows}; to learn a task and to measure scores, rows with different labels are needed."


def predict(
    logits: Float[np.ndarray, "rows num_labels"], data: TokenizedRows, task: TaskConfig, names: Sequence[str]
) -> Predictions:
    """Predicts each row's most likely label."""
    probabilities = softmax(logits)
    return Predictions(logits, probabilities, name_outputs(logits, names), confidences=probabilities.max(-1))


def name_outputs(logits: Float[np.ndarray, "rows num_outputs"], names: Sequence[str]) -> list[str]:
    """Names the output with the largest logit in each row.

    An output without a name is given by its index.
    """
    return [names[index] if index < len(names) else str(index) for index in logits.argmax(-1)]


def errors(predictions: Predictions, labels: Int[np.ndarray, "rows"], task: TaskConfig) -> Float64[np.ndarray, "rows"]:
    """Returns 1 for misclassified rows and 0 for the others."""
    return (predictions.logits.argmax(-1) != labels).astype(np.float64)


def weighted(predictions: Predictions, labels: Int[np.ndarray, "rows"], task: TaskConfig) -> Weighted:
    """Prepares the scores as a function of row weights."""
    return class_scores(predictions.logits.argmax(-1), labels, predictions.logits.shape[-1])


KIND = KindSpec(
    name="classification",
    num_outputs=len,
    losses=losses,
    padded_losses=masked(losses),
    named_outputs=True,
    has_classes=True,
    metrics=("accuracy", "f1", "macro_f1", "matthews"),
    read=read,
    from_lists=from_lists,
    forms=text_forms,
    pick=pick_texts,
    tokenize=tokenize_texts,
    predict=predict,
    errors=errors,
    weighted=weighted,
    text=KindText(pipeline_tag="text-classification", logits="one per label, in label order"),
)
