"""Multi-label classification tasks: each row has any number of labels.

In JSONL files, a row's labels are a list of names. In text columns, they are separated by
``MultiLabelConfig.separator``, and an empty string means no labels.
"""

import dataclasses
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Bool, Float, Float32, Float64, Int, Int64

from afjax.config.tasks import MultiLabelConfig, TaskConfig
from afjax.data.columns import Columns, is_null, no_labels
from afjax.data.labels import class_labels, find_label_names, note_indices
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import MultiLabelRows
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError
from afjax.tasks.kind import KindSpec, KindText, LabelReading
from afjax.tasks.predictions import Predictions
from afjax.tasks.texts import columns_from_lists, given_names, pick_texts, read_columns, text_forms, tokenize_texts
from afjax.tasks.weighted_scores import Weighted, label_set_f1, label_set_scores, unweighted
from afjax.trees import AnyArray

# Candidate thresholds for tuning.
THRESHOLDS = tuple(round(0.01 * number, 2) for number in range(1, 100))


def losses(logits: Float[AnyArray, "batch num_labels"], batch: Mapping[str, Any]) -> Float[Array, "batch"]:
    """Computes each row's binary cross-entropy, averaged over labels."""
    return optax.sigmoid_binary_cross_entropy(logits, batch["labels"]).mean(-1)


def padded_losses(
    logits: Float[AnyArray, "batch outputs"], batch: Mapping[str, Any], num_outputs: Int[AnyArray, ""]
) -> Float[Array, "batch"]:
    """Computes losses from padded logits; see ``KindSpec.padded_losses``."""
    each = optax.sigmoid_binary_cross_entropy(logits, batch["labels"])
    has_output = jnp.arange(logits.shape[-1])[None] < num_outputs
    return jnp.where(has_output, each, 0).sum(-1) / num_outputs


def output_bias(labels: Float[np.ndarray, "rows num_labels"]) -> Float32[np.ndarray, "num_labels"]:
    """Computes the initial output bias: the log-odds of each label's frequency.

    Frequencies are smoothed by adding one row with every label and one with none. With a bias of zero, each label would
    start with a probability of 0.5. If rows have few labels out of many, the gradient would then push down the logits
    of all rows, and a trained trunk would collapse to mapping all rows to the same vector.
    """
    from scipy import special

    shares = (labels.sum(0, dtype=np.float64) + 1) / (len(labels) + 2)
    return special.logit(shares).astype(np.float32)


def read(task: TaskConfig, source: SplitSource, labels: LabelReading) -> MultiLabelRows:
    """Loads rows from a source; see ``KindSpec.read``."""
    columns = read_columns(task, source, labeled=labels.required)
    given = given_names(task, source, labels)
    names, separator = given.names, task.multi_label.separator
    if not (any_labels(columns) if labels.required is None else labels.required):
        return MultiLabelRows(columns.text_a, columns.text_b, None, names, ids=columns.ids)
    names = names or find_names(read_columns(task, labels.train()) if labels.train else columns, separator)
    if given.of_head:
        note_indices(split_labels(columns, separator)[0], names)
    return make_rows(columns, names, separator, listed=given.listed)


_NAMES = (
    "A row's labels are its names or indices, not a 0 or 1 for every label of the task; list the names of the labels "
    "that are 1."
)


def any_labels(columns: Columns) -> bool:
    """Whether any row has a label."""
    # Non-blank strings, non-empty lists and integers have labels.
    values = (value for value in columns.labels or () if not is_null(value))
    return any(len(value.strip()) if isinstance(value, str) else np.size(value) for value in values)


def from_lists(texts: list[Any], labels: list[Any] | None, label_names: tuple[str, ...]) -> MultiLabelRows:
    """Builds rows from lists; see ``KindSpec.from_lists``.

    A row's label is a list of names.
    """
    columns, separator = columns_from_lists(texts, labels), MultiLabelConfig().separator
    if labels is None:
        return MultiLabelRows(columns.text_a, columns.text_b, None, label_names)
    names = label_names or find_names(columns, separator)
    return make_rows(columns, names, separator, listed=bool(label_names))


def find_names(columns: Columns, separator: str) -> tuple[str, ...]:
    """Collects and sorts a split's label names.

    See :func:`afjax.data.labels.find_label_names`.

    Raises:
      UserError: The label column is missing, a row's value is not a list, a string or an integer, or no row has a
        label.
    """
    single_labels, _ = split_labels(columns, separator)
    if not single_labels.labels:
        raise UserError(f"No row of {columns.source} has a label; list the label names in the task's labels.")
    return find_label_names(single_labels)


def split_labels(columns: Columns, separator: str) -> tuple[Columns, Int64[np.ndarray, "entries"]]:
    """Flattens the rows' labels to one entry per label.

    Args:
      columns: The split. A row's value is a list of labels, a string of separated labels, or one integer.
      separator: The separator.

    Returns:
      Columns with one entry per label and no texts, and each entry's row index.

    Raises:
      UserError: The label column is missing; a row's value is not a list, a string or an integer; all strings are
        printed lists; or the lists look like a 0 or 1 for every label of the task.
    """
    if columns.labels is None:
        raise no_labels(columns)
    places: list[str] = []
    single_labels: list[Any] = []
    row_of: list[int] = []
    orders: set[tuple[str, ...]] = set()
    for row, value in enumerate(columns.labels):
        row_labels: list[Any]
        if isinstance(value, str):
            row_labels = [label.strip() for label in value.split(separator)] if value.strip() else []
            if not all(row_labels):
                raise UserError(
                    f"{columns.places[row]} has an empty label in {shorten(value)}; labels are separated by "
                    f'"{separator}", so remove the additional one.'
                )
        elif isinstance(value, (list, tuple, np.ndarray)):
            row_labels = list(value)
        elif isinstance(value, numbers.Integral) and not isinstance(value, bool):
            row_labels = [value]
        else:
            raise UserError(
                f"{columns.places[row]} has the labels {shorten(value)}; they must be a list of labels (may be empty), "
                f'or a string of labels separated by "{separator}".'
            )
        indices = [str(label) for label in row_labels if str(label).isdecimal()]
        repeated = [f"{index} more than once" for index in indices if indices.count(index) > 1]
        truth_values = [f"the truth value {label}" for label in row_labels if isinstance(label, bool | np.bool_)]
        if problems := repeated + truth_values:
            place = columns.places[row]
            raise UserError(f"{place} has the labels {shorten(value)}, which contain {problems[0]}. {_NAMES}")
        orders.add(tuple(indices))
        places += [columns.places[row]] * len(row_labels)
        single_labels += row_labels
        row_of += [row] * len(row_labels)
    texts = [value.strip() for value in columns.labels if isinstance(value, str) and value.strip()]
    if texts and all(re.fullmatch(r"\[.*['\",].*\]|\[\]", text) for text in texts):
        raise UserError(
            f"The labels of {columns.source} are printed lists, such as {shorten(texts[0])}. Write labels separated by "
            f'"{separator}" without brackets and quotes, or use a JSONL file with lists.'
        )
    if {("0", "1"), ("1", "0")} <= orders <= {("0", "1"), ("1", "0"), ()}:
        raise UserError(f"All rows of {columns.source} have the labels 0 and 1, in different orders. {_NAMES}")
    split = Columns(columns.source, places, [], None, single_labels, names=columns.names, label=columns.label)
    return split, np.array(row_of, np.int64)


def make_rows(columns: Columns, names: tuple[str, ...], separator: str, *, listed: bool) -> MultiLabelRows:
    """Validates labels and builds rows.

    If ``listed`` is true, integer labels can be indices into ``names``.
    """
    single_labels, row_of = split_labels(columns, separator)
    labels = np.zeros((len(columns.text_a), len(names)), np.float32)
    labels[row_of, class_labels(single_labels, names, listed=listed)] = 1
    return MultiLabelRows(columns.text_a, columns.text_b, labels, names, ids=columns.ids)


def predict(
    logits: Float[np.ndarray, "rows num_labels"], data: TokenizedRows, task: TaskConfig, names: Sequence[str]
) -> Predictions:
    """Predicts the labels whose probability is at least the task's threshold."""
    probabilities = sigmoid(logits)
    chosen = probabilities >= np.float32(task.multi_label.threshold)
    all_names = [names[index] if index < len(names) else str(index) for index in range(logits.shape[-1])]
    labels = [[all_names[index] for index in np.flatnonzero(row)] for row in chosen]
    # The probability that all labels are predicted correctly, assuming that they are independent.
    confidences = np.where(chosen, probabilities, 1 - probabilities).prod(-1)
    return Predictions(logits, probabilities, labels, confidences=confidences)


def sigmoid(logits: Float[np.ndarray, "rows num_labels"]) -> Float32[np.ndarray, "rows num_labels"]:
    """Computes label probabilities."""
    from scipy import special

    return np.asarray(special.expit(logits), np.float32)


def predicted_sets(predictions: Predictions, task: TaskConfig) -> Bool[np.ndarray, "rows num_labels"]:
    """Returns a mask of the predicted labels."""
    return predictions.probabilities >= np.float32(task.multi_label.threshold)


def errors(
    predictions: Predictions, labels: Float[np.ndarray, "rows num_labels"], task: TaskConfig
) -> Float64[np.ndarray, "rows"]:
    """Returns 1 for rows with a wrong or missing label and 0 for the others."""
    return (predicted_sets(predictions, task) != (labels > 0)).any(-1).astype(np.float64)


def weighted(predictions: Predictions, labels: Float[np.ndarray, "rows num_labels"], task: TaskConfig) -> Weighted:
    """Prepares the scores as a function of row weights."""
    return label_set_scores(predictions.logits, predicted_sets(predictions, task), labels)


def best_threshold(
    logits: Float[np.ndarray, "rows num_labels"], labels: Float[np.ndarray, "rows num_labels"], metric: str
) -> float:
    """Finds the threshold with the best score.

    Ties are broken in favor of the threshold closest to 0.5.

    Args:
      logits: One column per label.
      labels: 1 for true labels and 0 for others.
      metric: The task's main metric. Metrics other than ``macro_f1`` are replaced by micro F1.
    """
    chosen_metric = metric if metric == "macro_f1" else "micro_f1"
    probabilities = sigmoid(logits)

    def quality(threshold: float) -> tuple[float, float]:
        f1 = label_set_f1(labels > 0, probabilities >= np.float32(threshold))
        return unweighted(f1, len(labels))[chosen_metric], -abs(threshold - 0.5)

    return max(THRESHOLDS, key=quality)


def with_best_threshold(
    task: TaskConfig, logits: Float[np.ndarray, "rows num_labels"], labels: Float[np.ndarray, "rows num_labels"]
) -> TaskConfig:
    """Tunes the task's threshold for its main metric and returns the updated task."""
    threshold = best_threshold(logits, labels, task.main_metric)
    return dataclasses.replace(task, multi_label=dataclasses.replace(task.multi_label, threshold=threshold))


KIND = KindSpec(
    name="multi_label",
    num_outputs=len,
    losses=losses,
    padded_losses=padded_losses,
    label_axes=("outputs",),
    label_dtype="float32",
    output_bias=output_bias,
    named_outputs=True,
    metrics=("micro_f1", "macro_f1", "average_precision"),
    read=read,
    from_lists=from_lists,
    forms=text_forms,
    pick=pick_texts,
    tokenize=tokenize_texts,
    predict=predict,
    errors=errors,
    weighted=weighted,
    text=KindText(
        pipeline_tag="text-classification",
        logits="one per label, in label order; a label's probability is the sigmoid of its logit",
        label="labels",
    ),
)
