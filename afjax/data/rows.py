"""Loads the splits of a task, and rows to predict on, from wherever they are."""

import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from afjax.config import TaskConfig, TaskKind
from afjax.data.builtin import builtin_rows
from afjax.data.choices import check_choices, choice_index, pick_choices
from afjax.data.columns import (
    TEXT_COLUMNS,
    Columns,
    check_text,
    is_missing,
    number_labels,
    pick_columns,
    text_of,
)
from afjax.data.files import find_split_file, nearest_in_folder, read_rows, shorten
from afjax.data.labels import check_label_names, class_labels, find_label_names, read_label_names
from afjax.data.official import OFFICIAL, find_official, read_official
from afjax.data.spans import check_answers, pick_spans
from afjax.data.splits import AnyRows, ChoiceRows, Rows, SpanRows, check_same_form
from afjax.data.tfds import TFDS_TEXT_COLUMNS, find_tfds_split, read_tfds
from afjax.dataclass_dicts import check_value
from afjax.errors import UserError, did_you_mean
from afjax.paths import fetched, local_path

__all__ = [
    "AnyRows",
    "ChoiceRows",
    "Rows",
    "SpanRows",
    "load_split",
    "load_task",
    "read_prediction_rows",
    "rows_from_lists",
]

Split = Literal["train", "dev", "test"]


def load_task(task: TaskConfig) -> dict[str, AnyRows]:
    """Loads ``train``, ``dev`` and, where there is one, ``test``, which may lack labels.

    Label names are the task's own, else the source's (``labels.json`` of its folder, the benchmark's, a TFDS feature),
    else those that occur in train, sorted; integers in numeric order.

    Raises:
      UserError: A split is missing, a file, column, text or label is not as it must be, or one split has pairs of texts
        and another single texts.
    """
    train = load_split(task, "train")
    if isinstance(train, SpanRows) and not train.trainable():
        raise UserError(
            f"No row of the task {task.name}'s train split says where its answer begins; give its rows an answer_start."
        )
    if task.train_rows:
        train = train.every(task.train_rows)
    splits = {"train": train, "dev": load_split(task, "dev", label_names=train.label_names)}
    if has_split(task, "test"):
        splits["test"] = load_split(task, "test", label_names=train.label_names, labelled=None)
    check_forms(task, splits)
    return splits


def check_forms(task: TaskConfig, splits: Mapping[str, AnyRows]) -> None:
    """Raises UserError unless all splits have the same form: pairs of texts, or single texts."""
    for split, rows in splits.items():
        check_same_form(
            splits["train"].text_columns,
            f"The task {task.name}'s train rows",
            rows,
            f"its {split} rows",
            "give all splits the same columns, or name the columns in the task's text_a and text_b settings",
        )


def load_split(
    task: TaskConfig,
    split: Split,
    *,
    label_names: tuple[str, ...] = (),
    listed: bool | None = None,
    labelled: bool | None = True,
) -> AnyRows:
    """Loads one split; see :func:`load_task`.

    Args:
      task: Where the data is.
      split: Which split.
      label_names: Takes the place of the names that would be found.
      listed: Whether an integer label may be an index into ``label_names``; None: if the task or its source lists label
        names. Names that were found in a split have no order that its author knew.
      labelled: Whether labels are needed; if not, they are not looked at. None: they are taken where they are.

    Raises:
      UserError: The split is missing, or a file, column, text or label is not as it must be.
    """
    source = open_source(task, split)
    if task.kind == "span":
        return pick_spans(
            source.name,
            source.rows,
            context=task.text_a,
            question=task.text_b,
            answers=task.label,
            no_answer=task.span.no_answer,
            labelled=labelled,
        )
    found = task.labels or source.label_names
    known = label_names or (found and check_label_names(found, f"The task {task.name}"))
    if task.kind == "multiple_choice":
        rows = pick_choices(
            source.name,
            source.rows,
            context=task.text_a,
            question=task.text_b,
            choices=task.choices,
            label=task.label,
            label_names=known,
            labelled=labelled,
        )
        # The benchmarks' own rows come with their questions in the contexts.
        return replace(rows, has_question=None) if task.source.startswith("official:") else rows
    columns = read_columns(task, source)
    if labelled is None:
        labelled = columns.labels is not None and not all(map(is_missing, columns.labels))
    if task.kind == "regression":
        names: tuple[str, ...] = ()
    elif known:
        names = known
    elif labelled:
        names = find_label_names(columns if split == "train" else read_columns(task, open_source(task, "train")))
    else:
        names = ()
    return make_rows(columns, task.kind, names, listed=bool(found) if listed is None else listed, labelled=labelled)


def rows_from_lists(
    texts: Sequence[Any],
    labels: Sequence[Any] | None = None,
    *,
    label_names: Sequence[str] = (),
    kind: TaskKind = "classification",
) -> AnyRows:
    """Makes a split from Python lists.

    Args:
      texts: Strings, or pairs of strings; for multiple choice pairs of a context and its list of choices; for span
        pairs of a question and its context.
      labels: One a text: label names or class indices; numbers for regression; the right choice's number or name for
        multiple choice; ``{"text": [...], "answer_start": [...]}`` for span (both empty: it has no answer). None:
        unlabelled.
      label_names: In the order of their indices; empty: those that occur in ``labels``, sorted.
      kind: The task's kind.

    Raises:
      UserError: One string in place of a list, nothing in ``texts``, mixed texts and pairs, labels of
        another length, a label that is missing or unknown, or an unknown kind.
    """
    check_value(TaskKind, kind, "kind")
    if isinstance(texts, str):
        raise UserError(f"texts is the one text {shorten(texts)}; put it into a list.")
    given: Mapping[str, Any] = {"texts": texts, "labels": () if labels is None else labels, "label_names": label_names}
    for what, column in given.items():
        if isinstance(column, str) or not (hasattr(column, "__len__") and hasattr(column, "__getitem__")):
            raise UserError(f"{what} is {shorten(column)}; give a list.")
    if len(texts) == 0:
        raise UserError("texts is empty; give at least one text or pair of texts.")
    if labels is not None and len(labels) != len(texts):
        raise UserError(f"There are {len(texts)} texts and {len(labels)} labels; give one label a text.")
    values = None if labels is None else [value.item() if isinstance(value, np.generic) else value for value in labels]
    names = check_label_names(tuple(label_names), "label_names") if label_names else ()
    if kind == "multiple_choice":
        return choices_from_lists(texts, values, names)
    if kind == "span":
        return spans_from_lists(texts, values)
    pairs = isinstance(texts[0], (tuple, list))
    first: list[str] = []
    second: list[str] = []
    for row, text in enumerate(texts):
        parts: list[Any] = list(text) if pairs and isinstance(text, (tuple, list)) else [text]
        if len(parts) != 1 + pairs or not all(isinstance(part, str) for part in parts):
            wanted = "a pair of strings" if pairs else "a string"
            raise UserError(f"texts:{row} is {shorten(text)}; like the first of the texts it must be {wanted}.")
        for part in parts:
            check_text(f"texts:{row}", part)
        first.append(parts[0])
        second.append(parts[-1])
    places = [f"texts:{row}" for row in range(len(texts))]
    columns = Columns("texts", places, first, second if pairs else None, values)
    if kind == "classification" and labels is not None and not names:
        names = find_label_names(columns)
    return make_rows(columns, kind, names, listed=bool(label_names), labelled=labels is not None)


def choices_from_lists(texts: Sequence[Any], labels: Sequence[Any] | None, names: tuple[str, ...]) -> ChoiceRows:
    contexts, choices = [], []
    for row, text in enumerate(texts):
        if not (isinstance(text, (tuple, list)) and len(text) == 2 and isinstance(text[0], str)):
            raise UserError(f"texts:{row} is {shorten(text)}; it must be a pair of a context and its list of choices.")
        check_text(f"texts:{row}", text[0])
        contexts.append(text[0])
        choices.append(check_choices(f"texts:{row}", text[1]))
    if labels is None:
        return ChoiceRows(contexts, choices, None, names)
    indices = [
        choice_index(f"texts:{row}", label, len(of_row), names)
        for row, (label, of_row) in enumerate(zip(labels, choices, strict=True))
    ]
    return ChoiceRows(contexts, choices, np.array(indices, np.int32), names)


def spans_from_lists(texts: Sequence[Any], labels: Sequence[Any] | None) -> SpanRows:
    for row, text in enumerate(texts):
        if not (isinstance(text, (tuple, list)) and len(text) == 2 and all(isinstance(part, str) for part in text)):
            raise UserError(f"texts:{row} is {shorten(text)}; it must be a pair of a question and its context.")
        for part in text:
            check_text(f"texts:{row}", part)
    questions, contexts = (list(column) for column in zip(*texts, strict=True))
    ids = [str(row) for row in range(len(texts))]
    if labels is None:
        return SpanRows(questions, contexts, None, ids=ids)
    answers = [
        check_answers(f"texts:{row}", label, context, no_answer=True)
        for row, (label, context) in enumerate(zip(labels, contexts, strict=True))
    ]
    return SpanRows(questions, contexts, answers, ids=ids)


def read_prediction_rows(
    path: str | Path, kind: TaskKind, text_columns: int | None = None
) -> list[tuple[list[int], AnyRows]]:
    """Reads rows to predict on from JSONL(.gz); labels in them are left alone.

    Rows are ``{"text"}`` or ``{"text_a", "text_b"}``; for multiple choice ``{"context", "choices"}``, perhaps with a
    ``question``; for span ``{"question", "context"}``.

    Args:
      path: The file.
      kind: The kind of task that the head does.
      text_columns: The form of the rows that the head was trained on; see ``Rows.text_columns``. None if it is not
        known: rows of both forms are read, also mixed.

    Returns:
      The rows of each form, with their numbers in the file, from 0.

    Raises:
      UserError: The file is not as it must be, or its rows are of another form.
    """
    path = Path(path)
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        raise UserError(f"{path} is no JSONL file; give rows to predict on in a file named .jsonl or .jsonl.gz.")
    forms = _prediction_forms(kind, text_columns)
    texts: dict[int, list[Any]] = {}
    numbers: dict[int, list[int]] = {}
    for number, (place, row) in enumerate(read_rows(path)):
        form = next((names for names in forms if set(names) <= row.keys()), None)
        if form is None or (kind == "multiple_choice" and text_columns == 1 and "question" in row):
            wanted = " or ".join(json.dumps(list(names)) for names in forms)
            without = " and without a question" if form else ""
            trained = ", the form of the rows that it was trained on" if text_columns else ""
            raise UserError(
                f"{place} has the columns {', '.join(row) or '(none)'}; this head predicts on rows with "
                f"{wanted}{without}{trained}."
            )
        parts: list[Any] = []
        if kind == "multiple_choice":
            columns = ("context", "question") if "question" in row else ("context",)
            context = " ".join(text_of(place, row, name) for name in columns)
            parts = [context, check_choices(place, row["choices"])]
        else:
            parts = [text_of(place, row, name) for name in form]
        texts.setdefault(len(parts), []).append(parts[0] if len(parts) == 1 else tuple(parts))
        numbers.setdefault(len(parts), []).append(number)
    return [(numbers[length], rows_from_lists(texts[length], kind=kind)) for length in sorted(texts)]


def _prediction_forms(kind: TaskKind, text_columns: int | None) -> tuple[tuple[str, ...], ...]:
    """The columns that rows to predict on may have, in order of preference."""
    if kind == "span":
        return (("question", "context"),)
    if kind == "multiple_choice":
        return (("context", "question", "choices") if text_columns == 2 else ("context", "choices"),)
    return tuple(names for names in TEXT_COLUMNS if text_columns in (None, len(names)))


@dataclass(frozen=True)
class Source:
    """The rows of one split, not yet read.

    Attributes:
      name: What errors call it.
      rows: (what errors call the row, its values by column name).
      label_names: Those that the source knows; may be empty.
      text_columns: Text columns to look for where the task names none.
    """

    name: str
    rows: Iterable[tuple[str, dict[str, Any]]]
    label_names: tuple[str, ...] = ()
    text_columns: Sequence[tuple[str, ...]] = TEXT_COLUMNS


def open_source(task: TaskConfig, split: Split) -> Source:
    """Where a split's rows come from."""
    scheme, _, rest = task.source.partition(":")
    if scheme == "builtin":
        builtin = builtin_rows(rest, split)
        return Source(f"{task.source} {split}", builtin_source(f"{task.source} {split}", builtin), builtin.label_names)
    if scheme == "tfds":
        name, rows, label_names = read_tfds(task, split)
        return Source(name, rows, label_names, TFDS_TEXT_COLUMNS)
    if scheme == "official":
        official, folder = split_official(task.source)
        return Source(f"{official}'s {split} split", read_official(official, folder, split), OFFICIAL[official].labels)
    path = split_path(task, split)
    if path is None:
        raise UserError(
            f"The task {task.name} has no {split} split: {task.source or '(no source)'} has no file "
            f'{split}.jsonl, .tsv or .csv (or these with .gz); add one, or name it in the task\'s "{split}" setting.'
            f"{nearest_in_folder(fetched(task.source) / f'{split}.jsonl') if task.source else ''}"
        )
    names_path = fetched(task.source) / "labels.json" if task.source else None
    # A link that leads nowhere is there too: the names that it stands for must not be guessed.
    known = read_label_names(names_path) if names_path and os.path.lexists(names_path) else ()
    return Source(str(path), read_rows(path), known)


def split_official(source: str) -> tuple[str, Path]:
    """``official:NAME:FOLDER`` as (name, folder)."""
    _, name, folder = (source + "::").split(":", 2)
    folder = folder.removesuffix("::").removesuffix(":")
    if name not in OFFICIAL or not folder:
        raise UserError(
            f'The source "{source}" is not official:NAME:FOLDER with one of the tasks {", ".join(OFFICIAL)} and the '
            f"folder that holds its download.{did_you_mean(name, OFFICIAL)}"
        )
    return name, local_path(folder, f"The folder of {name}'s download")


def builtin_source(name: str, rows: Rows) -> Iterator[tuple[str, dict[str, Any]]]:
    assert rows.text_b is not None, "built-in tasks are pairs"
    assert rows.labels is not None, "built-in tasks are labelled"
    for number, (first, second, label) in enumerate(zip(rows.text_a, rows.text_b, rows.labels, strict=True), start=1):
        yield f"{name}:{number}", {"text_a": first, "text_b": second, "label": rows.label_names[label]}


def read_columns(task: TaskConfig, source: Source) -> Columns:
    """The text and label columns of a classification or regression task."""
    return pick_columns(
        source.name,
        source.rows,
        text_a=task.text_a,
        text_b=task.text_b,
        label=task.label,
        known=source.text_columns,
    )


def has_split(task: TaskConfig, split: Split) -> bool:
    if task.source.startswith("builtin:"):
        return True
    if task.source.startswith("tfds:"):
        return bool(find_tfds_split(task, split))
    if task.source.startswith("official:"):
        return split in find_official(*split_official(task.source))
    return split_path(task, split) is not None


def split_path(task: TaskConfig, split: Split) -> Path | None:
    """The file of a split: the task's own choice (in the source's folder, where it has one) or the usual one."""
    chosen = getattr(task, split)
    folder = fetched(task.source) if task.source else Path()
    if chosen:
        return folder / fetched(chosen)
    return find_split_file(folder, split) if task.source else None


def make_rows(columns: Columns, kind: TaskKind, names: tuple[str, ...], *, listed: bool, labelled: bool) -> Rows:
    """Rows with checked labels; warns if only one class occurs. ``listed`` is as in :func:`load_split`."""
    if not labelled:
        return Rows(columns.text_a, columns.text_b, None, names, ids=columns.ids)
    if kind == "regression":
        return Rows(columns.text_a, columns.text_b, number_labels(columns), (), ids=columns.ids)
    labels = class_labels(columns, names, listed=listed)
    if (labels == labels[0]).all():
        warnings.warn(
            f'All rows of {columns.source} have the label "{names[labels[0]]}": nothing can be learnt or told from it.',
            stacklevel=3,
        )
    return Rows(columns.text_a, columns.text_b, labels, names, ids=columns.ids)
