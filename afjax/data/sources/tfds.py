"""Loads TFDS datasets.

TensorFlow is not needed for datasets prepared as array_record.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.data.columns import PUBLISHED_TEXT_COLUMNS
from afjax.data.labels import name_classes
from afjax.data.sources.kind import SPLIT_NAMES, SourceKind, Split, SplitSource
from afjax.errors import UserError, did_you_mean
from afjax.storage.paths import error_text, fetched, is_path, is_remote, last_part, open_path


def _open_split(task: TaskConfig, split: Split) -> SplitSource:
    """Opens one split of a TFDS dataset.

    The source is ``tfds:NAME``, or ``tfds:FOLDER`` with the version folder of a prepared dataset. Prepared datasets on
    ``gs://`` are copied to the cache first, because array_record only supports local files. Class labels in the rows
    are names, or None for unlabeled rows. The label names are from the label column's ClassLabel feature.

    Raises:
      UserError: The dataset or split does not exist, or a required package is not installed.
    """
    builder = open_builder(task.source)
    name = find_tfds_split(task, split)
    if not name:
        raise UserError(
            f"{task.source} has no {split} split; its splits are {', '.join(builder.info.splits) or 'none at all'}. "
            f'Set one in the task\'s "{split}" setting.'
        )
    label = task.label_column
    names = tuple(getattr(dict(builder.info.features.items()).get(label), "names", None) or ())
    source = f"{task.source} {name}"
    rows = decode(open_split(builder, task.source, name), source)
    return SplitSource(source, name_classes(task, rows, names), names, PUBLISHED_TEXT_COLUMNS)


def find_tfds_split(task: TaskConfig, split: Split) -> str:
    """Returns the dataset's name for a split.

    Returns an empty string if the dataset has no such split. The name is the task's setting, or else the first name in
    ``SPLIT_NAMES`` that exists. A setting can also be a slice or a sum of splits, such as ``train[:10%]+validation``.

    Raises:
      UserError: The task's setting is malformed, contains an unknown split, or selects no rows.
    """
    splits = open_builder(task.source).info.splits
    chosen = getattr(task, split)
    if not chosen:
        return next((name for name in SPLIT_NAMES[split] if name in splits), "")
    for name in (part.partition("[")[0] for part in chosen.split("+")):
        if name not in splits:
            raise UserError(
                f"{task.source} has no split {name}; its splits are {', '.join(splits) or 'none at all'}. Change the "
                f'task\'s "{split}" setting.{did_you_mean(name, splits)}'
            )
    try:
        num_rows = splits[chosen].num_examples
    except ValueError:
        num_rows = None
    if num_rows is None or num_rows < 1:
        problem = "is not a valid slice" if num_rows is None else "selects no rows"
        raise UserError(
            f'The task\'s "{split}" setting "{chosen}" {problem} of {task.source}; use a split, such as '
            f"{next(iter(splits))}, a slice of it, such as {next(iter(splits))}[:10%], or a sum of them."
        )
    return chosen


def open_builder(source: str) -> Any:
    """Returns the builder of a dataset.

    A dataset that is specified by name may not be prepared yet.
    """
    import tensorflow_datasets
    from etils import epath

    name = source.removeprefix("tfds:")
    if not name:
        raise UserError('The source "tfds:" has no dataset; use tfds:NAME, or tfds:FOLDER with a prepared dataset.')
    folder = epath.Path(fetched(name))
    with explain_errors(source):
        if (folder / "dataset_info.json").exists():
            return tensorflow_datasets.builder_from_directory(folder)
        if name.startswith(("/", "~", ".")) or is_remote(name):
            raise UserError(f"{name} has no dataset_info.json; use the version folder of a prepared TFDS dataset.")
        try:
            builder = tensorflow_datasets.builder(name)
        except tensorflow_datasets.core.DatasetNotFoundError as error:
            raise UserError(
                f'TFDS has no dataset "{name}", or needs TensorFlow for it; check the name, run pip install '
                '"afjax[tfds]", or use the folder of a dataset prepared as array_record.'
            ) from error
        # TFDS cannot parse the name, or it contains settings that the dataset does not have.
        except (ValueError, TypeError) as error:
            raise UserError(
                f'The source "{source}" cannot be opened ({error_text(error)}); use tfds:NAME, tfds:NAME/CONFIG, or '
                "tfds:FOLDER with a prepared dataset."
            ) from error
    # TFDS_DATA_DIR can be on an object store.
    if is_remote(builder.data_path) and (open_path(builder.data_path) / "dataset_info.json").exists():
        with explain_errors(source):
            return tensorflow_datasets.builder_from_directory(fetched(builder.data_path))
    return builder


def open_split(builder: Any, source: str, split: str) -> Iterable[dict[str, Any]]:
    """Opens a split, after downloading and preparing the dataset if necessary."""
    import tensorflow_datasets

    with explain_errors(source):
        builder.download_and_prepare()
        try:
            return builder.as_data_source(split=split)
        except NotImplementedError:  # The file format does not support random access.
            return tensorflow_datasets.as_numpy(builder.as_dataset(split=split))


@contextlib.contextmanager
def explain_errors(source: str) -> Iterator[None]:
    """Converts the errors of TFDS to a UserError with a one-sentence message."""
    try:
        yield
    except UserError:
        raise
    except ImportError as error:
        raise UserError(
            f'{source} needs {error.name or "TensorFlow"}, which is not installed; run pip install "afjax[tfds]", or '
            "use the folder of a dataset prepared as array_record."
        ) from error
    except OSError as error:
        raise UserError(
            f"{source} could not be downloaded or read ({error}); check the network and disk, or use the folder of a "
            "prepared dataset."
        ) from error
    except Exception as error:  # TFDS and its readers raise many types for missing and damaged files.
        raise UserError(
            f"{source} cannot be read ({error_text(error)}); it may be damaged or incomplete. Copy or prepare the "
            "dataset again."
        ) from error


def decode(rows: Iterable[dict[str, Any]], source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Converts rows to Python objects.

    Yields pairs of a row's name in error messages and the row.
    """
    iterator, number = iter(rows), 0
    while True:
        with explain_errors(source):
            row = next(iterator, None)
        if row is None:
            return
        number += 1
        try:
            plain = {name: _plain(value) for name, value in row.items()}
        except UnicodeDecodeError as error:
            raise UserError(f"{source}:{number} is not UTF-8; correct the dataset or drop the row.") from error
        yield f"{source}:{number}", plain


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim):
        return [_plain(part) for part in value]
    return value.item() if hasattr(value, "item") else value


KIND = SourceKind(
    scheme="tfds",
    open_split=_open_split,
    has_split=lambda task, split: bool(find_tfds_split(task, split)),
    shared_form=lambda name: last_part(name) if is_path(name) else name,
    portable=True,
    text_columns=PUBLISHED_TEXT_COLUMNS,
)
