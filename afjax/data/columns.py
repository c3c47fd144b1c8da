"""Selects and validates the text, label and id columns of a split.

Errors name the file and line.
"""

import math
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from afjax.data.sources.files import shorten
from afjax.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Columns:
    """The columns of one split, with labels in their original form.

    Attributes:
      source: The split's name in error messages, such as its file or TFDS name.
      places: Each row's name in error messages, such as its file and line.
      text_a: The texts, or the first texts of pairs.
      text_b: The second texts of pairs; None for single texts.
      labels: The labels; None if there is no label column.
      ids: The values of the ``id`` column; None if there is no such column.
      names: All column names of the first row; empty if the data are lists.
      label: The label column's name, even if the column is missing.
    """

    source: str
    places: list[str]
    text_a: list[str]
    text_b: list[str] | None
    labels: list[Any] | None
    ids: list[str] | None = None
    names: tuple[str, ...] = ()
    label: str = "label"


# Default text columns of JSONL, TSV and CSV files, in order of preference.
TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (("text_a", "text_b"), ("text",))

# Default text columns of published datasets, in order of preference. Pairs come before single texts.
PUBLISHED_TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("text_a", "text_b"),
    ("sentence1", "sentence2"),
    ("sentence_A", "sentence_B"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("text",),
    ("sentence",),
)


def first_row(
    source: str, rows: Iterable[tuple[str, dict[str, Any]]]
) -> tuple[str, dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]:
    """Peeks at the first row.

    Returns the row's name, the row, and an iterator over all rows including the first.
    """
    iterator = iter(rows)
    try:
        place, first = next(iterator)
    except StopIteration:
        raise UserError(f"{source} has no rows; a split needs at least one.") from None
    return place, first, chain([(place, first)], iterator)


def read_rows(
    source: str,
    peeked: tuple[str, dict[str, Any], Iterable[tuple[str, dict[str, Any]]]],
    label: str,
    read: Callable[[str, dict[str, Any]], Any],
    *,
    labeled: bool | None,
    read_label: Callable[[str, dict[str, Any], str], Any] | None = None,
) -> tuple[list[str], list[Any], list[Any] | None, list[str] | None]:
    """Reads the places, inputs, labels and ids of a split's rows.

    Args:
      source: The split's name in error messages.
      peeked: The result of :func:`first_row`.
      label: The label column.
      read: Reads a row's input, given the row's name in error messages and its columns.
      labeled: Whether labels are required. If False, they are ignored. If None, they are read if the first row has one.
      read_label: Reads a row's label; also takes the label column. None to use the column's value.

    Returns:
      The rows' names in error messages, the results of ``read``, the labels, and the ids. Labels and ids that are not
      read are None.
    """
    place, first, rows = peeked
    if labeled and label not in first:
        raise missing_column(place, label, first, "label")
    places: list[str] = []
    inputs: list[Any] = []
    labels: list[Any] | None = [] if label in first and labeled is not False else None
    ids: list[str] | None = [] if "id" in first else None
    for place, row in rows:
        places.append(place)
        inputs.append(read(place, row))
        if labels is not None:
            labels.append((read_label or value_of)(place, row, label))
        elif labeled is None:
            check_absent(place, row, label, source)
        if ids is not None:
            ids.append(id_of(place, row))
    check_ids(places, ids)
    return places, inputs, labels, ids


def id_of(place: str, row: dict[str, Any]) -> str:
    value = value_of(place, row, "id")
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise UserError(f'{place} has {shorten(value)} in the column "id"; it must be a string or an integer.')
    return str(value)


def check_ids(places: Sequence[str], ids: Sequence[str] | None) -> None:
    """Raises UserError if two rows have the same id."""
    if ids is None or len(set(ids)) == len(ids):
        return
    seen: dict[str, str] = {}
    for place, row_id in zip(places, ids, strict=True):
        if row_id in seen:
            raise UserError(
                f"{place} has the id {shorten(row_id)}, which {seen[row_id]} already uses; drop one of the rows."
            )
        seen[row_id] = place


def value_of(place: str, row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise missing_column(place, name, row)
    return row[name]


def check_absent(place: str, row: dict[str, Any], name: str, source: str) -> None:
    """Raises UserError if a row has a column that the first row of its split lacks."""
    if name in row:
        raise UserError(
            f'{place} has the column "{name}", but the first row of {source} does not; either all rows or none must '
            "have it."
        )


def missing_column(place: str, name: str, columns: Iterable[Any], setting: str = "", *, flag: str = "") -> UserError:
    """Creates the error for a missing column.

    Args:
      place: The row's file and line.
      name: The missing column.
      columns: The columns that exist.
      setting: The task setting that selects this column, to mention in the message. Empty to omit it.
      flag: The command-line flag that selects this column, mentioned instead of ``setting``.
    """
    names = list(map(str, columns))
    setting_name = flag or (f'the task\'s "{setting}" setting' if setting else "the task's settings")
    # Do not suggest "text_a" or "text_b" for a missing "text": they belong to a pair and are not misspellings.
    candidates = [column for column in names if not (name == "text" and column in ("text_a", "text_b"))]
    return UserError(
        f'{place} has no column "{name}"; its columns are {listing(names)}. Add it, or set a different column in '
        f"{setting_name}."
        f"{did_you_mean(name, candidates)}"
    )


def listing(columns: Iterable[Any]) -> str:
    """Formats column names for an error message.

    Long names are truncated, because the "names" of a file without a header are the texts of its first row.
    """
    names = [name if len(name) <= 40 else f"{name[:37]}..." for name in map(str, columns)]
    return f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}" or "no columns"


def text_of(place: str, row: dict[str, Any], name: str) -> str:
    text = value_of(place, row, name)
    if not isinstance(text, str):
        raise UserError(
            f'{place} has {shorten(text)} in the text column "{name}" (its columns are {listing(row)}); it must be a '
            "string."
        )
    check_text(place, text)
    return text


def check_text(place: str, text: str, name: str = "text") -> None:
    """Raises UserError for unpaired surrogates in a text, a label or a tag (``name``).

    JSON can represent them, but tokenizers do not accept them, and they cannot be written as UTF-8.
    """
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{place} has a {name} with an unpaired surrogate; correct it or drop the row.") from error


def number_labels(columns: Columns) -> np.ndarray:
    """Parses the labels of a regression task, float32 [rows].

    Raises:
      UserError: There are no labels, or a row's label is missing, not a number or not finite.
    """
    if columns.labels is None:
        raise no_labels(columns)
    numbers = np.empty(len(columns.labels), np.float32)
    for row, label in enumerate(columns.labels):
        try:
            # float() accepts Python's digit separators ("1_0"), which are not valid in a data file.
            number = math.nan if isinstance(label, bool) or "_" in str(label) else float(label)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        # A number outside float32's range would become infinite when assigned.
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise UserError(
                f"{columns.places[row]} has the label {shorten(label)}; it must be a finite number in the range of "
                "float32."
            )
        numbers[row] = number
    return numbers


def is_missing(label: Any) -> bool:
    """Whether a label is a placeholder for a missing label.

    Placeholders are null, NaN, pandas' missing values, an empty string, and -1 or -1.0 (as in STS-B's test split), as
    a number or a string.
    """
    return is_null(label) or (isinstance(label, (str, int, float)) and label in ("", "-1", "-1.0", -1))


def is_null(value: Any) -> bool:
    """Whether a value is None, NaN, or one of pandas' missing values."""
    is_nan = isinstance(value, float | np.floating) and math.isnan(value)
    # pandas is not a dependency.
    return value is None or is_nan or type(value).__name__ in ("NAType", "NaTType")


def is_visible(text: str) -> bool:
    """Whether a text has any character that is neither white space nor invisible."""
    return any(not sign.isspace() and is_visible_or_blank(sign) for sign in text)


def is_visible_or_blank(sign: str) -> bool:
    """Whether a character is visible or white space.

    Variation selectors and format characters, such as the zero-width space, are neither.
    """
    return sign.isascii() or (unicodedata.category(sign) != "Cf" and not "\ufe00" <= sign <= "\ufe0f")


def no_labels(columns: Columns) -> UserError:
    """Creates the error for a split without labels."""
    if not columns.names:
        return UserError(f"{columns.source} has no labels; pass one label per text.")
    return missing_column(columns.places[0], columns.label, columns.names, "label")
