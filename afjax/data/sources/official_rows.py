"""Converts benchmark rows to common keys and assigns them to splits.

The common keys are ``text``; ``text_a`` and ``text_b``; or ``context`` and ``choices``. Labeled rows also have
``label``, and rows have ``id`` if the benchmark provides one.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.data.sources.files import read_lines, shorten
from afjax.data.sources.layouts import Row, RowChooser, RowReader, Split
from afjax.display.words import counted
from afjax.errors import UserError


def fields(
    *,
    label: str | tuple[str, ...],
    id: str = "",
    rename: Mapping[str, str] = {},
    strip: bool = False,
    **texts: str | tuple[str, ...],
) -> RowReader:
    """Builds a reader that renames columns.

    Args:
      label: The label column, or several candidates. The first that exists is used.
      id: The id column; empty if there is none.
      rename: Maps the benchmark's labels to the task's label names, if they differ.
      strip: Whether to strip white space from the texts.
      **texts: The benchmark's text columns by common key.
    """

    def read_text(place: str, raw: Row, names: str | tuple[str, ...]) -> str:
        text = raw_text(place, raw, names)
        return text.strip() if strip else text

    def read_row(place: str, raw: Row, labeled: bool) -> Row:
        row = raw_id(place, raw, id) | {key: read_text(place, raw, names) for key, names in texts.items()}
        given = raw_label(place, raw, label, labeled)
        return row if given is None else row | {"label": rename.get(given, given)}

    return read_row


def csqa_row(place: str, raw: Row, labeled: bool) -> Row:
    question = raw_value(place, raw, "question")
    if not isinstance(question, dict):
        raise UserError(f'{place} has {shorten(question)} as "question"; it must be an object with stem and choices.')
    choices = raw_value(place, question, "choices")
    if not (isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices)):
        raise UserError(f'{place} has {shorten(choices)} as "choices"; it must be a list of objects.')
    texts = [raw_text(place, choice, "text") for choice in choices]
    names = [raw_value(place, choice, "label") for choice in choices]
    label = raw_label(place, raw, "answerKey", labeled)
    return raw_id(place, raw, "id") | choice_row(place, raw_text(place, question, "stem"), texts, label, names)


def socialiqa_row(place: str, raw: Row, labeled: bool) -> Row:
    context = f"{raw_text(place, raw, 'context')} {raw_text(place, raw, 'question')}"
    return choice_row(place, context, [raw_text(place, raw, f"answer{letter}") for letter in "ABC"], None, ())


def winogrande_row(place: str, raw: Row, labeled: bool) -> Row:
    context, blank, ending = raw_text(place, raw, "sentence").partition("_")
    if not blank:
        raise UserError(f'{place} has a sentence without the blank "_"; download the file again.')
    choices = [(raw_text(place, raw, name) + ending).strip() for name in ("option1", "option2")]
    label = raw_label(place, raw, "answer", labeled)
    return raw_id(place, raw, "qID") | choice_row(place, context.strip(), choices, label, ("1", "2"))


def hellaswag_row(place: str, raw: Row, labeled: bool) -> Row:
    endings = raw_value(place, raw, "endings")
    if not (isinstance(endings, list) and all(isinstance(ending, str) for ending in endings)):
        raise UserError(f'{place} has {shorten(endings)} as "endings"; it must be a list of strings.')
    beginning = raw_text(place, raw, "ctx_b")
    choices = [f"{beginning} {ending}".strip() for ending in endings]
    names = [str(number) for number in range(len(choices))]
    return choice_row(place, raw_text(place, raw, "ctx_a"), choices, raw_label(place, raw, "label", labeled), names)


def cosmosqa_row(place: str, raw: Row, labeled: bool) -> Row:
    context = f"{raw_text(place, raw, 'context')} {raw_text(place, raw, 'question')}"
    choices = [raw_text(place, raw, f"answer{number}") for number in range(4)]
    label = raw_label(place, raw, "label", labeled)
    return raw_id(place, raw, "id") | choice_row(place, context, choices, label, ("0", "1", "2", "3"))


def choice_row(place: str, context: str, choices: list[str], label: Any, names: Sequence[str]) -> Row:
    """Builds a multiple-choice row.

    The label must be the name of a choice, or None for an unlabeled row.
    """
    if len(choices) < 2:
        raise UserError(f"{place} has {counted(len(choices), 'choice')}; it must have at least two.")
    row: Row = {"context": context, "choices": choices}
    if label is None:
        return row
    if str(label) not in names:
        raise UserError(f"{place} has the label {shorten(label)}; it must be one of {', '.join(map(str, names))}.")
    return row | {"label": list(names).index(str(label))}


def argument_row(place: str, raw: Row, labeled: bool) -> Row:
    if "sentence" not in raw:
        raise UserError(
            f'{place} has no column "sentence", because the corpus is published without its texts; run the pipeline '
            "included with it to complete the files."
        )
    return fields(text_a="topic", text_b="sentence", label="annotation")(place, raw, labeled)


def label_set_row(names: Sequence[str], read_row: RowReader) -> RowReader:
    """Builds a reader for multi-label rows.

    The label column has comma-separated label indices.

    Args:
      names: The label names, in index order.
      read_row: Reads a row's other columns, and its label as a string.
    """

    def read_set(place: str, raw: Row, labeled: bool) -> Row:
        row = read_row(place, raw, labeled)
        if "label" not in row:
            return row
        indices = str(row["label"]).split(",")
        for index in indices:
            if not (index.isdecimal() and len(index) < 10 and int(index) < len(names)):
                raise UserError(
                    f"{place} has the labels {shorten(row['label'])}; they must be numbers from 0 to {len(names) - 1}, "
                    "separated by commas."
                )
        return row | {"label": [names[int(index)] for index in indices]}

    return read_set


def raw_value(place: str, raw: Row, names: str | tuple[str, ...]) -> Any:
    """Returns the value of the first column that exists."""
    for name in (names,) if isinstance(names, str) else names:
        if name in raw:
            return raw[name]
    expected = names if isinstance(names, str) else '" or "'.join(names)
    raise UserError(
        f'{place} has no "{expected}", only {", ".join(map(str, raw)) or "no columns"}; check that this is the '
        "benchmark's original file."
    )


def raw_text(place: str, raw: Row, names: str | tuple[str, ...]) -> str:
    text = raw_value(place, raw, names)
    if not isinstance(text, str):
        raise UserError(f'{place} has {shorten(text)} as "{names}"; it must be a string.')
    return text


def raw_label(place: str, raw: Row, names: str | tuple[str, ...], labeled: bool) -> Any:
    """Returns a row's label, or None if it is missing and optional.

    Booleans become "true" and "false".
    """
    alternatives = (names,) if isinstance(names, str) else names
    if not labeled and all(raw.get(name) in (None, "") for name in alternatives):
        return None
    label = raw_value(place, raw, alternatives)
    return str(label).lower() if isinstance(label, bool) else label


def raw_id(place: str, raw: Row, name: str) -> Row:
    if not name or name not in raw:
        return {}
    if not isinstance(raw[name], str | int):
        raise UserError(f'{place} has {shorten(raw[name])} as "{name}"; an id must be a string or a number.')
    return {"id": raw[name]}


def by_column(column: str, splits: Mapping[str, Split]) -> RowChooser:
    """Selects rows by a column that contains the name of their split."""

    def choose(split: Split, files: tuple[Path, ...]) -> Callable[[str, Row, Row], bool]:
        def belongs(place: str, raw: Row, row: Row) -> bool:
            name = raw_value(place, raw, column)
            if name not in splits:
                raise UserError(f'{place} has {shorten(name)} as "{column}"; it must be one of {", ".join(splits)}.')
            return splits[name] == split

        return belongs

    return choose


def by_dev_ids(split: Split, files: tuple[Path, ...]) -> Callable[[str, Row, Row], bool]:
    """Splits MRPC's train file in the same way as GLUE.

    A row is in dev if its pair of ids is in ``dev_ids.tsv``.
    """
    lines = (line.split() for _, line in read_lines(files[1]))
    dev_ids = {(line[0], line[1]) for line in lines if len(line) == 2}
    return lambda place, raw, row: (
        ((raw_value(place, raw, "#1 ID"), raw_value(place, raw, "#2 ID")) in dev_ids) == (split == "dev")
    )


def by_hash(split: Split, files: tuple[Path, ...]) -> Callable[[str, Row, Row], bool]:
    """Selects rows by :func:`hashed_split`."""
    return lambda place, raw, row: hashed_split(row["text"], test=True) == split


def hashed_split(text: str, *, test: bool) -> Split:
    """Assigns a text to a split by its hash, for benchmarks without official splits.

    One tenth of the texts is assigned to dev and, if ``test`` is true, one tenth to test. The split does not depend on
    the order of the texts.
    """
    part = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    if part < 0.1:
        return "dev"
    return "test" if test and part < 0.2 else "train"
