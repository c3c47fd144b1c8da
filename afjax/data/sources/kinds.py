"""Registry of data source kinds.

To add a kind, write a module with a ``KIND`` and list it here.
"""

import typing
from collections.abc import Mapping
from pathlib import Path

from afjax.config.tasks import TaskConfig
from afjax.data.sources import builtin, folder, hugging_face, official, tfds
from afjax.data.sources.kind import SourceKind, Split, SplitSource
from afjax.errors import UserError
from afjax.storage.paths import fetched

SOURCE_KINDS: Mapping[str, SourceKind] = {
    kind.scheme: kind for kind in (folder.KIND, official.KIND, builtin.KIND, tfds.KIND, hugging_face.KIND)
}


def source_kind(source: str) -> SourceKind:
    """Looks up the kind by the scheme of a task's ``source``.

    A source without a known scheme and a colon is a path, such as ``gs://BUCKET/rte``.
    """
    scheme, colon, _ = source.partition(":")
    return SOURCE_KINDS.get(scheme if colon else "", folder.KIND)


def folder_kind(folder: Path) -> SourceKind | None:
    """Detects the kind of data in a local folder.

    Returns None if it does not contain a task.
    """
    return next((kind for kind in SOURCE_KINDS.values() if kind.recognizes(folder)), None)


def _reading_kind(task: TaskConfig) -> SourceKind:
    """Selects the kind of a task's source by its scheme.

    For a folder without a scheme, the contents of the folder determine the kind.

    Raises:
      UserError: The task chooses a split, but the source's splits are fixed.
    """
    kind = source_kind(task.source)
    for split in typing.get_args(Split) if kind.fixed_splits else ():
        if chosen := getattr(task, split):
            raise UserError(
                f'The task {task.name} sets "{split}" to {chosen}, but the splits of its source {task.source} are '
                f'fixed; leave out "{split}", or set source to a folder or file with your rows.'
            )
    return kind if kind.scheme or not task.source else folder_kind(fetched(task.source)) or kind


def _stored_split(kind: SourceKind, task: TaskConfig, split: Split) -> Split:
    """Returns the split that contains the rows of ``split``: train for a dev split that is held out from it."""
    return "train" if split == "dev" and kind.makes_dev(task) else split


def open_source(task: TaskConfig, split: Split) -> SplitSource:
    """Opens a split of a task.

    If the dev split is held out from the train rows (see :func:`makes_dev`), both "train" and "dev" contain all of
    them, and the caller splits them with :mod:`afjax.data.dev_split`.

    Raises:
      UserError: The split is missing, or the task chooses a split of a source whose splits are fixed.
    """
    kind = _reading_kind(task)
    return kind.open_split(task, _stored_split(kind, task, split))


def has_split(task: TaskConfig, split: Split) -> bool:
    """Whether a task has a split, or can hold out its dev split from the train rows."""
    kind = _reading_kind(task)
    return kind.has_split(task, split) or (split == "dev" and kind.makes_dev(task))


def makes_dev(task: TaskConfig) -> bool:
    """Whether the dev split is held out from the train rows.

    This is the case if the task has no dev split and its ``dev_share`` is above 0, except for benchmarks, TFDS and
    built-in tasks, whose splits are fixed.
    """
    return _reading_kind(task).makes_dev(task)


def split_files(task: TaskConfig, split: Split) -> list[str]:
    """Lists a split's files, or the source's name for the split.

    Raises:
      UserError: The split is missing.
    """
    kind = _reading_kind(task)
    stored = _stored_split(kind, task, split)
    return kind.split_files(task, stored) or [kind.open_split(task, stored).name]


def shared_source(source: str) -> str:
    """Removes local folders from a task's ``source``, for artifacts that are shared."""
    kind = source_kind(source)
    if not kind.scheme:
        return kind.shared_form(source)
    return f"{kind.scheme}:{kind.shared_form(source.partition(':')[2])}"
