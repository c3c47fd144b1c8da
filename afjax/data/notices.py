"""Notices about possible mistakes in data and results.

Notices report blank texts, implausible labels, rows in both train and dev, and an accuracy that does not beat the
majority-class baseline. A notice is not an error, because each of these can be intended.
"""

import difflib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.data.columns import is_visible
from afjax.data.sources.official import OFFICIAL
from afjax.data.splits import AnyRows, MultiLabelRows, Rows, SpanRows, TagRows, row_texts
from afjax.data.tags import num_unmarked
from afjax.display.words import counted

# In a split with fewer rows, many distinct labels are plausible. A label with at least this many rows counts as
# frequent.
_MANY_ROWS = 20
_NULLS = ("nan", "na", "n/a", "null", "<na>")
# A label with at most this many rows may be a misspelling of a frequent label.
_FEW_ROWS = 2
# Label names are not compared if there are more pairs of them. The comparison takes about 10 microseconds per pair.
_MOST_PAIRS = 50_000


def data_notices(task: TaskConfig, splits: Mapping[str, AnyRows]) -> list[str]:
    """Checks a task's data for possible mistakes.

    Args:
      task: The task.
      splits: The task's splits by name.

    Returns:
      One notice per possible mistake.
    """
    notices = [
        notice
        for split, rows in splits.items()
        for name in [f"{task.name}'s {split}"]
        for notice in (
            blank_texts(name, rows),
            many_labels(name, rows),
            misspelled_label(name, rows),
            null_label(name, rows),
            unmarked_entities(name, rows),
        )
    ]
    notices.append(benchmark_metric(task))
    if "train" in splits and "dev" in splits:
        notices.append(rows_in_both(task.name, splits["train"], splits["dev"]))
    return [notice for notice in notices if notice]


def benchmark_metric(task: TaskConfig) -> str:
    """Checks whether a task with a benchmark's name has another metric.

    Returns a notice, or an empty string.
    """
    benchmark = OFFICIAL.get(task.name)
    if benchmark is None or task.metric or benchmark.kind != task.kind or benchmark.metric in ("", task.main_metric):
        return ""
    return (
        f"{task.name} is the name of a benchmark task with the metric {benchmark.metric}. This run uses "
        f'{task.main_metric}; to change that, set the task\'s metric to "{benchmark.metric}".'
    )


def blank_texts(name: str, rows: AnyRows) -> str:
    """Checks a split for blank texts, which have no visible character.

    Returns a notice, or an empty string.

    Args:
      name: The split's name.
      rows: The split.
    """
    return blank_rows_notice(name, blank_rows(rows), len(rows))


def blank_rows(rows: AnyRows) -> list[int]:
    """Finds the indices of rows with a blank text."""
    return [number for number, texts in enumerate(row_texts(rows, choices=False)) if not all(map(is_visible, texts))]


def blank_rows_notice(name: str, blank: Sequence[int], num_rows: int) -> str:
    """Formats a notice about rows with a blank text. Empty if there are none.

    Args:
      name: The name of the rows, such as ``rte's train``.
      blank: Indices of the rows with a blank text, in ascending order.
      num_rows: Total number of rows.
    """
    if not blank:
        return ""
    count = "1 row has" if len(blank) == 1 else f"{len(blank)} rows have"
    return f"Of the {counted(num_rows, 'row')} of {name}, {count} an empty text. The first is row {blank[0] + 1}."


def many_labels(name: str, rows: AnyRows) -> str:
    """Checks whether a classification split has suspiciously many labels.

    Returns a notice, or an empty string. There is a notice if there are at least three distinct labels and every row
    has a different label or, in splits with at least ``_MANY_ROWS`` rows, there are more than half as many labels as
    rows. The label column may then contain ids instead of labels.

    Args:
      name: The split's name.
      rows: The split.
    """
    if not isinstance(rows, Rows) or rows.labels is None or not rows.label_names:
        return ""
    distinct = len(np.unique(rows.labels))
    if distinct < 3 or (distinct < len(rows) and (len(rows) < _MANY_ROWS or 2 * distinct <= len(rows))):
        return ""
    advice = "check that the label column is correct"
    if all(map(_is_number, rows.label_names)):
        advice += '. To predict numbers, set the task\'s kind to "regression"'
    return f"The {len(rows)} rows of {name} have {distinct} different labels; {advice}."


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


def null_label(name: str, rows: AnyRows) -> str:
    """Checks for a label that other programs write for missing values.

    Returns a notice, or an empty string.

    Args:
      name: The split's name.
      rows: The split.
    """
    if not isinstance(rows, Rows) or isinstance(rows, MultiLabelRows) or rows.labels is None:
        return ""
    for number, label in enumerate(rows.label_names):
        if label.casefold() in _NULLS and (count := int((rows.labels == number).sum())):
            return (
                f'{counted(count, "row")} of {name} {"has" if count == 1 else "have"} the label "{label}", which is '
                "used as a class. If it stands for a missing label, drop these rows."
            )
    return ""


def misspelled_label(name: str, rows: AnyRows) -> str:
    """Checks for a rare label whose name resembles a frequent one.

    Returns a notice, or an empty string.

    Args:
      name: The split's name.
      rows: The split.
    """
    if not isinstance(rows, Rows) or isinstance(rows, MultiLabelRows) or rows.labels is None or not rows.label_names:
        return ""
    counts = np.bincount(rows.labels.astype(int), minlength=len(rows.label_names))
    frequent = [label for label, count in zip(rows.label_names, counts, strict=True) if count >= _MANY_ROWS]
    # Every rare label is compared with every frequent one.
    if len(frequent) * np.count_nonzero((counts > 0) & (counts <= _FEW_ROWS)) > _MOST_PAIRS:
        return ""
    for number, count in enumerate(counts):
        if not 0 < count <= _FEW_ROWS:
            continue
        label = rows.label_names[number]
        similar_names = [name for name in frequent if _may_be_misspelled(label, name)]
        for similar in difflib.get_close_matches(label, similar_names, n=1, cutoff=0.8):
            first = int(np.flatnonzero(rows.labels == number)[0]) + 1
            few = f"{counted(int(count), 'row')} of {name} {'has' if count == 1 else 'have'} it"
            return (
                f'Is the label "{label}" misspelled? {few} (the first is row {first}), and '
                f'{counts[rows.label_names.index(similar)]} have "{similar}".'
            )
    return ""


def _may_be_misspelled(rare: str, frequent: str) -> bool:
    """Returns whether a rare label's name can be a misspelling of a frequent one.

    The rare label is not a misspelling if the names differ only in digits (class_11 and class_12), or if one name
    contains the other and is longer by more than one character (not_entailment and entailment).
    """
    bare, bare_frequent = (re.sub(r"\d", "", name) for name in (rare, frequent))
    contained = rare in frequent or frequent in rare
    return bare != bare_frequent and not (contained and abs(len(rare) - len(frequent)) > 1)


def unmarked_entities(name: str, rows: AnyRows) -> str:
    """Checks for entities that begin with an ``I-`` or ``E-`` tag.

    Returns a notice, or an empty string.

    Args:
      name: The split's name.
      rows: The split.
    """
    if not isinstance(rows, TagRows) or rows.labels is None:
        return ""
    count = num_unmarked(rows.labels)
    if not count:
        return ""
    entities = "1 entity begins" if count == 1 else f"{count} entities begin"
    return f"{entities} with an I- or E- tag in the rows of {name}. Such entities are parsed as in IOB1 and seqeval."


def rows_in_both(name: str, train: AnyRows, dev: AnyRows) -> str:
    """Checks for rows with the same texts in train and dev.

    Returns a notice, or an empty string.

    Args:
      name: The task's name.
      train, dev: The task's splits.
    """
    labels_of: dict[Any, set[Any]] = {}
    for texts, label in zip(row_texts(train), _labels(train), strict=True):
        labels_of.setdefault(texts, set()).add(label)
    dev_rows = zip(row_texts(dev), _labels(dev), strict=True)
    shared = [(texts, label) for texts, label in dev_rows if texts in labels_of]
    if not shared:
        return ""
    num_same = sum(label in labels_of[texts] for texts, label in shared)
    in_dev = {texts for texts, _ in shared}
    num_train = sum(texts in in_dev for texts in row_texts(train))
    return (
        f"{num_train} of {name}'s {len(train)} train rows also occur in dev. They match {len(shared)} of the "
        f"{len(dev)} dev rows, {num_same} of them with the same label."
    )


def no_better_than_majority(name: str, rows: AnyRows, metrics: Mapping[str, float]) -> str:
    """Checks whether the accuracy beats the majority-class baseline.

    Returns a notice if it does not, or else an empty string. For multiple choice, the class is the index of the correct
    choice.

    Args:
      name: The name of the model's head.
      rows: The labeled rows on which the model was evaluated.
      metrics: The scores by metric.
    """
    if isinstance(rows, SpanRows | TagRows) or rows.labels is None or "accuracy" not in metrics:
        return ""
    (largest, count), *_ = Counter(rows.labels.tolist()).most_common(1)
    # Compare numbers of rows, because the two fractions may differ by rounding errors.
    if round(metrics["accuracy"] * len(rows)) > count:
        return ""
    label = rows.label_names[largest] if largest < len(rows.label_names) else str(largest)
    return (
        f"The accuracy of {name}, {metrics['accuracy']:.4f}, does not beat the majority-class baseline of "
        f'{count / len(rows):.4f}: {count} of {len(rows)} rows {"has" if count == 1 else "have"} the label "{label}".'
    )


def _labels(rows: AnyRows) -> list[Any]:
    """Returns a hashable label for each row.

    If the split is unlabeled, every label is None.
    """
    if rows.labels is None:
        return [None] * len(rows)
    return [rows.label_of(row) for row in range(len(rows))] if isinstance(rows, MultiLabelRows) else list(rows.labels)
