"""Loads and tokenizes texts and text pairs, for several kinds of tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from afjax.config.tasks import TaskConfig
from afjax.data.columns import TEXT_COLUMNS, Columns, check_text, first_row, is_missing, listing, read_rows, text_of
from afjax.data.labels import check_label_names
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SplitSource
from afjax.data.sources.kinds import source_kind
from afjax.data.splits import ChoiceRows, Rows
from afjax.data.tokenization import TokenizedRows, tokenize_rows
from afjax.errors import UserError
from afjax.tasks.kind import Form, LabelReading


def read_columns(task: TaskConfig, source: SplitSource, *, labeled: bool | None = True) -> Columns:
    """Selects the text, label and id columns.

    The first row determines which columns exist.

    Args:
      task: The task, which can name the columns. The label column may be missing unless the task names it.
      source: The split, with at least one row.
      labeled: Whether the label column must exist if the task names it. If False, labels are ignored. If None, they are
        used if the column exists.

    Raises:
      UserError: There are no rows, a column is missing, only some rows have an optional label, a text is not a valid
        string, an ``id`` is not a string or integer, two rows have the same ``id``, or the task sets ``text_b`` without
        ``text_a``.
    """
    peeked = first_row(source.name, source.rows)
    place, first, _ = peeked
    names, label = text_names(place, first, task, source.text_columns), task.label_column
    for name in names:
        text_of(place, first, name)  # Report a missing text column before a missing label column.
    # A label column that the task does not name is optional.
    required = False if labeled and not task.label and label not in first else labeled
    places, texts, labels, ids = read_rows(
        source.name, peeked, label, lambda place, row: [text_of(place, row, name) for name in names], labeled=required
    )
    first_texts, *second_texts = map(list, zip(*texts, strict=True))
    return Columns(
        source.name,
        places,
        first_texts,
        second_texts[0] if second_texts else None,
        labels,
        ids,
        names=tuple(map(str, first)),
        label=label,
    )


def text_names(place: str, row: dict[str, Any], task: TaskConfig, known: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Selects one or two text columns: the task's, or else the first ``known`` ones that all exist."""
    if task.text_a:
        return (task.text_a, task.text_b) if task.text_b else (task.text_a,)
    if task.text_b:
        raise UserError(f'The task sets text_b="{task.text_b}" but not text_a; set both columns.')
    for names in known:
        if all(name in row for name in names):
            return names
    expected = " or ".join(" and ".join(names) for names in known)
    raise UserError(
        f"{place} has no text columns {expected}; its columns are {listing(row)}. Set the text columns with the task's "
        '"text_a" and "text_b" settings.'
    )


def has_labels(columns: Columns, labels: LabelReading) -> bool:
    """Whether to use labels: if they are required, or optional and some row has one."""
    if labels.required is not None:
        return labels.required
    # A class may be called "-1".
    return columns.labels is not None and any(
        str(label) in labels.names or not is_missing(label) for label in columns.labels
    )


class GivenNames(NamedTuple):
    """Label names that are known before the rows are loaded.

    Attributes:
      names: The names; may be empty.
      listed: Whether integer labels can be indices into the names.
      of_head: Whether the names are only a head's labels, whose order the user may not know.
    """

    names: tuple[str, ...]
    listed: bool
    of_head: bool


def given_names(task: TaskConfig, source: SplitSource, labels: LabelReading) -> GivenNames:
    """Determines the label names that are known before the rows are loaded.

    Raises:
      UserError: The task or the source lists invalid names.
    """
    listed_names = task.labels or source.label_names
    names = labels.names or (listed_names and check_label_names(listed_names, f"The task {task.name}"))
    if labels.listed is None:
        return GivenNames(names, bool(listed_names), of_head=False)
    return GivenNames(names, labels.listed, of_head=labels.listed and not listed_names)


def columns_from_lists(texts: Sequence[Any], labels: list[Any] | None) -> Columns:
    """Validates lists of texts or text pairs and converts them to columns.

    Raises:
      UserError: A text is not a string, or single texts and pairs are mixed.
    """
    pairs = isinstance(texts[0], (tuple, list))
    first: list[str] = []
    second: list[str] = []
    for row, text in enumerate(texts):
        parts: list[Any] = list(text) if pairs and isinstance(text, (tuple, list)) else [text]
        if len(parts) != 1 + pairs or not all(isinstance(part, str) for part in parts):
            expected = "a pair of strings" if pairs else "a string"
            like_first = "like the first text, " if row else ""
            raise UserError(f"texts:{row} is {shorten(text)}; {like_first}it must be {expected}.")
        for part in parts:
            check_text(f"texts:{row}", part)
        first.append(parts[0])
        second.append(parts[-1])
    places = [f"texts:{row}" for row in range(len(texts))]
    return Columns("texts", places, first, second if pairs else None, labels)


def text_forms(task: TaskConfig, text_columns: int | None) -> list[Form]:
    """Lists the supported text columns for prediction; see ``KindSpec.forms``."""
    default_names = [*source_kind(task.source).text_columns, *TEXT_COLUMNS]
    named = (task.text_a, task.text_b) if task.text_b else (task.text_a,)
    forms = [Form(names) for names in ([named] if task.text_a else []) + default_names]
    return [form for form in forms if text_columns in (None, len(form.texts))]


def pick_texts(place: str, row: dict[str, Any], form: Form) -> Any:
    """Extracts a text or text pair; see ``KindSpec.pick``."""
    texts = [text_of(place, row, name) for name in form.texts]
    return texts[0] if len(texts) == 1 else tuple(texts)


def tokenize_texts(
    rows: Rows | ChoiceRows,
    tokenizer: Any,
    task: TaskConfig,
    *,
    max_length: int,
    training: bool,
    cache_dir: Path | None,
) -> TokenizedRows:
    """Tokenizes rows; see ``KindSpec.tokenize``."""
    return tokenize_rows(rows, tokenizer, max_length=max_length, cache_dir=cache_dir)
