"""Reads text files, which may be gzipped: their lines, and rows of named columns in JSONL, TSV and CSV."""

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


def nearest_in_folder(path: Path) -> str:
    """Returns ``' Did you mean "..."?'`` with the most similar file name in the folder of ``path``, or ``''``."""
    try:
        names = sorted(os.listdir(path.parent))
    except (OSError, ValueError):
        return ""
    return did_you_mean(path.name, names)


def read_lines(path: Path, encodings: tuple[str, ...] = ("utf-8",)) -> Iterator[tuple[int, str]]:
    """Yields ``(line number, line)``, including line ends. A byte order mark at the start of the file is dropped.

    If several encodings are given, the first that decodes the entire file is used. This is meant for old files, so
    lines can then also end in a single carriage return.

    Raises:
      UserError: The file is missing, truncated or in another encoding.
    """
    if len(encodings) > 1:
        yield from enumerate(io.StringIO(read_text(path, encodings), newline=""), start=1)
        return
    for number, line in read_raw_lines(path):
        yield number, decode(str(path), line, encodings, number)


def read_text(path: Path, encodings: tuple[str, ...] = ("utf-8",)) -> str:
    """Reads an entire file. Several encodings are tried in order, as in :func:`read_lines`."""
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
                f"{path} ends in the middle of its gzip data after line {number}; fetch it again."
            ) from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                f"{path} is not valid gzip data after line {number} ({error}); fetch it again, or drop .gz from its "
                "name if it is plain text."
            ) from error


@contextlib.contextmanager
def open_data_file(path: Path) -> Iterator[IO[bytes]]:
    """Opens a data file, and closes it at the end of the block.

    Raises:
      UserError: The file is missing, is not a regular file, or cannot be read.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # Reading a pipe might wait forever.
            raise OSError(errno.EINVAL, "it is a pipe or a device")
        with path.open("rb") as file:
            yield file
    except UserError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            problem = "is a link to a file that does not exist" if path.is_symlink() else "does not exist"
        elif isinstance(error, IsADirectoryError):
            problem = "is a folder"
        else:
            problem = f"cannot be read ({getattr(error, 'strerror', None) or error})"
        raise UserError(
            f"The file {shown_path(path)} {problem}; give the path of a data file.{nearest_in_folder(path)}"
        ) from error


def decode(source: str, raw: bytes, encodings: tuple[str, ...], first_line: int = 1) -> str:
    """Decodes bytes with the first encoding that fits.

    Args:
      source: The file's name in error messages.
      raw: The bytes.
      encodings: The encodings to try, in order.
      first_line: The line of ``source`` at which the bytes start. UTF-8's byte order mark is dropped in line 1.

    Raises:
      UserError: No encoding fits, or the text contains a NUL character.
    """
    first_error = None
    for encoding in encodings:
        try:
            text = raw.decode("utf-8-sig" if encoding == "utf-8" and first_line == 1 else encoding)
        except UnicodeDecodeError as error:
            first_error = first_error or error
            continue
        if "\0" in text:
            # UTF-16 without a byte order mark decodes as UTF-8, with NUL characters between the letters.
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
    """Yields ``("PATH:LINE", {column: value})`` for every row of a table.

    Args:
      path: The file's name in error messages.
      lines: Numbered lines, as from :func:`read_lines`.
      tabs: Whether columns are separated by tabs, without quoting. If not, they are separated by commas, with quoting.
      names: Column names, for a table without a header line.
      lenient: Whether to accept unnamed columns and stray quotes, which spreadsheets write.
      short: If given, rows with too few columns are skipped, and their ``PATH:LINE`` is appended to this list.

    Raises:
      UserError: The file uses another separator, a column name is repeated, a row has another number of columns, or the
        quotes of a CSV row are wrong.
    """
    columns = list(names)
    checked = False
    for number, values in split_tabs(lines) if tabs else split_commas(path, lines, strict=not lenient):
        if not checked:
            checked = True
            check_separator(f"{path}:{number}", values, tabs=tabs)
            if not columns:
                columns = values
                repeated = sorted({name for name in columns if columns.count(name) > 1 and (name or not lenient)})
                if repeated:
                    raise UserError(
                        f'{path}:{number} names the column "{repeated[0]}" twice; column names must differ.'
                    )
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


def check_separator(place: str, values: list[str], *, tabs: bool) -> None:
    """Raises UserError if the first line has a single column because the file uses another separator."""
    right = "tabs" if tabs else "commas"
    separators = {",": ("commas", ".csv"), "\t": ("tabs", ".tsv"), ";": ("semicolons", "")}
    for character, (wrong, ending) in separators.items():
        if len(values) == 1 and character in values[0] and wrong != right:
            advice = f", or, if it is a file of your own, give it a name that ends in {ending}" if ending else ""
            raise UserError(
                f"{place} has {wrong} between its columns where {right} are expected ({values[0][:60]}); write the "
                f"file with {right}{advice}."
            )


def split_tabs(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, list[str]]]:
    for number, line in lines:
        line = line.removesuffix("\n").removesuffix("\r")
        if line:
            yield number, line.split("\t")


def split_commas(
    path: Path | str, lines: Iterator[tuple[int, str]], *, strict: bool
) -> Iterator[tuple[int, list[str]]]:
    """Splits the rows of a CSV file. A quoted value can span lines; a row has the number of its first line."""
    # Contexts can exceed csv's default limit of 131,072 characters per field. The limit is global to the module.
    csv.field_size_limit(2**31 - 1)
    reader = csv.reader((line for _, line in lines), strict=strict)
    number = 1
    try:
        for values in reader:
            if values:
                yield number, values
            number = reader.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{number} is not CSV ({error}); check the quotes of this row.") from error


def shown_path(path: Path) -> str:
    """Formats a path for a message. It is shortened if it is longer than file systems allow."""
    text = str(path)
    return text if len(text) <= 4096 else f"{text[:200]}..."


def shorten(value: object) -> str:
    """Formats a value for a message: its ``repr``, shortened to 40 characters."""
    text = shown(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
