"""Reads lines and JSONL, TSV or CSV rows from text files, which may be gzipped."""

import contextlib
import csv
import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from afjax.config.from_dict import shown
from afjax.display.words import counted
from afjax.errors import UserError, did_you_mean
from afjax.storage.json_files import parse_json
from afjax.storage.paths import error_text


def nearest_in_folder(path: Path) -> str:
    """Suggests a similarly named file in the same folder.

    Returns ``' Did you mean "NAME"?'``, or ``''`` if there is no similar name.
    """
    try:
        names = sorted(os.listdir(path.parent))
    except (OSError, ValueError):
        return ""
    return did_you_mean(path.name, names)


def read_lines(path: Path, encodings: tuple[str, ...] = ("utf-8",)) -> Iterator[tuple[int, str]]:
    """Yields ``(line number, line)``, including line endings.

    A byte order mark at the start of the file is dropped. With several encodings, the first that can decode the entire
    file is used. Because this is meant for old files, lines may then also end in a lone carriage return.

    Raises:
      UserError: The file is missing, truncated or not in one of the encodings.
    """
    if len(encodings) > 1:
        yield from enumerate(io.StringIO(read_text(path, encodings), newline=""), start=1)
        return
    for number, line in read_raw_lines(path):
        yield number, decode(str(path), line, encodings, number)


def read_text(path: Path, encodings: tuple[str, ...] = ("utf-8",)) -> str:
    """Reads an entire file, trying the encodings in order as in :func:`read_lines`."""
    return decode(str(path), b"".join(line for _, line in read_raw_lines(path)), encodings)


def read_raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    with open_data_file(path) as file:
        try:
            with gzip.open(file) if path.suffix == ".gz" else contextlib.nullcontext(file) as lines:
                for number, line in enumerate(lines, start=1):
                    yield number, line
        except EOFError as error:
            raise UserError(
                f"{path} is truncated: its gzip data ends after line {number}. Download it again."
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                f"{path} is not valid gzip data after line {number} ({error}); download it again, or remove .gz from "
                "its name if it is plain text."
            ) from error


@contextlib.contextmanager
def open_data_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a data file for reading, as a context manager.

    Raises:
      UserError: The file is missing, is not a regular file, or cannot be read.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # Reading a pipe could block forever.
            raise OSError(errno.EINVAL, "it is a pipe or a device")
        with path.open("rb") as file:
            yield file
    except UserError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            problem = "is a broken link" if path.is_symlink() else "does not exist"
        elif isinstance(error, IsADirectoryError):
            problem = "is a folder"
        else:
            problem = f"cannot be read ({error_text(error)})"
        raise UserError(
            f"The file {shown_path(path)} {problem}; specify the path of a data file.{nearest_in_folder(path)}"
        ) from error


def decode(source: str, raw: bytes, encodings: tuple[str, ...], first_line: int = 1) -> str:
    """Decodes bytes with the first encoding that works.

    Args:
      source: The file's name in error messages.
      raw: The bytes.
      encodings: The encodings to try, in order.
      first_line: Line number in ``source`` at which the bytes start. In line 1, a UTF-8 byte order mark is dropped.

    Raises:
      UserError: No encoding works, or the text contains a NUL character.
    """
    first_error = None
    for encoding in encodings:
        try:
            text = raw.decode("utf-8-sig" if encoding == "utf-8" and first_line == 1 else encoding)
        except UnicodeDecodeError as error:
            first_error = first_error or error
            continue
        if "\0" in text:
            # UTF-16 text without a byte order mark is valid UTF-8 with NUL characters between the letters.
            line = first_line + text[: text.index("\0")].count("\n")
            raise UserError(
                f"{source}:{line} contains a NUL byte, as UTF-16 and binary files do; save the file as UTF-8."
            )
        return text
    assert first_error is not None
    before = raw[: first_error.start]
    line = first_line + before.count(b"\n")
    column = len(before) - before.rfind(b"\n")
    names = " or ".join(encodings).replace("utf", "UTF")
    raise UserError(
        f"{source}:{line} is not {names} (byte {raw[len(before)]:#04x} at column {column}); save the file as UTF-8."
    ) from first_error


def json_rows(path: Path | str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in lines:
        if not line.strip():
            continue
        place = f"{path}:{number}"
        yield place, parse_json(line, place, advice="every line must be one JSON object", constants=True)


def table_rows(
    path: Path | str,
    lines: Iterator[tuple[int, str]],
    *,
    tabs: bool,
    names: Sequence[str] = (),
    lenient: bool = False,
    short: list[str] | None = None,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("PATH:LINE", {column: value})`` for every row of a TSV or CSV table.

    See :func:`drop_blank_lines` for blank lines.

    Args:
      path: The file's name in error messages.
      lines: Numbered lines, as from :func:`read_lines`.
      tabs: Whether the table is TSV without quoting; otherwise it is CSV with quoting.
      names: Column names, for a table without a header line.
      lenient: Whether to accept unnamed columns and stray quotes, which spreadsheets write.
      short: If not None, rows with too few columns are skipped and their ``PATH:LINE`` is appended to this list.

    Raises:
      UserError: The file has the wrong separator, a column name is repeated, a row has the wrong number of columns, or
        a CSV row has invalid quoting.
    """
    columns = list(names)
    checked = False
    rows = split_tabs(lines) if tabs else split_commas(path, lines, strict=not lenient)
    for number, values in drop_blank_lines(rows):
        if not checked:
            checked = True
            check_separator(f"{path}:{number}", values, tabs=tabs)
            if not columns:
                columns = values
                check_distinct(f"{path}:{number}", [name for name in columns if name or not lenient])
                continue
        if short is not None and len(values) < len(columns):
            short.append(f"{path}:{number}")
        elif len(values) != len(columns):
            given = "the format has" if names else "the first line names"
            raise UserError(
                f"{path}:{number} has {counted(len(values), 'column')}, but {given} {len(columns)} "
                f"({', '.join(columns)}); correct the {'tabs' if tabs else 'commas and quotes'} of this line."
            )
        else:
            yield f"{path}:{number}", dict(zip(columns, values, strict=True))


def check_distinct(place: str, columns: Sequence[Any]) -> None:
    """Raises UserError if two columns have the same name."""
    repeated = [column for column in columns if columns.count(column) > 1]
    if repeated:
        raise UserError(f'{place} has two columns named "{repeated[0]}"; column names must be unique.')


def check_separator(place: str, values: list[str], *, tabs: bool) -> None:
    """Raises UserError if the first line contains the wrong separator.

    The line then has a single column.
    """
    right = "tabs" if tabs else "commas"
    separators = {",": ("commas", ".csv"), "\t": ("tabs", ".tsv"), ";": ("semicolons", "")}
    for character, (wrong, ending) in separators.items():
        if len(values) == 1 and character in values[0] and wrong != right:
            advice = f", or, if it is your own file, rename it to end in {ending}" if ending else ""
            raise UserError(
                f"{place} has columns separated by {wrong}, but {right} are expected ({values[0][:60]}); write the "
                f"file with {right}{advice}."
            )


def drop_blank_lines(lines: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    """Drops lines without values. In a table with one column, only those at the start and the end are dropped.

    Elsewhere in such a table, a blank line is an empty value.
    """
    num_columns = 0
    blank: list[int] = []
    for number, values in lines:
        if not values:
            blank.append(number)
            continue
        if num_columns == 1:
            yield from ((line, [""]) for line in blank)
        blank.clear()
        num_columns = num_columns or len(values)
        yield number, values


def split_tabs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        line = line.removesuffix("\n").removesuffix("\r")
        yield number, line.split("\t") if line else []


def split_commas(
    path: Path | str, lines: Iterator[tuple[int, str]], *, strict: bool
) -> Iterator[tuple[int, list[str]]]:
    """Parses CSV rows and numbers them by their first line.

    Quoted values can span several lines.
    """
    # Contexts can exceed csv's default limit of 131,072 characters per field. The limit is global.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line for _, line in lines), strict=strict)
    number = 1
    try:
        for values in reader:
            yield number, values
            number = reader.line_num + 1
    except csv.Error as error:
        problem = f"{error}; check this row's quotes"
        if "new-line character" in str(error):  # csv recommends another mode for opening the file.
            problem = "it has a carriage return (CR) outside quotes; end lines with LF or CRLF, and quote other CRs"
        raise UserError(f"{path}:{number} is not valid CSV: {problem}.") from error


def shown_path(path: Path) -> str:
    """Formats a path for a message.

    Paths that are longer than file systems allow are truncated.
    """
    text = str(path)
    return text if len(text) <= 4096 else f"{text[:200]}..."


def shorten(value: object) -> str:
    """Formats a value for a message as its ``repr``, truncated to 40 characters."""
    text = shown(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
