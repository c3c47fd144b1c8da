"""Reads rows of named columns from JSONL, TSV and CSV files, each also gzipped."""

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from afjax.errors import UserError, did_you_mean

FORMATS = (".jsonl", ".tsv", ".csv")
ENDINGS = tuple(f"{ending}{packed}" for ending in FORMATS for packed in ("", ".gz"))


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields ``(line number from 1, {column: value})`` for every row of a file.

    The file's name says its format. TSV has no quoting; CSV quotes as Python's ``csv`` does. Both open
    with a line of column names, and their values are strings. Blank lines are skipped.

    Raises:
      UserError: The file is missing, empty, truncated, not UTF-8 or malformed; with its line.
    """
    ending = Path(path.name.removesuffix(".gz")).suffix
    if ending not in FORMATS:
        raise UserError(f"{path} has no known format; its name must end in one of {', '.join(ENDINGS)}.")
    lines = read_lines(path)
    rows = json_rows(path, lines) if ending == ".jsonl" else table_rows(path, lines, tabs=ending == ".tsv")
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise UserError(f"{path} has no rows; give a file with at least one.")


def find_split_file(folder: Path, split: str) -> Path | None:
    """The file of a split in a task's folder, such as ``train.jsonl.gz``, or None.

    Raises:
      UserError: The folder is missing, or has two files for the split.
    """
    if not folder.is_dir():
        raise UserError(
            f"There is no folder {folder}; a task's source is a folder with train and dev files, builtin:NAME or "
            f"tfds:NAME.{nearest_in_folder(folder)}"
        )
    found = [folder / f"{split}{ending}" for ending in ENDINGS if (folder / f"{split}{ending}").is_file()]
    if len(found) > 1:
        raise UserError(
            f"{folder} has both {found[0].name} and {found[1].name}; keep one, or name it in the task's "
            f'"{split}" setting.'
        )
    return found[0] if found else None


def nearest_in_folder(path: Path) -> str:
    """``' Did you mean "..."?'`` for the name nearest to that of ``path`` in its folder, or an empty string."""
    names = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
    return did_you_mean(path.name, names)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields ``(line number, line)`` with the line's end; a byte order mark in front is dropped."""
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UserError(f"The file {path} {what}; give the path of a data file.{nearest_in_folder(path)}")
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}:{number} is not UTF-8 (byte {error.object[error.start]:#04x} at column {error.start + 1}); "
            "save the file as UTF-8."
        ) from error
    except EOFError as error:
        raise UserError(f"{path} ends in the middle of its gzip data after line {number}; fetch it again.") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(
            f"{path} is not sound gzip data after line {number} ({error}); fetch it again, or drop .gz from its name "
            "if it is plain text."
        ) from error
    except OSError as error:
        raise UserError(f"The file {path} cannot be read ({error.strerror}).") from error


def json_rows(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number} is not JSON ({error}); every line must be one JSON object.") from error
        if not isinstance(row, dict):
            raise UserError(f"{path}:{number} is {shorten(row)}; every line must be one JSON object.")
        yield number, row


def table_rows(path: Path, lines: Iterator[tuple[int, str]], *, tabs: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    columns: list[str] | None = None
    for number, values in split_tabs(lines) if tabs else split_commas(path, lines):
        if columns is None:
            columns = values
            twice = sorted({name for name in columns if columns.count(name) > 1})
            if twice:
                raise UserError(f'{path}:{number} names the column "{twice[0]}" twice; column names must differ.')
        elif len(values) != len(columns):
            raise UserError(
                f"{path}:{number} has {len(values)} columns, but the first line names {len(columns)} "
                f"({', '.join(columns)}); put the {'tabs' if tabs else 'commas and quotes'} of this line right."
            )
        else:
            yield number, dict(zip(columns, values, strict=True))


def split_tabs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        line = line.removesuffix("\n").removesuffix("\r")
        if line:
            yield number, line.split("\t")


def split_commas(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    """Splits CSV; a quoted value may hold line ends, so a row's number is that of its first line."""
    reader = csv.reader((line for _, line in lines), strict=True)
    number = 1
    try:
        for values in reader:
            if values:
                yield number, values
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{number} is not CSV ({error}); check the quotes of this row.") from error


def shorten(value: object) -> str:
    """A value as it looks in a message: at most 40 characters of its repr."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
