"""Loads the splits of a task, and rows to predict on, from wherever they are."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from afjax.config import TaskConfig, TaskKind
from afjax.data.builtin import builtin_rows
from afjax.data.columns import (
    Columns,
    Rows,
    check_label_names,
    check_text,
    class_labels,
    find_label_names,
    number_labels,
    pick_columns,
    read_label_names,
    text_of,
)
from afjax.data.files import find_split_file, nearest_in_folder, read_rows, shorten
from afjax.data.tfds import find_tfds_split, read_tfds
from afjax.errors import UserError

__all__ = ["Rows", "load_split", "load_task", "read_prediction_rows", "rows_from_lists"]

Split = Literal["train", "dev", "test"]


def load_task(task: TaskConfig) -> dict[str, Rows]:
    """Loads ``train``, ``dev`` and, where there is one, ``test``, which may lack labels.

    Label names are the task's own, else the source's (``labels.json`` of its folder, a TFDS feature), else
    those that occur in train, sorted; integers in numeric order.

    Raises:
      UserError: A split is missing, or a file, column, text or label is not as it must be.
    """
    train = load_split(task, "train")
    splits = {"train": train, "dev": load_split(task, "dev", label_names=train.label_names)}
    if has_split(task, "test"):
        columns, _ = read_columns(task, "test")
        splits["test"] = make_rows(columns, task.kind, train.label_names, labelled=columns.labels is not None)
    return splits


def load_split(task: TaskConfig, split: Split, *, label_names: tuple[str, ...] = (), labelled: bool = True) -> Rows:
    """Loads one split; see :func:`load_task`.

    Args:
      task: Where the data is.
      split: Which split.
      label_names: Takes the place of the names that would be found.
      labelled: Whether labels are needed; if not, they are not looked at.

    Raises:
      UserError: The split is missing, or a file, column, text or label is not as it must be.
    """
    columns, known = read_columns(task, split)
    if task.kind == "regression":
        names: tuple[str, ...] = ()
    elif label_names:
        names = label_names
    elif task.labels or known:
        names = check_label_names(task.labels or known, f"The task {task.name}")
    elif labelled:
        names = find_label_names(columns if split == "train" else read_columns(task, "train")[0])
    else:
        names = ()
    return make_rows(columns, task.kind, names, labelled=labelled)


def rows_from_lists(
    texts: Sequence[str] | Sequence[tuple[str, str]],
    labels: Sequence[Any] | None = None,
    *,
    label_names: Sequence[str] = (),
    kind: TaskKind = "classification",
) -> Rows:
    """Makes a split from Python lists.

    Args:
      texts: Strings, or pairs of strings.
      labels: One a text: label names or class indices, or numbers for regression. None: unlabelled.
      label_names: In the order of their indices; empty: those that occur in ``labels``, sorted.
      kind: Classification or regression.

    Raises:
      UserError: One string in place of a list, nothing in ``texts``, mixed texts and pairs, labels of
        another length, or a label that is missing or unknown.
    """
    if isinstance(texts, str):
        raise UserError(f"texts is the one text {shorten(texts)}; put it into a list.")
    if len(texts) == 0:
        raise UserError("texts is empty; give at least one text or pair of texts.")
    if labels is not None and len(labels) != len(texts):
        raise UserError(f"There are {len(texts)} texts and {len(labels)} labels; give one label a text.")
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
    values = None if labels is None else [value.item() if isinstance(value, np.generic) else value for value in labels]
    columns = Columns("texts", list(range(len(texts))), first, second if pairs else None, values)
    names = check_label_names(tuple(label_names), "label_names") if label_names else ()
    if kind == "classification" and labels is not None and not names:
        names = find_label_names(columns)
    return make_rows(columns, kind, names, labelled=labels is not None)


def read_prediction_rows(path: str | Path) -> list[tuple[str, str | None]]:
    """Reads unlabelled rows ``{"text"}`` or ``{"text_a", "text_b"}`` from JSONL(.gz) as (first, second text or None).

    Rows of one text and of two may be mixed.

    Raises:
      UserError: The file is not as it must be, or its rows are of another form.
    """
    path = Path(path)
    if not path.name.removesuffix(".gz").endswith(".jsonl"):
        raise UserError(f"{path} is no JSONL file; give rows to predict on in a file named .jsonl or .jsonl.gz.")
    texts: list[tuple[str, str | None]] = []
    for number, row in read_rows(path):
        place = f"{path}:{number}"
        if {"text_a", "text_b"} <= row.keys():
            texts.append((text_of(place, row, "text_a"), text_of(place, row, "text_b")))
        elif "text" in row:
            texts.append((text_of(place, row, "text"), None))
        else:
            raise UserError(
                f"{place} has the columns {', '.join(row) or '(none)'}; this version predicts on rows "
                '{"text"} or {"text_a", "text_b"}.'
            )
    return texts


def read_columns(task: TaskConfig, split: Split) -> tuple[Columns, tuple[str, ...]]:
    """The columns of a split, and the label names that its source knows."""
    if task.source.startswith("builtin:"):
        rows = builtin_rows(task.source.removeprefix("builtin:"), split)
        numbers = list(range(1, len(rows) + 1))
        assert rows.labels is not None
        labels = [rows.label_names[label] for label in rows.labels]
        return Columns(f"{task.source} {split}", numbers, rows.text_a, rows.text_b, labels), rows.label_names
    if task.source.startswith("tfds:"):
        return read_tfds(task, split)
    path = split_path(task, split)
    if path is None:
        raise UserError(
            f"The task {task.name} has no {split} split: {task.source or '(no source)'} has no file "
            f'{split}.jsonl, .tsv or .csv (or these with .gz); add one, or name it in the task\'s "{split}" setting.'
            f"{nearest_in_folder(Path(task.source) / f'{split}.jsonl')}"
        )
    columns = pick_columns(str(path), read_rows(path), text_a=task.text_a, text_b=task.text_b, label=task.label)
    names_path = Path(task.source).expanduser() / "labels.json"
    known = read_label_names(names_path) if task.source and names_path.is_file() else ()
    return columns, known


def has_split(task: TaskConfig, split: Split) -> bool:
    if task.source.startswith("builtin:"):
        return True
    if task.source.startswith("tfds:"):
        return bool(find_tfds_split(task, split))
    return split_path(task, split) is not None


def split_path(task: TaskConfig, split: Split) -> Path | None:
    """The file of a split: the task's own choice (in the source's folder, where it has one) or the usual one."""
    chosen = getattr(task, split)
    folder = Path(task.source).expanduser()
    if chosen:
        return folder / Path(chosen).expanduser()
    return find_split_file(folder, split) if task.source else None


def make_rows(columns: Columns, kind: TaskKind, names: tuple[str, ...], *, labelled: bool) -> Rows:
    """Rows with checked labels; warns where only one class occurs."""
    if not labelled:
        return Rows(columns.text_a, columns.text_b, None, names)
    if kind == "regression":
        return Rows(columns.text_a, columns.text_b, number_labels(columns), ())
    labels = class_labels(columns, names)
    if (labels == labels[0]).all():
        warnings.warn(
            f'All rows of {columns.source} have the label "{names[labels[0]]}": nothing can be learnt or told from it.',
            stacklevel=3,
        )
    return Rows(columns.text_a, columns.text_b, labels, names)
