"""Data sources that are local files.

A source is either a folder with files for each split, or a single file.
"""

import dataclasses
import os
from itertools import chain
from pathlib import Path

from afjax.config.tasks import TaskConfig
from afjax.data.labels import name_classes, read_label_names
from afjax.data.sources.formats import ENDINGS, file_format, file_stem, find_split_files, is_split_file, read_rows
from afjax.data.sources.kind import SourceKind, Split, SplitSource, looks_like_dev
from afjax.display.words import first_of
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import fetched, is_remote, last_part, open_path


def _open_split(task: TaskConfig, split: Split) -> SplitSource:
    paths = split_paths(task, split)
    if not paths:
        raise missing_split(task, split)
    folder = None if is_one_file(task) or not task.source else fetched(task.source)
    names_path = folder / "labels.json" if folder else None
    # lexists makes a broken link an error. With exists, it would be ignored and the label names would be guessed.
    listed_names = read_label_names(names_path) if names_path and os.path.lexists(names_path) else ()
    named_task = task if task.labels else dataclasses.replace(task, labels=listed_names)
    stored_names = [file_format(str(path)).label_names(path, task.label_column) for path in paths]
    rows = (name_classes(named_task, read_rows(path), names) for path, names in zip(paths, stored_names, strict=True))
    return SplitSource(first_of(list(map(str, paths)), 1), chain.from_iterable(rows), listed_names or stored_names[0])


def _makes_dev(task: TaskConfig) -> bool:
    if not task.dev_share or split_paths(task, "dev") or not split_paths(task, "train"):
        return False
    return is_one_file(task) or not task.source or not _dev_files(fetched(task.source))


def missing_split(task: TaskConfig, split: Split) -> UserError:
    """Creates the error for a missing split."""
    name = f"The task {task.name} has no {split} split"
    share = " or a task.dev_share above 0" if split == "dev" and not task.dev_share else ""
    if task.source and is_one_file(task):
        return UserError(
            f'{name}: its source is a single file, {task.source}. Set a file in the task\'s "{split}" setting{share}.'
        )
    similar = _similar_file(fetched(task.source), split) if task.source else ""
    return UserError(
        f"{name}: {task.source or '(no source)'} has no file {split}{ENDINGS[0]} (or {', '.join(ENDINGS[1:])}); "
        f'add one, or set it in the task\'s "{split}" setting{share}.{similar}'
    )


def is_one_file(task: TaskConfig) -> bool:
    """Whether a task's source is a single file rather than a folder."""
    if not task.source:
        return False
    path = fetched(task.source)
    # A missing path that ends like a data file counts as a file, so that the error reports a missing file.
    return os.path.isfile(path) or (path.name.endswith(ENDINGS) and not os.path.isdir(path))


def split_paths(task: TaskConfig, split: Split) -> tuple[Path, ...]:
    """Finds a split's files.

    A file set in the task is returned even if it does not exist. Otherwise, these are the default files in the folder.
    The task's ``train``, ``dev`` and ``test`` settings are relative to the source folder.

    Raises:
      UserError: The source folder is missing, has two files for the split, or lacks some of the split's numbered files;
        or the source is a file and the task also sets a train file.
    """
    chosen = getattr(task, split)
    source = fetched(task.source) if task.source else Path()
    if is_one_file(task):
        if chosen and split == "train":
            raise UserError(
                f"The task {task.name} has the train file {chosen} and the source {task.source}, which is also a "
                "file; set only one of them."
            )
        if chosen and not is_remote(chosen):
            # Files next to a file on an object store are copied one by one.
            chosen = os.fspath(open_path(task.source).parent / chosen)
        return (fetched(chosen),) if chosen else (source,) if split == "train" else ()
    if chosen:
        return (source / fetched(chosen),)
    return find_split_files(source, split) if task.source else ()


def _similar_file(folder: Path, split: Split) -> str:
    """Suggests a file that could contain the split.

    Returns ``' Did you mean "validation.jsonl"?'``, for example, or ``''`` if there is no such file. Names are compared
    without their endings, which all data files share. Other splits' files are not suggested.
    """
    if split == "dev" and (dev_files := _dev_files(folder)):
        return f' Did you mean "{dev_files[0]}"?'
    stems = {file_stem(name): name for name in reversed(_data_files(folder))}
    suggestion = did_you_mean(split, [stem for stem in stems if stem not in ("train", "dev", "test")])
    return next((f' Did you mean "{name}"?' for stem, name in stems.items() if f'"{stem}"' in suggestion), "")


def _dev_files(folder: Path) -> list[str]:
    """Lists data files in a folder whose names suggest a dev split."""
    return [name for name in _data_files(folder) if looks_like_dev(name)]


def _has_split_files(folder: Path) -> bool:
    return any(is_split_file(name) and os.path.isfile(folder / name) for name in _data_files(folder))


def _data_files(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(ENDINGS))
    except (OSError, ValueError):
        return []


KIND = SourceKind(
    scheme="",
    open_split=_open_split,
    has_split=lambda task, split: bool(split_paths(task, split)),
    split_files=lambda task, split: list(map(str, split_paths(task, split))),
    makes_dev=_makes_dev,
    recognizes=_has_split_files,
    shared_form=lambda source: last_part(source) if source else source,
)
