"""Parses CoNLL files.

They have one word and its tag per line, and blank lines between sentences.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from afjax.display.words import counted
from afjax.errors import UserError

# Some files separate documents by lines that start with this word.
DOCUMENT = "-DOCSTART-"


def conll_rows(path: Path | str, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``("PATH:LINE", {"words": [...], "tags": [...]})`` for every sentence.

    LINE is the line of the sentence's first word. Columns are separated by tabs or, in lines without tabs, by spaces.
    A no-break space is part of a word.
    The first column is the word and the last is the tag. If all lines have a single column, the rows have no tags.

    Args:
      path: The file's name in error messages.
      lines: Numbered lines, as from :func:`afjax.data.sources.files.read_lines`.

    Raises:
      UserError: A line's number of columns differs from the first line's.
    """
    num_columns = 0
    first_line = 0
    words: list[str] = []
    tags: list[str] = []
    for number, line in lines:
        stripped = line.rstrip("\r\n")
        columns = stripped.split("\t") if "\t" in stripped else re.findall("[^ ]+", stripped)
        if not stripped.strip() or columns[0] == DOCUMENT:
            if words:
                yield _row(path, first_line, words, tags)
                words, tags = [], []
            continue
        num_columns = num_columns or len(columns)
        if len(columns) != num_columns:
            raise UserError(
                f"{path}:{number} has {counted(len(columns), 'column')}, but the first line has {num_columns}; every "
                "line needs a word and a tag, and sentences are separated by blank lines."
            )
        if not words:
            first_line = number
        words.append(columns[0])
        if num_columns > 1:
            tags.append(columns[-1])
    if words:
        yield _row(path, first_line, words, tags)


def _row(path: Path | str, line: int, words: list[str], tags: list[str]) -> tuple[str, dict[str, Any]]:
    return f"{path}:{line}", {"words": words, "tags": tags} if tags else {"words": words}
