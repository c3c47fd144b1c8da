"""Collects, orders and indexes class labels.

Labels are never silently reinterpreted:

- Labels are matched exactly, except the booleans "True" and "true". Labels that differ only in spelling ("few" and
  "few ", composed and decomposed accents, "1" and "1.0") raise an error unless the task lists both as label names.
- An integer is accepted as an index only if the task or its source lists the names in order, and if no name could be
  mistaken for an index (:func:`indices_are_clear`).
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.data.columns import Columns, check_text, is_null, is_visible, is_visible_or_blank, no_labels
from afjax.data.sources.files import shorten
from afjax.display.terminal import print_line
from afjax.display.words import counted
from afjax.errors import UserError, did_you_mean
from afjax.storage.json_files import read_existing_json

_NUMBERED = re.compile(r"[^\W\d]*([0-9]{1,9})[^\W\d]*")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")

# Maximum number of label names in an error message.
_SHOWN = 20


def read_label_names(path: Path) -> tuple[str, ...]:
    """Loads ``labels.json``, a list of label names in index order."""
    advice = "it must be a JSON list of label names"
    names = read_existing_json(path, expected=list, advice=advice)
    if not all(isinstance(name, str) for name in names):
        raise UserError(f"{path} contains {shorten(names)}; {advice}.")
    return check_label_names(tuple(names), str(path))


def check_label_names(names: tuple[str, ...], place: str) -> tuple[str, ...]:
    """Checks label names and returns them unchanged.

    Raises:
      UserError: There are fewer than two names, or a name is repeated, blank or not valid Unicode.
    """
    counts = Counter(names)
    repeated = [name for name in names if counts[name] > 1]
    if repeated or len(names) < 2 or not all(isinstance(name, str) and is_visible(name) for name in names):
        problem = f'names "{repeated[0]}" twice' if repeated else f"has the label names {shorten(list(names))}"
        raise UserError(f"{place} {problem}; label names must be two or more distinct strings that are not blank.")
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(f"{place} has the label name {name!r}, which is not valid Unicode; rename it.") from None
    return names


def find_label_names(columns: Columns) -> tuple[str, ...]:
    """Collects the label names in a split, in sorted order.

    The order is numerical if all names are integers, and alphabetical otherwise.

    Raises:
      UserError: There are no labels, a row's label is missing or neither a string nor an integer, a name is not valid
        Unicode, or two names differ only in spelling.
    """
    if columns.labels is None:
        raise no_labels(columns)
    first_rows: dict[str, int] = {}
    counts: Counter[str] = Counter()
    for row in range(len(columns.labels)):
        name = label_name(columns, row)
        first_rows.setdefault(name, row)
        counts[name] += 1
    spellings: dict[object, str] = {}
    for name, row in first_rows.items():
        check_text(columns.places[row], name, "label")
        other = spellings.setdefault(spelling(name), name)
        if other != name:
            raise UserError(
                f"{columns.places[row]} has the label {_escaped(name)} ({_rows(counts[name])}), and "
                f"{columns.places[first_rows[other]]} has {_escaped(other)} ({_rows(counts[other])}). They differ only "
                "in spelling but would become two classes. Use one spelling, or, if they are two classes, list both "
                "as label names (in labels.json or the task's labels)."
            )
    if all(map(_is_integer, counts)):
        return tuple(sorted(counts, key=Decimal))
    return tuple(sorted(counts))


def name_classes(
    task: TaskConfig, rows: Iterable[tuple[str, dict[str, Any]]], names: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Replaces class indices in a published dataset with label names.

    The index -1 (no label) is replaced with None. Unlike indices, names stay unambiguous if they are themselves numbers
    ("1" to "5"), or if the task or a different split orders them differently. If the task lists as many names as the
    dataset and the two lists have none in common, the task's names are used: by spelling ("False" for "false"), or in
    order if no spelling matches. For regression, labels are kept as numbers, and only -1 is replaced.

    Args:
      task: The task, which determines the label column.
      rows: Pairs of a row's name in error messages and the row. Labels are indices or lists of indices.
      names: The dataset's label names. If empty, rows are passed through unchanged.

    Raises:
      UserError: A row's label index is out of range, or some of the task's names match the dataset's in spelling,
        but not in order.
    """
    chosen = _chosen_names(task.labels, names)
    column = task.label_column
    for place, row in rows:
        if chosen and column in row:
            row = {**row, column: _class_name(place, row[column], chosen, as_number=task.kind == "regression")}
        yield place, row


def _chosen_names(listed: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """Chooses each class's name: the task's (``listed``) or the dataset's (``names``); see :func:`name_classes`."""
    if len(listed) != len(names) or set(listed) & set(names):
        return names
    by_spelling = {spelling(name): name for name in listed}
    matches = [by_spelling.get(spelling(name)) for name in names]
    if None not in matches and len(set(matches)) == len(names):
        return [name for name in matches if name is not None]
    # Names that only differ in spelling must be in the same places, so that the order is clear.
    if any(match not in (None, name) for match, name in zip(matches, listed, strict=True)):
        raise UserError(
            f"The dataset has the label names {', '.join(names[:_SHOWN])}, but the task lists "
            f"{', '.join(listed[:_SHOWN])}. Some differ only in spelling; use the dataset's names."
        )
    return listed


def _class_name(place: str, label: Any, names: Sequence[str], *, as_number: bool) -> Any:
    if isinstance(label, list):
        return [_class_name(place, index, names, as_number=as_number) for index in label]
    if isinstance(label, bool) or not isinstance(label, int):
        return label
    if label == -1:
        return None
    if not 0 <= label < len(names):
        raise UserError(
            f"{place} has the label {label}, but the dataset has {len(names)} label names "
            f"({', '.join(names[:_SHOWN])}); correct the dataset."
        )
    return label if as_number else names[label]


def class_labels(columns: Columns, names: tuple[str, ...], *, listed: bool) -> np.ndarray:
    """Converts labels to class indices.

    Args:
      columns: The split.
      names: The label names, in index order.
      listed: Whether the task or its source lists the names in this order. Only then can a label be an index; if the
        names were collected from the data, their order is arbitrary.

    Returns:
      int32 [rows], indices into ``names``.

    Raises:
      UserError: There are no labels, or a row's label is missing or unknown.
    """
    if columns.labels is None:
        raise no_labels(columns)
    has_indices = listed and indices_are_clear(names)
    index_of = {str(index): index for index in range(len(names))} if has_indices else {}
    if {name.lower() for name in names} == {"false", "true"}:
        # Booleans become "true" and "false". pandas writes them as "True" and "False", R as "TRUE" and "FALSE".
        index_of |= {
            text: index for index, name in enumerate(names) for text in (name.lower(), name.capitalize(), name.upper())
        }
    index_of |= {name: index for index, name in enumerate(names)}
    indices = np.empty(len(columns.labels), np.int32)
    for row in range(len(columns.labels)):
        name = label_name(columns, row)
        if name not in index_of:
            raise UserError(
                f"{columns.places[row]} has {_unknown_label(name, names, listed=listed, has_indices=has_indices)}"
            )
        indices[row] = index_of[name]
    return indices


def note_indices(columns: Columns, names: Sequence[str]) -> None:
    """Prints which labels the integers in a split stand for, if it has integers instead of names.

    Args:
      columns: The split.
      names: The label names, in index order.
    """
    indices = {str(index) for index in range(len(names))}
    if indices_are_clear(names) and any(str(label) in indices for label in columns.labels or ()):
        listing = ", ".join(f"{index} = {name}" for index, name in enumerate(names[:_SHOWN]))
        print_line(
            f"Note: The integers in {columns.source} are read as the indices of the head's labels: {listing}"
            f"{', ...' if len(names) > _SHOWN else ''}."
        )


def indices_are_clear(names: Sequence[str]) -> bool:
    """Whether an integer label can only be the index of a name.

    An integer is ambiguous if a name is itself a number: for "1.0", "2.0" and "3.0", the index 1 refers to "2.0". It is
    also ambiguous if a name contains the index of a different one: for "1 star", "2 stars" and "3 stars", the index 1
    refers to "2 stars". The same holds for "Q1", "Q2" and "Q3".

    Example:
      >>> indices_are_clear(["no", "yes"]), indices_are_clear(["LABEL_0", "LABEL_1"])
      (True, True)
      >>> [indices_are_clear(names) for names in (["1.0", "2.0"], ["1 star", "2 stars"], ["Q1", "Q2"])]
      [False, False, False]
    """
    if any(isinstance(spelling(name), Decimal) for name in names):
        return False
    indices = {str(index) for index in range(len(names))}
    # "Q1" and "1st" may be numbered, "h1n1" is not.
    words = (map(_NUMBERED.fullmatch, re.split(r"[\W_]+", name)) for name in names)
    mentioned = ({str(int(match[1])) for match in matches if match} for matches in words)
    return all(mentions & indices <= {str(index)} for index, mentions in enumerate(mentioned))


def label_name(columns: Columns, row: int) -> str:
    """Converts a row's label to a string. Booleans become "true" and "false".

    Raises:
      UserError: The label is missing, or is not a string, integer or boolean.
    """
    assert columns.labels is not None
    label = columns.labels[row]
    if isinstance(label, str) and is_visible(label):
        return label
    if isinstance(label, bool):
        return str(label).lower()
    if isinstance(label, (int, np.integer)) and int(label).bit_length() < 4096:  # str() limits the number of digits.
        return str(label)
    if is_null(label) or isinstance(label, str):
        raise UserError(f"{columns.places[row]} has no label; add one or drop the row.")
    # pandas stores integers as floats if some are missing.
    is_whole = isinstance(label, float | np.floating) and float(label).is_integer()
    advice = " Drop the rows without a label, and convert the column to integers." if is_whole else ""
    raise UserError(
        f"{columns.places[row]} has the label {shorten(label)}; a class label must be a name or an integer "
        f"index.{advice}"
    )


@functools.lru_cache(maxsize=4096)
def spelling(name: str) -> str | Decimal:
    """Normalizes a label name, so that different spellings of it compare equal.

    Numbers are converted to their value. Other names are NFKC-normalized and case-folded, with invisible characters
    removed and white space collapsed.

    Example:
      >>> spelling("Few ") == spelling("few"), spelling("1") == spelling("1.0"), spelling("a") == spelling("b")
      (True, True, False)
    """
    composed = unicodedata.normalize("NFKC", "".join(filter(is_visible_or_blank, unicodedata.normalize("NFKC", name))))
    letters = " ".join(unicodedata.normalize("NFKC", composed.casefold()).split())
    if _NUMBER.fullmatch(letters):
        try:
            return Decimal(letters)
        except InvalidOperation:  # The exponent is out of range.
            pass
    return letters


def _is_integer(name: str) -> bool:
    return name.removeprefix("-").isdecimal()


def _unknown_label(name: str, names: Sequence[str], *, listed: bool, has_indices: bool) -> str:
    """Formats the end of an error message about an unknown label."""
    alike = [other for other in names if spelling(other) == spelling(name)]
    listing = f"{', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
    if alike:
        return (
            f"the label {_escaped(name)}, but the labels ({listing}) include {_escaped(alike[0])}. They differ only in "
            "spelling; use the same spelling for both."
        )
    text = f"the label {shorten(name)}; the labels are {listing}"
    if has_indices:
        text += f", or their indices 0 to {len(names) - 1}"
    text += f".{did_you_mean(name, names)}"
    if _is_integer(name) and not has_indices:
        text += (
            " Integers are not interpreted as indices here, because some of the names contain numbers."
            if listed
            else " Integers are interpreted as indices only if the label names are listed (in labels.json or the "
            "task's labels)."
        )
    return text


def _rows(count: int) -> str:
    return counted(count, "row")


def _escaped(name: str) -> str:
    """Quotes a name to show its exact spelling.

    Invisible and non-ASCII characters are escaped.
    """
    text = ascii(name)
    return text if len(text) <= 60 else f"{text[:57]}..."
