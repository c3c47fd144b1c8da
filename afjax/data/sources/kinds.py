"""The table of all kinds of sources. To add a kind, write a module with a ``KIND`` and list it here."""

from collections.abc import Mapping
from pathlib import Path

from afjax.config.tasks import TaskConfig
from afjax.data.sources import builtin, folder, hugging_face, official, tfds
from afjax.data.sources.kind import SourceKind, Split, SplitSource
from afjax.storage.paths import fetched

SOURCE_KINDS: Mapping[str, SourceKind] = {
    kind.scheme: kind for kind in (folder.KIND, official.KIND, builtin.KIND, tfds.KIND, hugging_face.KIND)
}


def source_kind(source: str) -> SourceKind:
    """Returns the kind that a task's ``source`` names.

    A source that does not begin with the scheme of a kind and a colon is a path, such as ``gs://BUCKET/rte``.
    """
    scheme, colon, _ = source.partition(":")
    return SOURCE_KINDS.get(scheme if colon else "", folder.KIND)


def folder_kind(folder: Path) -> SourceKind | None:
    """Returns the kind whose data a local folder holds; None if it holds no task."""
    return next((kind for kind in SOURCE_KINDS.values() if kind.recognizes(folder)), None)


def _reading_kind(source: str) -> SourceKind:
    """Returns the kind that reads a source. A folder without a scheme is read by the kind that recognizes it."""
    kind = source_kind(source)
    return kind if kind.scheme or not source else folder_kind(fetched(source)) or kind


def open_source(task: TaskConfig, split: Split) -> SplitSource:
    """Opens the rows of a split.

    If the dev split is taken from the train rows (see :func:`makes_dev`), both "train" and "dev" open all of these
    rows; :mod:`afjax.data.dev_split` then divides them.

    Raises:
      UserError: The split is missing.
    """
    return _reading_kind(task.source).open_split(task, split)


def has_split(task: TaskConfig, split: Split) -> bool:
    """Returns whether a task has a split, or its dev split can be taken from the train rows."""
    return _reading_kind(task.source).has_split(task, split)


def makes_dev(task: TaskConfig) -> bool:
    """Returns whether the dev split is taken from the train rows.

    It is if the task has no dev split and its ``dev_share`` is above 0. The splits of benchmarks, TFDS and built-in
    tasks are fixed, and are never divided.
    """
    return _reading_kind(task.source).makes_dev(task)


def split_files(task: TaskConfig, split: Split) -> list[str]:
    """Returns the files that a split is read from, or the source's name for the split."""
    return _reading_kind(task.source).split_files(task, split)


def shared_source(source: str) -> str:
    """Returns a task's ``source`` without this machine's folders, for artefacts that are shared."""
    kind = source_kind(source)
    if not kind.scheme:
        return kind.shared_form(source)
    return f"{kind.scheme}:{kind.shared_form(source.partition(':')[2])}"
