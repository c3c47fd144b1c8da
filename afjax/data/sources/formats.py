"""Registry of data file formats. To add a format, write a reader and list it here."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from afjax.config.tasks import NAMED_SOURCES
from afjax.data.sources import arrow
from afjax.data.sources.conll import conll_rows
from afjax.data.sources.files import (
    decode,
    json_rows,
    nearest_in_folder,
    open_data_file,
    read_lines,
    shown_path,
    table_rows,
)
from afjax.data.sources.kind import SPLIT_NAMES, Split
from afjax.errors import UserError
from afjax.storage.paths import error_text

# Pairs of a row's name in error messages, such as "PATH:LINE", and its values by column name.
NamedRows = Iterator[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A data file format with named columns.

    Attributes:
      ending: File extension, such as ``.csv``.
      read_file: Yields the rows of a file. Raises UserError if the file is missing or malformed.
      read_stream: Yields the rows of a binary stream, given the stream and its name in error messages.
      label_names: Returns a column's label names if the file defines them, or else an empty tuple. If it does, the
        labels are indices into the names.
      gzipped: Whether files may be gzipped, with ``.gz`` after the extension.
    """

    ending: str
    read_file: Callable[[Path], NamedRows]
    read_stream: Callable[[IO[bytes], str], NamedRows]
    label_names: Callable[[Path, str], tuple[str, ...]] = lambda path, column: ()
    gzipped: bool = False


def _text_format(ending: str, rows_of_lines: Callable[[str, Iterator[tuple[int, str]]], NamedRows]) -> FileFormat:
    """Defines a line-based text format.

    Args:
      ending: File extension.
      rows_of_lines: Yields the rows of a file, given its name in error messages and its numbered lines.
    """

    def read_stream(stream: IO[bytes], name: str) -> NamedRows:
        lines = ((number, decode(name, line, ("utf-8",), number)) for number, line in enumerate(stream, start=1))
        return rows_of_lines(name, lines)

    return FileFormat(
        ending=ending,
        read_file=lambda path: rows_of_lines(str(path), read_lines(path)),
        read_stream=read_stream,
        gzipped=True,
    )


def _table_format(name: str, open_table: Callable[[IO[bytes], str], tuple[Any, Iterable[Any]]]) -> FileFormat:
    """Defines a format that pyarrow reads.

    Values are Python objects, including lists and structs.

    Args:
      name: The format's name, which is also its file extension.
      open_table: See :func:`afjax.data.sources.arrow.open_parquet`.
    """

    def read_stream(stream: IO[bytes], source: str) -> NamedRows:
        with arrow.explain_errors(source, name):
            yield from arrow.batch_rows(open_table(stream, source)[1], source)

    def read_file(path: Path) -> NamedRows:
        with open_data_file(path) as file:
            yield from read_stream(file, str(path))

    def label_names(path: Path, column: str) -> tuple[str, ...]:
        with open_data_file(path) as file, arrow.explain_errors(str(path), name):
            return arrow.stored_label_names(open_table(file, str(path))[0].metadata, column)

    return FileFormat(ending=f".{name.lower()}", read_file=read_file, read_stream=read_stream, label_names=label_names)


FORMATS: Mapping[str, FileFormat] = {
    entry.ending: entry
    for entry in (
        _text_format(".jsonl", json_rows),
        _text_format(".tsv", partial(table_rows, tabs=True)),
        _text_format(".csv", partial(table_rows, tabs=False)),
        _text_format(".conll", conll_rows),
        _table_format("Parquet", arrow.open_parquet),
        _table_format("Arrow", arrow.open_arrow),
    )
}
ENDINGS = tuple(
    f"{entry.ending}{packed}" for entry in FORMATS.values() for packed in (("", ".gz") if entry.gzipped else ("",))
)
# File name of one shard of a split on the Hugging Face hub, such as train-00000-of-00002.parquet. Older names also have
# a hash before the extension.
_PART = re.compile(
    rf"(?P<split>{'|'.join(name for names in SPLIT_NAMES.values() for name in names)})"
    rf"-(?P<number>\d+)-of-(?P<total>\d+)(-[0-9a-f]+)?(?P<ending>{'|'.join(map(re.escape, ENDINGS))})"
)


def read_rows(path: Path, ending: str = "") -> NamedRows:
    """Yields ``("PATH:LINE", {column: value})`` for every row of a data file.

    TSV is read without quoting, and CSV with the quoting of Python's ``csv`` module. Both must have a header line, and
    their values are strings. Blank lines are skipped. Parquet and Arrow files have row numbers, counted from 1, instead
    of line numbers.

    Args:
      path: The file.
      ending: The file's format, one of ``FORMATS``. If empty, it is inferred from the file name.

    Raises:
      UserError: The file is missing, empty, truncated, not UTF-8 or malformed, or pyarrow is required but not
        installed.
    """
    yield from _not_empty(file_format(str(path), ending).read_file(path), str(path))


def rows_of_stream(stream: IO[bytes], name: str, ending: str) -> NamedRows:
    """Yields the rows of an open stream, such as standard input.

    See :func:`read_rows`.

    Args:
      stream: A binary stream.
      name: The stream's name in error messages.
      ending: One of ``FORMATS``.
    """
    yield from _not_empty(file_format(name, ending).read_stream(stream, name), name)


def file_format(name: str, ending: str = "") -> FileFormat:
    """Selects a file's format by ``ending``, or by its name if ``ending`` is empty.

    Raises:
      UserError: The format is unknown.
    """
    ending = ending or Path(name.removesuffix(".gz")).suffix
    if ending not in FORMATS:
        raise UserError(f"{name} has an unknown format; its name must end in one of {', '.join(ENDINGS)}.")
    return FORMATS[ending]


def _not_empty(rows: NamedRows, name: str) -> NamedRows:
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise UserError(f"{name} has no rows; a data file needs at least one.")


def find_split_files(folder: Path, split: Split) -> tuple[Path, ...]:
    """Finds a split's files in a task's folder.

    Returns an empty tuple if there are none. A split is either one file, such as ``train.jsonl.gz``, or several files
    named as on the Hugging Face hub, such as ``train-00000-of-00002.parquet``. The hub's dev split is named
    ``validation``.

    Raises:
      UserError: The folder is missing, has two files for the split, or lacks some of the split's numbered files.
    """
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError) as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        problem = f"There is no folder {folder}" if missing else f"The folder {shown_path(folder)} cannot be read"
        reason = "" if missing else f" ({error_text(error)})"
        raise UserError(
            f"{problem}{reason}; a task's source must be a folder with train and dev files, a single file "
            f"({', '.join(ENDINGS)}), {NAMED_SOURCES}.{nearest_in_folder(folder)}"
        ) from None
    # Broken links count as files, so that they raise an error instead of silently omitting the split.
    files = [[f"{split}{ending}"] for ending in ENDINGS if f"{split}{ending}" in names]
    # The numbers and names of a split's files.
    parts: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for name in names:
        if (match := _PART.fullmatch(name)) and match["split"] in SPLIT_NAMES[split]:
            parts.setdefault(match.group("split", "total", "ending"), []).append((int(match["number"]), name))
    found = [*files, *([name for _, name in part] for part in parts.values())]
    if len(found) > 1:
        raise UserError(
            f'{folder} has both {found[0][0]} and {found[1][0]}; keep one, or set it in the task\'s "{split}" setting.'
        )
    for (_, total, _), part in parts.items():
        numbers = sorted(number for number, _ in part)
        if numbers != list(range(numbers[0], numbers[0] + int(total))):
            shown = ", ".join(name for _, name in part[:3])
            raise UserError(
                f"{folder} must have {int(total)} files of its {split} split with consecutive numbers, but it has "
                f"{len(part)} ({shown}); download the folder again."
            )
    return tuple(folder / name for names in found for name in names)


def is_split_file(name: str) -> bool:
    """Whether :func:`find_split_files` finds files with this name for any split."""
    return bool(_PART.fullmatch(name)) or name in {f"{split}{ending}" for split in SPLIT_NAMES for ending in ENDINGS}


def file_stem(name: str) -> str:
    """Strips a data file's extensions, for example ``train.jsonl.gz`` to ``train``."""
    return Path(name.removesuffix(".gz")).stem
