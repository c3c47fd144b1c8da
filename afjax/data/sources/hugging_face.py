"""Loads datasets with the Hugging Face datasets library.

They are on the hub (``hf:NAME``), or in folders written by ``save_to_disk``.
"""

import contextlib
import functools
import glob
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.data.columns import PUBLISHED_TEXT_COLUMNS, TEXT_COLUMNS
from afjax.data.dataframes import dataset_label_names, dataset_rows
from afjax.data.labels import name_classes
from afjax.data.sources.arrow import import_for
from afjax.data.sources.kind import SPLIT_NAMES, SourceKind, Split, SplitSource, looks_like_dev
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import fetched

_SCHEME = "hf:"

# Timeout for the hub, in seconds, after which the dataset is loaded from the cache.
_TIMEOUT = 10

# A dataset's name on the hub, and its config or None for the default.
Name = tuple[str, str | None]


class _UnreachableError(Exception):
    """The hub does not respond, or offline mode is on."""


def open_splits(source: str) -> Mapping[str, Any]:
    """Loads all splits of ``hf:NAME`` or of a folder, as ``{name: datasets.Dataset}``.

    Hub datasets are downloaded to the Hugging Face cache, or loaded from it if the hub cannot be reached. A folder with
    a single dataset has one split, whose name is recorded in the folder or defaults to train.

    Raises:
      UserError: The dataset does not exist or cannot be read, or the datasets package is not installed.
    """
    if source.startswith(_SCHEME):
        return _hub_splits(source.removeprefix(_SCHEME))
    datasets, folder = import_for(f'The source "{source}"', "datasets"), fetched(source)
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # Damaged folders can raise many types of exceptions.
        raise UserError(f"The dataset in {source} cannot be read ({_reason(error)}); save it again.") from error
    return saved if isinstance(saved, Mapping) else {str(saved.split or "train").partition("[")[0]: saved}


def possible_names(location: str) -> list[Name]:
    """Parses the part of a source after ``hf:`` into datasets and configs.

    The result lists candidates in the order in which to try them.

    Raises:
      UserError: ``location`` is not of the form NAME, ORG/NAME, NAME/CONFIG or ORG/NAME/CONFIG.

    Example:
      >>> possible_names("glue/rte")
      [('glue/rte', None), ('glue', 'rte')]
    """
    parts = location.split("/")
    if not 1 <= len(parts) <= 3 or not all(map(str.strip, parts)) or parts[0][0] in ".~\\":
        raise UserError(
            f'The source "{_SCHEME}{location}" is not hf:NAME, hf:ORG/NAME, hf:NAME/CONFIG or hf:ORG/NAME/CONFIG; use '
            "a dataset name from the Hugging Face hub, or, for a folder, its path without hf:."
        )
    if len(parts) == 1:
        return [(location, None)]
    if len(parts) == 2:
        return [(location, None), (parts[0], parts[1])]
    return [(f"{parts[0]}/{parts[1]}", parts[2])]


# Cached so that all splits loaded in a process come from the same version of the dataset.
@functools.lru_cache(maxsize=8)
def _hub_splits(location: str) -> Mapping[str, Any]:
    names = possible_names(location)
    datasets = import_for(f'The source "{_SCHEME}{location}"', "datasets")
    try:
        found = next(((full, config) for name, config in names if (full := _full_name(datasets, name))), None)
    except _UnreachableError as error:
        return _cached_splits(datasets, location, str(error))
    if found is None:
        raise UserError(
            f'The source "{_SCHEME}{location}" does not exist: the Hugging Face hub has no dataset '
            f"{' or '.join(name for name, _ in names)} that you can access; check the name, or run hf auth login if "
            "the dataset is private."
        )
    try:
        return _load(datasets, found)
    except Exception as error:  # The many dataset formats can raise many types of exceptions.
        raise UserError(
            f'The source "{_SCHEME}{location}" cannot be read ({_reason(error)}); check the name and the config, as in '
            "hf:NAME/CONFIG. If they are correct, write the dataset with save_to_disk and use that folder as the "
            "source."
        ) from error


def _full_name(datasets: Any, name: str) -> str:
    """Looks up a dataset's full name on the hub, such as nyu-mll/glue for glue.

    Returns "" if it does not exist. Unlike ``load_dataset``, this does not retry for about 20 seconds if the hub cannot
    be reached.

    Raises:
      _UnreachableError: The hub does not respond, or offline mode is on.
    """
    from huggingface_hub import HfApi, errors

    if datasets.config.HF_HUB_OFFLINE:
        raise _UnreachableError("offline mode is on: HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set")
    try:
        return str(HfApi(endpoint=datasets.config.HF_ENDPOINT).dataset_info(name, timeout=_TIMEOUT).id)
    except errors.GatedRepoError:
        return name
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return ""
    except Exception as error:  # The hub's client raises many types of exceptions if there is no network.
        raise _UnreachableError(_reason(error)) from error


def _cached_splits(datasets: Any, location: str, reason: str) -> Mapping[str, Any]:
    """Loads a dataset's splits from the cache.

    ``reason`` says why the hub cannot be reached.
    """
    problem, names, cache = "does not have the dataset", possible_names(location), datasets.config.HF_DATASETS_CACHE
    for possible in names:
        try:
            with _offline(datasets):
                return _load(datasets, possible)
        except ConnectionError:  # The dataset is not in the cache.
            continue
        except Exception as error:  # For example, several configs are in the cache.
            problem = f"cannot be used ({_reason(error)})"
    calls = [f"load_dataset({', '.join(json.dumps(part) for part in possible if part)})" for possible in names]
    # Without the hub, the organization that "glue" belongs to is unknown.
    name, slash, config = location.partition("/")
    cached = sorted(path.name.replace("___", "/") for path in Path(cache).expanduser().glob(f"*___{glob.escape(name)}"))
    hint = f' Did you mean "{_SCHEME}{cached[0]}{slash}{config}"?' if cached else ""
    raise UserError(
        f'The source "{_SCHEME}{location}" cannot be read: the Hugging Face hub cannot be reached ({reason}), and the '
        f"cache {cache} {problem}. On a machine with network access, load the dataset with "
        f"{' or '.join(calls)} from the datasets package, and call save_to_disk on the result. Then copy the folder "
        f"here, and use its path as the source.{hint}"
    )


def _load(datasets: Any, name: Name) -> Mapping[str, Any]:
    # Without this prefix, a folder with the same name in the working directory would take precedence.
    splits: Mapping[str, Any] = datasets.load_dataset(f"hf://datasets/{name[0]}", name[1])
    return splits


@contextlib.contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Temporarily enables offline mode to avoid about 20 seconds of retries."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _reason(error: Exception) -> str:
    """Formats an error's type and the beginning of its message on one line."""
    text = " ".join(str(error).partition("Example of usage")[0].split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"


def _split_name(task: TaskConfig, split: Split, splits: Mapping[str, Any]) -> str:
    """Returns the dataset's name for a split.

    Returns an empty string if the dataset has no such split. The name is the task's setting, such as ``train[:10%]``,
    or else the first name in ``SPLIT_NAMES`` that exists.
    """
    return getattr(task, split) or next((name for name in SPLIT_NAMES[split] if name in splits), "")


def _select(source: str, splits: Mapping[str, Any], name: str, setting: str) -> Any:
    """Selects a split or slices of splits, such as ``train[:10%]+validation``."""
    if name in splits:
        return splits[name]
    import datasets

    try:
        lengths = {split: len(rows) for split, rows in splits.items()}
        parts = datasets.ReadInstruction.from_spec(name).to_absolute(lengths)
        # select() rejects empty ranges.
        indices = [range(part.from_, part.to) if part.from_ < part.to else [] for part in parts]
        selected = [splits[part.splitname].select(rows) for part, rows in zip(parts, indices, strict=True)]
        return datasets.concatenate_datasets(selected)
    except Exception as error:  # The name is malformed, or the splits have different columns.
        raise UserError(
            f'{source} has no split "{name}" ({_reason(error)}); its splits are {", ".join(splits)}. Correct the '
            f'task\'s "{setting}" setting.{did_you_mean(name.partition("[")[0], splits)}'
        ) from error


def _open_split(task: TaskConfig, split: Split) -> SplitSource:
    splits = open_splits(task.source)
    name = _split_name(task, split, splits)
    if not name:
        share = " or a task.dev_share above 0" if split == "dev" and not task.dev_share else ""
        similar = [other for other in splits if split == "dev" and looks_like_dev(other)]
        suggestion = f' Did you mean "{similar[0]}"?' if similar else did_you_mean(split, splits)
        raise UserError(
            f"The task {task.name} has no {split} split: {task.source} has {', '.join(splits) or 'no splits'}; name "
            f'one in the task\'s "{split}" setting{share}.{suggestion}'
        )
    dataset = _select(task.source, splits, name, split)
    label_names = dataset_label_names(dataset, task.label_column)
    rows_name = f"{task.source} {name}"
    rows = name_classes(task, dataset_rows(dataset, rows_name, first=1), label_names)
    # Folders written by save_to_disk have the same default columns as folders with data files.
    columns = PUBLISHED_TEXT_COLUMNS if task.source.startswith(_SCHEME) else TEXT_COLUMNS
    return SplitSource(rows_name, rows, label_names, columns)


def _makes_dev(task: TaskConfig) -> bool:
    if not task.dev_share or task.dev:
        return False
    splits = open_splits(task.source)
    return bool(_split_name(task, "train", splits)) and not any(map(looks_like_dev, splits))


def _is_saved(folder: Path) -> bool:
    """Returns whether a folder was written by ``save_to_disk``."""
    names = (("dataset_dict.json",), ("dataset_info.json", "state.json"))
    return any(all(os.path.isfile(folder / name) for name in together) for together in names)


KIND = SourceKind(
    scheme="hf",
    open_split=_open_split,
    has_split=lambda task, split: bool(_split_name(task, split, open_splits(task.source))),
    makes_dev=_makes_dev,
    recognizes=_is_saved,
    portable=True,
    text_columns=PUBLISHED_TEXT_COLUMNS,
)
