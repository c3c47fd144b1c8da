"""Looks up benchmark tasks, tasks in the data folder, and TOML files by name."""

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax.config.from_dict import from_dict
from afjax.config.tasks import Metric, SpanConfig, TaskConfig
from afjax.data.sources.files import nearest_in_folder
from afjax.data.sources.folder import is_one_file
from afjax.data.sources.formats import FORMATS
from afjax.data.sources.kind import SPLITS
from afjax.data.sources.kinds import folder_kind, source_kind
from afjax.data.sources.official import KIND as OFFICIAL_KIND
from afjax.data.sources.official import OFFICIAL, find_official, split_official
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import expanded, fetched, is_remote, local_path

# Split and column names in TFDS that differ from the defaults.
TFDS_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "mnli": {"dev": "validation_matched", "test": "test_matched"},
    "mnli_mismatched": {"dev": "validation_mismatched", "test": "test_mismatched"},
    # As with the download, dev is one tenth of train. TFDS has already shuffled train.
    "imdb": {"train": "train[10%:]", "dev": "train[:10%]"},
    "hellaswag": {"choices": ("endings",)},
    "cosmosqa": {"text_b": "question", "choices": ("answer0", "answer1", "answer2", "answer3")},
}


def find_task(name: str, data_dir: str | Path = "") -> TaskConfig:
    """Looks up a task by name.

    Args:
      name: One of:

        - a benchmark task that was downloaded to ``data_dir`` (``mrpc``, ``csqa``, ``squad``, ...; see ``afjax data
          list``);
        - a folder in ``data_dir`` with ``train``, ``dev`` or ``test`` files in afjax's own format;
        - the path of a TOML file with the fields of ``TaskConfig``. Its ``source`` is relative to the file.
      data_dir: The folder that contains the tasks' folders, such as ``glue``, ``super_glue`` and ``csqa``; or ``tfds:``
        to load a benchmark task from TFDS.

    Returns:
      The task, with its kind, labels, metric and source.

    Raises:
      UserError: The task or ``data_dir`` does not exist; ``data_dir`` has no files for the task, or both a download and
        a folder in afjax's own format; TFDS does not have the task; or the TOML file is invalid.

    Example:
      >>> from pathlib import Path
      >>> from afjax import find_task
      >>> Path("data/reviews").mkdir(parents=True)
      >>> _ = Path("data/reviews/train.csv").write_text("text,label")
      >>> find_task("reviews", "data")
      TaskConfig(name='reviews', source='data/reviews')
    """
    if name.endswith(".toml"):
        return read_task(name)
    benchmark, task = OFFICIAL.get(name), known_task(name)
    if str(data_dir) == "tfds:":
        if not benchmark or not benchmark.tfds:
            raise UserError(f'afjax knows no TFDS dataset for the task "{name}"; set source="tfds:NAME" instead.')
        return dataclasses.replace(task, source=f"tfds:{benchmark.tfds}", **TFDS_SETTINGS.get(name, {}))
    folder = local_path(data_dir, "data_dir")
    if not str(data_dir) or not folder.is_dir():
        raise UserError(
            f"There is no folder {data_dir or '(none given)'} for the task {name}; set data_dir to the folder that "
            f"contains the tasks' folders.{nearest_in_folder(folder)}"
        )
    official = find_official(name, folder) if benchmark else {}
    own_folder = folder / name if folder_kind(folder / name) else None
    if own_folder and any(path.is_relative_to(own_folder) for paths in official.values() for path in paths):
        own_folder = None
    if official and own_folder:
        raise UserError(
            f'The name "{name}" is ambiguous in {folder}: {own_folder} and {next(iter(official.values()))[0]}; set '
            f'the task\'s source to "{own_folder}" or "official:{name}:{folder}".'
        )
    if official:
        return dataclasses.replace(task, source=f"official:{name}:{folder}")
    if own_folder:
        labels = () if (own_folder / "labels.json").is_file() else task.labels
        return dataclasses.replace(task, source=str(own_folder), labels=labels)
    own_files = f"{folder / name} with train and dev files ({', '.join(f'train{ending}' for ending in FORMATS)}, ...)"
    if benchmark:
        raise UserError(
            f"The task {name} is not in {folder}. {_expected_files(name, folder)}, or a folder {own_files}."
        )
    names = [*OFFICIAL, *(entry.name for entry in folder.iterdir() if folder_kind(entry))]
    raise UserError(
        f'There is no task "{name}": it is not a benchmark task (afjax data list), and there is no folder {own_files}.'
        f"{did_you_mean(name, names)}"
    )


def task_from_source(name: str, source: str) -> TaskConfig:
    """Builds a task from its name and its own source.

    Args:
      name: The task's name. If it is a benchmark task's, the task gets the benchmark's kind, metric and labels. A
        ``labels.json`` in the source replaces the labels.
      source: The source. ``official:NAME:FOLDER`` and a benchmark's TFDS dataset have the settings that
        :func:`find_task` returns.

    Raises:
      UserError: The source does not exist.
    """
    if source_kind(source) is OFFICIAL_KIND:
        official_name, folder = split_official(source)
        return dataclasses.replace(find_task(official_name, folder), name=name)
    if name in OFFICIAL and source == f"tfds:{OFFICIAL[name].tfds}":
        return find_task(name, "tfds:")
    task = dataclasses.replace(known_task(name), source=source)
    if is_one_file(task):
        return task
    labels = () if (fetched(source) / "labels.json").is_file() else task.labels
    return dataclasses.replace(task, labels=labels)


def _expected_files(name: str, folder: Path) -> str:
    """Formats a benchmark's expected folders and files for an error message."""
    task = OFFICIAL[name]
    files = {split: [text for layout in task.layouts for text in layout.describe(split)] for split in SPLITS}
    splits = ", ".join(f"{split}: {' or '.join(names)}" for split, names in files.items() if names)
    folders = " or ".join(dict.fromkeys(str(folder / name) for name in task.folders))
    return f"Put its download into {folders} (its files, each optionally gzipped, are {splits})"


def known_task(name: str) -> TaskConfig:
    """Builds a task without a source.

    Benchmark tasks get their kind, labels and metric, and other tasks get the defaults.
    """
    benchmark = OFFICIAL.get(name)
    if benchmark is None:
        return TaskConfig(name=name)
    metric = typing.cast(Metric, benchmark.metric)
    span = SpanConfig(no_answer=benchmark.no_answer)
    return TaskConfig(name=name, kind=benchmark.kind, labels=benchmark.labels, metric=metric, span=span)


def read_task(file: str) -> TaskConfig:
    """Loads a task from a TOML file.

    Its name defaults to the file name without the extension.

    Raises:
      UserError: The file is missing, not local or not valid TOML, or one of its settings is invalid.
    """
    path = local_path(file, "The task file")
    if not path.is_file():
        raise UserError(f"The task file {path} does not exist; specify a TOML file.{nearest_in_folder(path)}")
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not TOML ({error}).") from error
    task: TaskConfig = from_dict(TaskConfig, {"name": path.stem, **values}, str(path))
    if source_kind(task.source).scheme or is_remote(task.source):
        return task
    return dataclasses.replace(task, source=str(path.parent / expanded(task.source)))
