"""The table of kinds of sources: one module per kind, one line here."""

from collections.abc import Mapping

from afjax.config.tasks import TaskConfig
from afjax.data.sources import builtin, folder, official, tfds
from afjax.data.sources.kind import SourceKind, Split, SplitSource

SOURCE_KINDS: Mapping[str, SourceKind] = {
    kind.scheme: kind for kind in (folder.KIND, official.KIND, builtin.KIND, tfds.KIND)
}


def source_kind(source: str) -> SourceKind:
    """The kind of a task's ``source``. A word that is no scheme belongs to a path, as in ``gs://``."""
    scheme, colon, _ = source.partition(":")
    return SOURCE_KINDS.get(scheme if colon else "", folder.KIND)


def open_source(task: TaskConfig, split: Split) -> SplitSource:
    """Opens the rows that a split is read from.

    A dev split that is made by hash (see :func:`makes_dev`) is read from the same rows as train.

    Raises:
      UserError: The split is missing.
    """
    return source_kind(task.source).open_split(task, split)


def has_split(task: TaskConfig, split: Split) -> bool:
    """Whether a task has a split, or a dev split can be made for it."""
    return source_kind(task.source).has_split(task, split)


def makes_dev(task: TaskConfig) -> bool:
    """Whether the dev split is a part of the train file, because the task has no dev split of its own.

    Only files of rows are divided. The splits of benchmarks, TFDS and built-in tasks are fixed.
    """
    return source_kind(task.source).makes_dev(task)


def shared_source(source: str) -> str:
    """A task's ``source`` without folders of this machine, for artefacts that are shared."""
    kind = source_kind(source)
    if not kind.scheme:
        return kind.shared_form(source)
    return f"{kind.scheme}:{kind.shared_form(source.partition(':')[2])}"
