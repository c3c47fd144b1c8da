"""Picks and checks the texts and labels of a split. Errors name the file and line."""

import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from afjax.data.sources.files import shorten
from afjax.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Columns:
    """The columns of one split, with unconverted labels.

    Attributes:
      source: The split's name in error messages: its file, or its TFDS name.
      places: Each row's name in error messages: its file and line.
      text_a: The texts, or the first texts of pairs.
      text_b: The second texts; None for single texts.
      labels: The labels; None if the split has no label column.
      ids: The values of the column ``id``; None if there is no such column.
      names: The names of all columns of the first row; empty if the data are lists.
      label: The name of the label column, even if the split does not have it.
    """

    source: str
    places: list[str]
    text_a: list[str]
    text_b: list[str] | None
    labels: list[Any] | None
    ids: list[str] | None = None
    names: tuple[str, ...] = ()
    label: str = "label"


# Text columns of JSONL, TSV and CSV files that are found without a setting, in order of preference.
TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (("text_a", "text_b"), ("text",))

# Text columns of published datasets that are found without a setting. Pairs come before single texts.
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


def pick_columns(
    source: str,
    rows: Iterable[tuple[str, dict[str, Any]]],
    *,
    text_a: str = "",
    text_b: str = "",
    label: str = "",
    known: Sequence[tuple[str, ...]] = TEXT_COLUMNS,
    ignore_labels: bool = False,
) -> Columns:
    """Picks the text and label columns of rows. The first row decides which columns exist.

    Args:
      source: The split's name in error messages.
      rows: At least one ``(the row's name in error messages, its values by column name)``.
      text_a, text_b: Names of text columns. If both are empty, the columns are the first entry of ``known`` whose
        columns all exist.
      label: Name of the label column. If empty, the column "label" is used, which may then be missing.
      known: Names of text columns to look for.
      ignore_labels: Whether to skip the label column, which may then be missing even if ``label`` names it.

    Raises:
      UserError: There are no rows, a column is missing, a text is not a valid string, an ``id`` is not a string or an
        integer, two rows have the same ``id``, or ``text_b`` is given without ``text_a``.
    """
    place, first, rows = first_row(source, rows)
    names = text_names(place, first, text_a, text_b, known)
    has_labels, has_ids = not ignore_labels and (bool(label) or "label" in first), "id" in first
    columns = Columns(
        source,
        [],
        [],
        [] if len(names) == 2 else None,
        [] if has_labels else None,
        [] if has_ids else None,
        names=tuple(map(str, first)),
        label=label or "label",
    )
    for place, row in rows:
        columns.places.append(place)
        columns.text_a.append(text_of(place, row, names[0]))
        if columns.text_b is not None:
            columns.text_b.append(text_of(place, row, names[1]))
        if columns.labels is not None:
            columns.labels.append(value_of(place, row, label or "label"))
        if columns.ids is not None:
            columns.ids.append(id_of(place, row))
    check_ids(columns.places, columns.ids)
    return columns


def first_row(
    source: str, rows: Iterable[tuple[str, dict[str, Any]]]
) -> tuple[str, dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]:
    """Returns the name of the first row, the first row, and an iterator over all rows including the first."""
    iterator = iter(rows)
    try:
        place, first = next(iterator)
    except StopIteration:
        raise UserError(f"{source} has no rows; give a split with at least one.") from None
    return place, first, chain([(place, first)], iterator)


def id_of(place: str, row: dict[str, Any]) -> str:
    value = value_of(place, row, "id")
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise UserError(f'{place} has {shorten(value)} in the column "id"; it must be a string or a whole number.')
    return str(value)


def check_ids(places: Sequence[str], ids: Sequence[str] | None) -> None:
    """Raises UserError if two rows have the same id."""
    if ids is None or len(set(ids)) == len(ids):
        return
    seen: dict[str, str] = {}
    for place, row_id in zip(places, ids, strict=True):
        if row_id in seen:
            raise UserError(
                f"{place} has the id {shorten(row_id)}, which {seen[row_id]} already has; drop one of them."
            )
        seen[row_id] = place


def text_names(
    place: str, row: dict[str, Any], text_a: str, text_b: str, known: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """Returns the one or two text columns to read."""
    if text_a:
        return (text_a, text_b) if text_b else (text_a,)
    if text_b:
        raise UserError(f'The task names text_b="{text_b}" but no text_a; name both columns.')
    for names in known:
        if all(name in row for name in names):
            return names
    expected = " or ".join(" and ".join(names) for names in known)
    raise UserError(
        f"{place} has no text columns {expected}, but {listing(row)}; name the right ones in the task's "
        '"text_a" and "text_b" settings.'
    )


def value_of(place: str, row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise missing_column(place, name, row)
    return row[name]


def missing_column(place: str, name: str, columns: Iterable[Any], setting: str = "", *, flag: str = "") -> UserError:
    """Returns the error for a row that lacks a required column.

    Args:
      place: The row's file and line.
      name: The name of the missing column.
      columns: The names of the row's columns.
      setting: The task's setting for the column's name; if empty, the message does not name a setting.
      flag: The command-line flag for the column's name, which the message names instead of a setting.
    """
    names = list(map(str, columns))
    setting_name = flag or (f'the task\'s "{setting}" setting' if setting else "the task's settings")
    # "text" is close to "text_a" and "text_b", but a pair's column is not a misspelling of the single text's column.
    candidates = [column for column in names if not (name == "text" and column in ("text_a", "text_b"))]
    return UserError(
        f'{place} has no column "{name}", but {listing(names)}; add it, or name another in {setting_name}.'
        f"{did_you_mean(name, candidates)}"
    )


def listing(columns: Iterable[Any]) -> str:
    """Joins column names for an error message.

    Long names are shortened: if a file has no header line, its "names" are the texts of the first row.
    """
    names = [name if len(name) <= 40 else f"{name[:37]}..." for name in map(str, columns)]
    return f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}" or "no columns"


def text_of(place: str, row: dict[str, Any], name: str) -> str:
    text = value_of(place, row, name)
    if not isinstance(text, str):
        raise UserError(
            f'{place} has {shorten(text)} in the column "{name}" (its columns are {listing(row)}); a text must be a '
            "string."
        )
    check_text(place, text)
    return text


def check_text(place: str, text: str) -> None:
    """Raises UserError for a lone surrogate, which JSON can escape but tokenizers do not accept."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{place} has a text with half a surrogate pair; correct it or drop the row.") from error


def number_labels(columns: Columns) -> np.ndarray:
    """Converts the labels of a regression task to float32 [rows].

    Raises:
      UserError: There are no labels, or a label is missing, not a number or not finite. The message names the row.
    """
    if columns.labels is None:
        raise no_labels(columns)
    numbers = np.empty(len(columns.labels), np.float32)
    for row, label in enumerate(columns.labels):
        try:
            # float() would accept Python's digit separators ("1_0"), which are not numbers in a data file.
            number = math.nan if isinstance(label, bool) or "_" in str(label) else float(label)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        # A number outside float32's range would become infinite in the assignment below.
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise UserError(f"{columns.places[row]} has the label {shorten(label)}; it must be a finite number.")
        numbers[row] = number
    return numbers


def is_missing(label: Any) -> bool:
    """Returns whether a label is a placeholder for a missing one.

    Placeholders are null, an empty string, the string "-1", and the number -1 or -1.0 (as in STS-B's test rows).
    """
    return label is None or (isinstance(label, (str, int, float)) and label in ("", "-1", -1))


def is_visible(text: str) -> bool:
    """Returns whether a text has at least one character that is neither white space nor invisible."""
    return any(not sign.isspace() and is_visible_or_blank(sign) for sign in text)


def is_visible_or_blank(sign: str) -> bool:
    """Returns whether a character is visible or white space.

    Format characters, such as the zero-width space, and variation selectors are neither.
    """
    return sign.isascii() or (unicodedata.category(sign) != "Cf" and not "\ufe00" <= sign <= "\ufe0f")


def no_labels(columns: Columns) -> UserError:
    """Returns the error for a split without a label column."""
    if not columns.names:
        return UserError(f"{columns.source} has no labels; give one label per text.")
    return missing_column(columns.places[0], columns.label, columns.names, "label")
