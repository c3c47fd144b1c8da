"""Finds the rows of a task's splits: in a folder, in one file, in a benchmark's download, built in, or in TFDS."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from afjax.config.tasks import TaskConfig
from afjax.data.columns import TEXT_COLUMNS
from afjax.data.labels import read_label_names
from afjax.data.sources.builtin import builtin_rows
from afjax.data.sources.files import ENDINGS, file_stem, find_split_file, read_rows
from afjax.data.sources.official import OFFICIAL, find_official, read_official
from afjax.data.sources.tfds import TFDS_TEXT_COLUMNS, find_tfds_split, read_tfds
from afjax.data.splits import Rows
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import fetched, local_path

Split = Literal["train", "dev", "test"]

# The first word of a file's name that says the file is a dev split. A folder that has one under another name than
# "dev" does not get a dev split by hash, because its own would be ignored.
_DEV_WORD = re.compile(r"(dev|devel|development|val|valid|validation)([^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """The rows of one split, not yet read.

    Attributes:
      name: The split's name in error messages.
      rows: (the row's name in error messages, its values by column name).
      label_names: The label names that the source knows; may be empty.
      text_columns: Text columns to look for if the task names none.
    """

    name: str
    rows: Iterable[tuple[str, dict[str, Any]]]
    label_names: tuple[str, ...] = ()
    text_columns: Sequence[tuple[str, ...]] = TEXT_COLUMNS


def open_source(task: TaskConfig, split: Split) -> Source:
    """Opens the rows that a split is read from.

    A dev split that is made by hash (see :func:`makes_dev`) is read from the same rows as train.

    Raises:
      UserError: The split is missing.
    """
    scheme, _, rest = task.source.partition(":")
    if scheme == "builtin":
        builtin = builtin_rows(rest, split)
        return Source(f"{task.source} {split}", builtin_source(f"{task.source} {split}", builtin), builtin.label_names)
    if scheme == "tfds":
        name, rows, label_names = read_tfds(task, split)
        return Source(name, rows, label_names, TFDS_TEXT_COLUMNS)
    if scheme == "official":
        official, download = split_official(task.source)
        return Source(
            f"{official}'s {split} split", read_official(official, download, split), OFFICIAL[official].labels
        )
    path = split_path(task, "train" if split == "dev" and makes_dev(task) else split)
    if path is None:
        raise missing_split(task, split)
    folder = None if is_one_file(task) or not task.source else fetched(task.source)
    names_path = folder / "labels.json" if folder else None
    # A link that leads nowhere is there too: the names that it stands for must not be guessed.
    known = read_label_names(names_path) if names_path and os.path.lexists(names_path) else ()
    return Source(str(path), read_rows(path), known)


def missing_split(task: TaskConfig, split: Split) -> UserError:
    """The error for a split that a folder or a file does not have."""
    name = f"The task {task.name} has no {split} split"
    share = " or a task.dev_share above 0" if split == "dev" and not task.dev_share else ""
    if task.source and is_one_file(task):
        return UserError(
            f'{name}: its source is the one file {task.source}; name a file in the task\'s "{split}" setting{share}.'
        )
    similar = _similar_file(fetched(task.source), split) if task.source else ""
    return UserError(
        f"{name}: {task.source or '(no source)'} has no file {split}.jsonl, .tsv or .csv (or these with .gz); add one, "
        f'or name it in the task\'s "{split}" setting{share}.{similar}'
    )


def makes_dev(task: TaskConfig) -> bool:
    """Whether the dev split is a part of the train file, because the task has no dev split of its own.

    Only files of rows are divided. The splits of benchmarks, TFDS and built-in tasks are fixed.
    """
    if task.source.startswith(("builtin:", "tfds:", "official:")) or not task.dev_share:
        return False
    if split_path(task, "dev") is not None or split_path(task, "train") is None:
        return False
    return is_one_file(task) or not task.source or not _dev_files(fetched(task.source))


def has_split(task: TaskConfig, split: Split) -> bool:
    """Whether a task has a split, or a dev split can be made for it."""
    if task.source.startswith("builtin:"):
        return True
    if task.source.startswith("tfds:"):
        return bool(find_tfds_split(task, split))
    if task.source.startswith("official:"):
        return split in find_official(*split_official(task.source))
    return split_path(task, split) is not None or (split == "dev" and makes_dev(task))


def is_one_file(task: TaskConfig) -> bool:
    """Whether a task's source is a file of rows in place of a folder of splits."""
    if not task.source:
        return False
    path = fetched(task.source)
    # A file that does not exist is to be reported as a file.
    return os.path.isfile(path) or (path.name.endswith(ENDINGS) and not os.path.isdir(path))


def split_path(task: TaskConfig, split: Split) -> Path | None:
    """The file of a split: the file that the task names, else the usual one; None if there is none.

    A name in the task's ``train``, ``dev`` or ``test`` is relative to the source's folder.

    Raises:
      UserError: The source's folder is missing, or a task of one file names a train file as well.
    """
    chosen = getattr(task, split)
    source = fetched(task.source) if task.source else Path()
    if is_one_file(task):
        if chosen and split == "train":
            raise UserError(
                f"The task {task.name} has the train file {chosen} and the source {task.source}, which is a file as "
                "well; leave one of them out."
            )
        return source.parent / fetched(chosen) if chosen else source if split == "train" else None
    if chosen:
        return source / fetched(chosen)
    return find_split_file(source, split) if task.source else None


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


def _similar_file(folder: Path, split: Split) -> str:
    """``' Did you mean "validation.jsonl"?'`` for a file that may be the split, or an empty string.

    Names are compared without their endings, which all data files share. Other splits are not offered.
    """
    if split == "dev" and (found := _dev_files(folder)):
        return f' Did you mean "{found[0]}"?'
    stems = {file_stem(name): name for name in reversed(_data_files(folder))}
    near = did_you_mean(split, [stem for stem in stems if stem not in ("train", "dev", "test")])
    return next((f' Did you mean "{name}"?' for stem, name in stems.items() if f'"{stem}"' in near), "")


def _dev_files(folder: Path) -> list[str]:
    """The data files of a folder whose names say that they are a dev split."""
    return [name for name in _data_files(folder) if _DEV_WORD.match(name)]


def _data_files(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(ENDINGS))
    except OSError:
        return []
