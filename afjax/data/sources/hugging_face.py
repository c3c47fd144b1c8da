"""Reads datasets of the Hugging Face hub (``hf:NAME``), and folders that ``save_to_disk`` has written."""

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
from afjax.data.sources.kind import SPLIT_NAMES, SourceKind, Split, SplitSource, looks_like_dev
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import fetched

_SCHEME = "hf:"

# How long to wait for the hub, in seconds. Without an answer, the dataset is read from the cache.
_TIMEOUT = 10

# A dataset's name on the hub and its config; None for its default config.
Name = tuple[str, str | None]


class _UnreachableError(Exception):
    """The hub does not answer, or offline mode is on."""


def open_splits(source: str) -> Mapping[str, Any]:
    """Opens all splits of ``hf:NAME`` or of a folder, as ``{name: datasets.Dataset}``.

    A dataset of the hub is downloaded to the cache of Hugging Face's datasets. If the hub cannot be reached, it is read
    from that cache. A folder with a single dataset has one split, whose name the folder records, by default train.

    Raises:
      UserError: There is no such dataset, it cannot be read, or the package datasets is not installed.
    """
    if source.startswith(_SCHEME):
        return _hub_splits(source.removeprefix(_SCHEME))
    datasets, folder = _import_datasets(source), fetched(source)
    try:
        saved = datasets.load_from_disk(str(folder))
    except Exception as error:  # A damaged folder raises many kinds of errors.
        raise UserError(f"The dataset in {source} cannot be read ({_reason(error)}); save it again.") from error
    return saved if isinstance(saved, Mapping) else {str(saved.split or "train").partition("[")[0]: saved}


def possible_names(location: str) -> list[Name]:
    """Returns the datasets and configs that the text after ``hf:`` can name. The first that exists is used.

    Raises:
      UserError: The text has another form than NAME, ORG/NAME, NAME/CONFIG and ORG/NAME/CONFIG.

    Example:
      >>> possible_names("glue/rte")
      [('glue/rte', None), ('glue', 'rte')]
    """
    parts = location.split("/")
    if not 1 <= len(parts) <= 3 or not all(map(str.strip, parts)) or parts[0][0] in ".~\\":
        raise UserError(
            f'The source "{_SCHEME}{location}" is not hf:NAME, hf:ORG/NAME, hf:NAME/CONFIG or hf:ORG/NAME/CONFIG; give '
            "the name of a dataset of the Hugging Face hub, or, for a folder, only its path."
        )
    if len(parts) == 1:
        return [(location, None)]
    if len(parts) == 2:
        return [(location, None), (parts[0], parts[1])]
    return [(f"{parts[0]}/{parts[1]}", parts[2])]


# Cache the datasets, so that all splits that a process reads come from the same version of a dataset.
@functools.lru_cache(maxsize=8)
def _hub_splits(location: str) -> Mapping[str, Any]:
    names = possible_names(location)
    datasets = _import_datasets(_SCHEME + location)
    try:
        found = next(((full, config) for name, config in names if (full := _full_name(datasets, name))), None)
    except _UnreachableError as error:
        return _cached_splits(datasets, location, str(error))
    if found is None:
        raise UserError(
            f'The source "{_SCHEME}{location}" does not exist: the Hugging Face hub has no dataset '
            f"{' and no dataset '.join(name for name, _ in names)} that you may read; check the name, or run hf auth "
            "login for a private dataset."
        )
    try:
        return _load(datasets, found)
    except Exception as error:  # Datasets have many formats, which raise many kinds of errors.
        raise UserError(
            f'The source "{_SCHEME}{location}" cannot be read ({_reason(error)}); check the name and the config, as in '
            "hf:NAME/CONFIG. Otherwise convert the dataset with save_to_disk, and give the folder."
        ) from error


def _full_name(datasets: Any, name: str) -> str:
    """Returns the full name of a dataset on the hub, such as nyu-mll/glue for glue; empty if there is no such dataset.

    Unlike ``load_dataset``, this does not repeat its request for about 20 seconds if the hub cannot be reached.

    Raises:
      _UnreachableError: The hub does not answer, or offline mode is on.
    """
    from huggingface_hub import HfApi, errors

    if datasets.config.HF_HUB_OFFLINE:
        raise _UnreachableError("offline mode is on, HF_HUB_OFFLINE or HF_DATASETS_OFFLINE")
    try:
        return str(HfApi(endpoint=datasets.config.HF_ENDPOINT).dataset_info(name, timeout=_TIMEOUT).id)
    except errors.GatedRepoError:
        return name
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return ""
    except Exception as error:  # Without a network, the hub's client raises many kinds of errors.
        raise _UnreachableError(_reason(error)) from error


def _cached_splits(datasets: Any, location: str, reason: str) -> Mapping[str, Any]:
    """Opens the splits of a dataset in the cache. ``reason`` says why the hub cannot be reached."""
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
    # Without the hub, the organization of "glue" is not known.
    name, slash, config = location.partition("/")
    cached = sorted(path.name.replace("___", "/") for path in Path(cache).expanduser().glob(f"*___{glob.escape(name)}"))
    hint = f' Did you mean "{_SCHEME}{cached[0]}{slash}{config}"?' if cached else ""
    raise UserError(
        f'The source "{_SCHEME}{location}" cannot be read: the Hugging Face hub cannot be reached ({reason}), and the '
        f"cache {cache} {problem}. On a machine with a network, call {' or '.join(calls)} and save_to_disk of the "
        f"package datasets; then copy the folder, and give its path as the source.{hint}"
    )


def _load(datasets: Any, name: Name) -> Mapping[str, Any]:
    # Without this prefix, a folder of the same name in the current folder would be read instead.
    splits: Mapping[str, Any] = datasets.load_dataset(f"hf://datasets/{name[0]}", name[1])
    return splits


@contextlib.contextmanager
def _offline(datasets: Any) -> Iterator[None]:
    """Makes the block read only from the cache. Otherwise, requests would be repeated for about 20 seconds."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _import_datasets(source: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f'The source "{source}" needs {error.name or "datasets"}, which is not installed; run pip install '
            '"afjax[datasets]".'
        ) from error
    return datasets


def _reason(error: Exception) -> str:
    """Returns an error's type and the beginning of its message, in one line."""
    text = " ".join(str(error).partition("Example of usage")[0].split())
    return f"{type(error).__name__}: {text if len(text) <= 300 else text[:297] + '...'}"


def _split_name(task: TaskConfig, split: Split, splits: Mapping[str, Any]) -> str:
    """Returns the dataset's name for a split, or an empty string if the dataset does not have the split.

    The name is the task's setting, such as ``train[:10%]``, or else the first name in ``SPLIT_NAMES`` that the dataset
    has.
    """
    return getattr(task, split) or next((name for name in SPLIT_NAMES[split] if name in splits), "")


def _select(source: str, splits: Mapping[str, Any], name: str, setting: str) -> Any:
    """Returns a split, or parts of splits, such as ``train[:10%]+validation``."""
    if name in splits:
        return splits[name]
    import datasets

    try:
        lengths = {split: len(rows) for split, rows in splits.items()}
        parts = datasets.ReadInstruction.from_spec(name).to_absolute(lengths)
        # An empty range would be out of range for select.
        indices = [range(part.from_, part.to) if part.from_ < part.to else [] for part in parts]
        selected = [splits[part.splitname].select(rows) for part, rows in zip(parts, indices, strict=True)]
        return datasets.concatenate_datasets(selected)
    except Exception as error:  # The text is malformed, or the splits have different columns.
        raise UserError(
            f'{source} has no split "{name}" ({_reason(error)}), but {", ".join(splits)}; correct the task\'s '
            f'"{setting}" setting.{did_you_mean(name.partition("[")[0], splits)}'
        ) from error


def _open_split(task: TaskConfig, split: Split) -> SplitSource:
    splits = open_splits(task.source)
    setting: Split = "train" if split == "dev" and _makes_dev(task) else split
    name = _split_name(task, setting, splits)
    if not name:
        share = " or a task.dev_share above 0" if split == "dev" and not task.dev_share else ""
        similar = [other for other in splits if split == "dev" and looks_like_dev(other)]
        suggestion = f' Did you mean "{similar[0]}"?' if similar else did_you_mean(split, splits)
        raise UserError(
            f"The task {task.name} has no {split} split: {task.source} has {', '.join(splits) or 'no splits'}; name "
            f'one in the task\'s "{split}" setting{share}.{suggestion}'
        )
    dataset = _select(task.source, splits, name, setting)
    label_names = dataset_label_names(dataset, task.label_column)
    rows_name = f"{task.source} {name}"
    rows = name_classes(task, dataset_rows(dataset, rows_name, first=1), label_names)
    # A folder of save_to_disk has the same default columns as a folder of data files.
    columns = PUBLISHED_TEXT_COLUMNS if task.source.startswith(_SCHEME) else TEXT_COLUMNS
    return SplitSource(rows_name, rows, label_names, columns)


def _has_split(task: TaskConfig, split: Split) -> bool:
    return bool(_split_name(task, split, open_splits(task.source))) or (split == "dev" and _makes_dev(task))


def _makes_dev(task: TaskConfig) -> bool:
    if not task.dev_share or task.dev:
        return False
    splits = open_splits(task.source)
    return bool(_split_name(task, "train", splits)) and not any(map(looks_like_dev, splits))


def _split_files(task: TaskConfig, split: Split) -> list[str]:
    return [_open_split(task, split).name]


def _is_saved(folder: Path) -> bool:
    """Returns whether a folder was written by ``save_to_disk``."""
    names = (("dataset_dict.json",), ("dataset_info.json", "state.json"))
    return any(all(os.path.isfile(folder / name) for name in together) for together in names)


KIND = SourceKind(
    scheme="hf",
    open_split=_open_split,
    has_split=_has_split,
    split_files=_split_files,
    makes_dev=_makes_dev,
    recognizes=_is_saved,
    portable=True,
    text_columns=PUBLISHED_TEXT_COLUMNS,
)
