"""The table of file formats that rows are read from. To add a format, write its reader and list it here."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from afjax.config.tasks import NAMED_SOURCES
from afjax.data.sources import arrow
from afjax.data.sources.conll import conll_rows
from afjax.data.sources.files import decode, json_rows, nearest_in_folder, read_lines, shown_path, table_rows
from afjax.data.sources.kind import SPLIT_NAMES, Split
from afjax.errors import UserError

# Pairs of a row's name in error messages, such as "PATH:LINE", and its values by column name.
NamedRows = Iterator[tuple[str, dict[str, Any]]]


def _no_label_names(path: Path, column: str) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """A format of files with rows of named columns.

    Attributes:
      ending: The end of the names of such files, such as ``.csv``.
      read_file: Yields the rows of a file. Raises UserError if the file is missing or malformed.
      read_stream: Yields the rows of a binary stream, given the stream and its name in error messages.
      label_names: Returns the label names that a file defines for a column, or an empty tuple. If a file defines names,
        its labels are indices into them.
      gzipped: Whether files may be compressed with gzip, with ``.gz`` after the ending.
    """

    ending: str
    read_file: Callable[[Path], NamedRows]
    read_stream: Callable[[IO[bytes], str], NamedRows]
    label_names: Callable[[Path, str], tuple[str, ...]] = _no_label_names
    gzipped: bool = False


def _text_format(ending: str, rows_of_lines: Callable[[str, Iterator[tuple[int, str]]], NamedRows]) -> FileFormat:
    """Returns a format of text files.

    Args:
      ending: The end of the files' names.
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


FORMATS: Mapping[str, FileFormat] = {
    entry.ending: entry
    for entry in (
        _text_format(".jsonl", json_rows),
        _text_format(".tsv", partial(table_rows, tabs=True)),
        _text_format(".csv", partial(table_rows, tabs=False)),
        _text_format(".conll", conll_rows),
        FileFormat(
            ending=".parquet",
            read_file=arrow.read_parquet,
            read_stream=arrow.parquet_rows,
            label_names=arrow.parquet_label_names,
        ),
        FileFormat(
            ending=".arrow",
            read_file=arrow.read_arrow,
            read_stream=arrow.arrow_rows,
            label_names=arrow.arrow_label_names,
        ),
    )
}
ENDINGS = tuple(
    f"{entry.ending}{packed}" for entry in FORMATS.values() for packed in (("", ".gz") if entry.gzipped else ("",))
)
# The name of one of a split's numbered files on the Hugging Face hub, such as train-00000-of-00002.parquet. Older names
# also have a hash before the ending.
_PART = re.compile(
    rf"(?P<split>{'|'.join(name for names in SPLIT_NAMES.values() for name in names)})-\d+-of-(?P<total>\d+)"
    rf"(-[0-9a-f]+)?(?P<ending>{'|'.join(map(re.escape, ENDINGS))})"
)


def read_rows(path: Path, ending: str = "") -> NamedRows:
    """Yields ``("PATH:LINE", {column: value})`` for every row of a file.

    TSV has no quoting. CSV is quoted as in Python's ``csv`` module. Both start with a line of column names, and their
    values are strings. Blank lines are skipped. In Parquet and Arrow files, rows are counted from 1.

    Args:
      path: The file.
      ending: The file's format, one of ``FORMATS``. If empty, the format is taken from the file's name.

    Raises:
      UserError: The file is missing, empty, truncated, not UTF-8 or malformed, or pyarrow is needed and not installed.
        The message names the line, if the error is in one.
    """
    yield from _not_empty(file_format(str(path), ending).read_file(path), str(path))


def rows_of_stream(stream: IO[bytes], name: str, ending: str) -> NamedRows:
    """Yields rows from an open stream, such as standard input; see :func:`read_rows`.

    Args:
      stream: A binary stream.
      name: The stream's name in error messages.
      ending: One of ``FORMATS``.
    """
    yield from _not_empty(file_format(name, ending).read_stream(stream, name), name)


def file_format(name: str, ending: str = "") -> FileFormat:
    """Returns the format of a file, by its name or by the given ending.

    Raises:
      UserError: There is no such format.
    """
    ending = ending or Path(name.removesuffix(".gz")).suffix
    if ending not in FORMATS:
        raise UserError(f"{name} has no known format; its name must end in one of {', '.join(ENDINGS)}.")
    return FORMATS[ending]


def _not_empty(rows: NamedRows, name: str) -> NamedRows:
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise UserError(f"{name} has no rows; give a file with at least one.")


def find_split_files(folder: Path, split: Split) -> tuple[Path, ...]:
    """Finds the files of a split in a task's folder. The result is empty if there are none.

    A split is one file, such as ``train.jsonl.gz``, or several with the names of the Hugging Face hub, such as
    ``train-00000-of-00002.parquet``. The hub's dev split is named ``validation``.

    Raises:
      UserError: The folder is missing, has two files for the split, or lacks some of the split's numbered files.
    """
    try:
        names = sorted(os.listdir(folder))
    except (OSError, ValueError) as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        problem = f"There is no folder {folder}" if missing else f"The folder {shown_path(folder)} cannot be read"
        reason = "" if missing else f" ({getattr(error, 'strerror', None) or error})"
        raise UserError(
            f"{problem}{reason}; a task's source is a folder with train and dev files, one file "
            f"({', '.join(ENDINGS)}), {NAMED_SOURCES}.{nearest_in_folder(folder)}"
        ) from None
    # Broken links count as files, so that they cause an error instead of a silently missing split.
    files = [[f"{split}{ending}"] for ending in ENDINGS if f"{split}{ending}" in names]
    parts: dict[tuple[str, ...], list[str]] = {}
    for name in names:
        if (part := _PART.fullmatch(name)) and part["split"] in SPLIT_NAMES[split]:
            parts.setdefault(part.group("split", "total", "ending"), []).append(name)
    found = [*files, *parts.values()]
    if len(found) > 1:
        raise UserError(
            f'{folder} has both {found[0][0]} and {found[1][0]}; keep one, or name it in the task\'s "{split}" setting.'
        )
    for (_, total, _), part_names in parts.items():
        if len(part_names) != int(total):
            raise UserError(
                f"{folder} has {len(part_names)} of the {int(total)} files of its {split} split "
                f"({', '.join(part_names[:3])}); fetch the folder again."
            )
    return tuple(folder / name for names in found for name in names)


def is_split_file(name: str) -> bool:
    """Returns whether a file name is one that :func:`find_split_files` finds for a split."""
    return bool(_PART.fullmatch(name)) or name in {f"{split}{ending}" for split in SPLIT_NAMES for ending in ENDINGS}


def file_stem(name: str) -> str:
    """Returns a data file's name without its endings: ``train`` for ``train.jsonl.gz``."""
    return Path(name.removesuffix(".gz")).stem
