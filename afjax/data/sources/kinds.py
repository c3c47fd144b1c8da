"""The table of all kinds of sources. To add a kind, write a module with a ``KIND`` and list it here."""

from collections.abc import Mapping

from afjax.config.tasks import TaskConfig
from afjax.data.sources import builtin, folder, official, tfds
from afjax.data.sources.kind import SourceKind, Split, SplitSource

SOURCE_KINDS: Mapping[str, SourceKind] = {
    kind.scheme: kind for kind in (folder.KIND, official.KIND, builtin.KIND, tfds.KIND)
}


def source_kind(source: str) -> SourceKind:
    """The kind of a task's ``source``. If the word before the colon is not a scheme, it is a path, as in ``gs://``."""
    scheme, colon, _ = source.partition(":")
    return SOURCE_KINDS.get(scheme if colon else "", folder.KIND)


def open_source(task: TaskConfig, split: Split) -> SplitSource:
    """Opens the rows of a split.

    If the dev split is made by hash (see :func:`makes_dev`), this opens the rows of both train and dev.

    Raises:
      UserError: The split is missing.
    """
    return source_kind(task.source).open_split(task, split)


def has_split(task: TaskConfig, split: Split) -> bool:
    """Whether a task has a split, or its dev split can be made by hash."""
    return source_kind(task.source).has_split(task, split)


def makes_dev(task: TaskConfig) -> bool:
    """Whether the dev split is taken from the train file because the task has no dev split.

    This only applies to files. The splits of benchmarks, TFDS and built-in tasks are fixed.
    """
    return source_kind(task.source).makes_dev(task)


def shared_source(source: str) -> str:
    """A task's ``source`` without this machine's folders, for artefacts that are shared."""
    kind = source_kind(source)
    if not kind.scheme:
        return kind.shared_form(source)
    return f"{kind.scheme}:{kind.shared_form(source.partition(':')[2])}"
