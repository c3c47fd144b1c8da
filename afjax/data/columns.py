"""Texts and labels of one split: picked out of named columns and checked, each error with its place."""

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
    """The columns of one split, labels as they were given.

    Attributes:
      source: What errors call the split: its file, or its TFDS name.
      places: What errors call each row: its file and line.
      text_a: The texts, or the first texts of pairs.
      text_b: The second texts; None for single texts.
      labels: None where the split has no label column.
      ids: The column ``id``; None if there is none.
      names: The names of all columns of the first row; empty for lists.
      label: The name of the label column, whether it exists or not.
    """

    source: str
    places: list[str]
    text_a: list[str]
    text_b: list[str] | None
    labels: list[Any] | None
    ids: list[str] | None = None
    names: tuple[str, ...] = ()
    label: str = "label"


# Pairs of text columns, or single ones, that a JSONL, TSV or CSV file may have without naming them.
TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (("text_a", "text_b"), ("text",))


def pick_columns(
    source: str,
    rows: Iterable[tuple[str, dict[str, Any]]],
    *,
    text_a: str = "",
    text_b: str = "",
    label: str = "",
    known: Sequence[tuple[str, ...]] = TEXT_COLUMNS,
) -> Columns:
    """Picks text and label columns out of rows; the first row says which there are.

    Args:
      source: What errors call the split.
      rows: (what errors call the row, its values by column name); at least one.
      text_a, text_b, label: Names of columns; empty: the first of ``known`` that is there, and ``label``,
        which may then be missing.
      known: Names of text columns to look for.

    Raises:
      UserError: A column is missing, a text is not a string, or two rows have one ``id``; with the row's place.
    """
    place, first, rows = first_row(source, rows)
    names = text_names(place, first, text_a, text_b, known)
    has_labels, has_ids = bool(label) or "label" in first, "id" in first
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
    """The first of the rows, with its place, and all of them again."""
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
    """Raises UserError where two rows have one id."""
    if ids is None or len(set(ids)) == len(ids):
        return
    seen: dict[str, str] = {}
    for place, row_id in zip(places, ids, strict=True):
        if row_id in seen:
            raise UserError(
                f"{place} has the id {shorten(row_id)}, which {seen[row_id]} has already; drop one of them."
            )
        seen[row_id] = place


def text_names(
    place: str, row: dict[str, Any], text_a: str, text_b: str, known: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    """The one or two text columns to read."""
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
    """The error for a row without a column that is needed.

    Args:
      place: The row's file and line.
      name: The column's name.
      columns: The columns that there are.
      setting: The task's setting that names the column; empty: the message does not name one.
      flag: The command's flag that names the column, in place of a setting.
    """
    there = list(map(str, columns))
    where = flag or (f'the task\'s "{setting}" setting' if setting else "the task's settings")
    # The texts of a pair are not another spelling of a single text.
    candidates = [column for column in there if not (name == "text" and column in ("text_a", "text_b"))]
    return UserError(
        f'{place} has no column "{name}", but {listing(there)}; add it, or name another in {where}.'
        f"{did_you_mean(name, candidates)}"
    )


def listing(columns: Iterable[Any]) -> str:
    """Column names for an error message. Long names are cut: in a file without a header line they are texts."""
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
    """Refuses half surrogate pairs, which JSON can escape but no tokenizer takes."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"{place} has a text with half a surrogate pair; mend it or drop the row.") from error


def number_labels(columns: Columns) -> np.ndarray:
    """float32 [rows]: the labels of a regression task.

    Raises:
      UserError: There are no labels, or one is missing, not a number or not finite, with its place.
    """
    if columns.labels is None:
        raise no_labels(columns)
    numbers = np.empty(len(columns.labels), np.float32)
    for row, label in enumerate(columns.labels):
        try:
            # Python's own spelling of 10 as "1_0" is no file's.
            number = math.nan if isinstance(label, bool) or "_" in str(label) else float(label)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        # A number beyond float32 would turn into infinity below.
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise UserError(f"{columns.places[row]} has the label {shorten(label)}; it must be a finite number.")
        numbers[row] = number
    return numbers


def is_missing(label: Any) -> bool:
    """Whether a label is a placeholder of unlabelled rows: null, an empty string or -1."""
    return label is None or (isinstance(label, (str, int)) and label in ("", "-1", -1))


def is_visible(text: str) -> bool:
    """Whether a text has a character other than blanks and invisible ones."""
    return any(not sign.isspace() and is_visible_or_blank(sign) for sign in text)


def is_visible_or_blank(sign: str) -> bool:
    """Whether a character is neither a format character (such as a zero-width space) nor a variation selector."""
    return sign.isascii() or (unicodedata.category(sign) != "Cf" and not "\ufe00" <= sign <= "\ufe0f")


def no_labels(columns: Columns) -> UserError:
    """The error for a split without a label column."""
    if not columns.names:
        return UserError(f"{columns.source} has no labels; give one label per text.")
    return missing_column(columns.places[0], columns.label, columns.names, "label")
