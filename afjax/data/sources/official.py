"""Finds and reads official benchmark downloads on disk."""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.data.sources.files import shorten
from afjax.data.sources.kind import SPLITS, SourceKind, Split, SplitSource
from afjax.data.sources.layouts import Layout, Row
from afjax.data.sources.official_glue import GLUE_TASKS
from afjax.data.sources.official_houlsby import HOULSBY_TASKS
from afjax.data.sources.official_multiple_choice import MULTIPLE_CHOICE_TASKS
from afjax.data.sources.official_task import OfficialTask
from afjax.data.sources.official_texts import TEXT_TASKS
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import last_part, local_path

# The layouts of files are in afjax.data.sources.layouts. The formats of rows, and the splits of benchmarks without
# splits, are in afjax.data.sources.official_rows.
OFFICIAL: Mapping[str, OfficialTask] = {**GLUE_TASKS, **MULTIPLE_CHOICE_TASKS, **TEXT_TASKS, **HOULSBY_TASKS}


def find_official(name: str, data_dir: Path) -> dict[Split, tuple[Path, ...]]:
    """Finds the files of each split under ``data_dir``.

    The result is empty if the task is not found. If a task has one file per text, the result has their folder or
    archive instead. Folders with a ``labels.json`` are in afjax's own format and are ignored.
    """
    return {split: files for split, (_, files) in locate(name, data_dir)[1].items()}


def read_official(name: str, data_dir: Path, split: Split) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields ``(place, row)`` for each row of a split, in file order.

    ``place`` is the row's name in error messages. A row has ``text``; ``text_a`` and ``text_b``; ``context`` and
    ``choices``; ``words`` and ``tags``; or ``id``, ``question``, ``context`` and ``answers`` (``text`` and
    ``answer_start``, both lists). In the first three forms, labeled rows also have a ``label``, which is the index of
    the correct choice for multiple choice. Rows have an ``id`` if the benchmark provides one.

    Raises:
      UserError: The task or split does not exist, or a file is not in the benchmark's format.
    """
    folder, splits = locate(name, data_dir)
    if split not in splits:
        raise UserError(missing(name, data_dir, folder, split))
    layout, files = splits[split]
    return checked(layout.read(split, files), f"The {split} split of {name} in {files[0]}")


def locate(name: str, data_dir: Path) -> tuple[Path | None, dict[Split, tuple[Layout, tuple[Path, ...]]]]:
    """Finds a task's folder (None if missing) and the layout and files of each split."""
    if name not in OFFICIAL:
        raise UserError(
            f'There is no official task "{name}"; the tasks are {", ".join(OFFICIAL)}.{did_you_mean(name, OFFICIAL)}'
        )
    task = OFFICIAL[name]
    for folder in existing(data_dir, task.folders):
        splits: dict[Split, tuple[Layout, tuple[Path, ...]]] = {}
        for split in SPLITS:
            for layout in task.layouts:
                files = layout.find(folder, split)
                if files and split not in splits:
                    splits[split] = layout, files
        if splits:
            return folder, splits
    return None, {}


def existing(data_dir: Path, folders: Iterable[str]) -> Iterator[Path]:
    """Yields the folders that exist in ``data_dir``.

    Folders in afjax's own format, which have a ``labels.json``, are left out. Names are case-sensitive even if the file
    system is not, so RTE and rte are distinct folders.
    """
    for name in folders:
        folder = data_dir
        for part in PurePosixPath(name).parts:
            if not (folder.is_dir() and part in os.listdir(folder)):
                break
            folder = folder / part
        else:
            if folder.is_dir() and not (folder / "labels.json").is_file():
                yield folder


def missing(name: str, data_dir: Path, folder: Path | None, split: Split) -> str:
    """Formats the error message for a missing split.

    It names the expected files and folder.
    """
    task = OFFICIAL[name]
    names = {other: [text for layout in task.layouts for text in layout.describe(other)] for other in SPLITS}
    if not names[split]:
        available = ", ".join(other for other in SPLITS if names[other])
        return f"{name} has no official {split} split; its splits are {available}."
    files = f"{' or '.join(names[split])} (each may also be gzipped)"
    if folder:
        return f"{folder} has no {split} split of {name}; it needs {files}, from the benchmark's official download."
    return (
        f"{data_dir} has no official data for {name}; download the benchmark's official files, whose {split} split is "
        f"{files}, and put them in {data_dir / task.folders[0]}."
    )


def checked(rows: Iterator[tuple[str, Row]], source: str) -> Iterator[tuple[str, Row]]:
    """Yields rows, raising UserError for a duplicate id or an empty split."""
    ids: set[Any] = set()
    empty = True
    for place, row in rows:
        empty = False
        if "id" in row:
            if str(row["id"]) in ids:
                raise UserError(f"{place} has the id {shorten(row['id'])} of an earlier row; download the file again.")
            ids.add(str(row["id"]))
        yield place, row
    if empty:
        raise UserError(f"{source} has no rows; download the benchmark's official files again.")


def _open_split(task: TaskConfig, split: Split) -> SplitSource:
    name, folder = split_official(task.source)
    # The contexts of these rows include the questions.
    return SplitSource(
        f"{name}'s {split} split", read_official(name, folder, split), OFFICIAL[name].labels, has_questions=False
    )


def _shared_form(location: str) -> str:
    task, _, folder = location.partition(":")
    return f"{task}:{last_part(folder)}"


def split_official(source: str) -> tuple[str, Path]:
    """Parses ``official:NAME:FOLDER`` into the name and folder."""
    name, _, folder = source.partition(":")[2].partition(":")
    if name not in OFFICIAL or not folder:
        raise UserError(
            f'The source "{source}" is not official:NAME:FOLDER with one of the tasks {", ".join(OFFICIAL)} and the '
            f"folder with its download.{did_you_mean(name, OFFICIAL)}"
        )
    return name, local_path(folder, f"The folder of {name}'s download")


KIND = SourceKind(
    scheme="official",
    open_split=_open_split,
    has_split=lambda task, split: split in find_official(*split_official(task.source)),
    split_files=lambda task, split: list(map(str, find_official(*split_official(task.source))[split])),
    shared_form=_shared_form,
    fixed_splits=True,
)
