"""Training metadata in exported files, which survives a round trip."""

import dataclasses
from typing import Any

from afjax.config.from_dict import from_dict, to_dict
from afjax.config.tasks import TaskConfig
from afjax.data.sources.kinds import source_kind
from afjax.errors import UserError
from afjax.model.stored import NoHeadError, recorded_head
from afjax.store import Manifest, read_manifest
from afjax.store.artifacts import StorePath

_NOUNS = {"adapters": "adapter", "fusion": "fusion"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The manifest fields that describe training. Empty unless afjax wrote the files."""

    task: dict = dataclasses.field(default_factory=dict)
    labels: tuple[str, ...] = ()
    metrics: dict = dataclasses.field(default_factory=dict)
    seed: int = 0


def facts_of(manifest: Manifest) -> dict[str, Any]:
    """Collects the task, labels, metrics and seed from a manifest."""
    task = manifest.task
    if task:
        task = to_dict(without_paths(from_dict(TaskConfig, task, f'the task of "{manifest.name}"')))
    return {"task": task, "labels": list(manifest.labels), "metrics": manifest.metrics, "seed": manifest.seed}


def head_to_export(store_folder: StorePath, kind: str, name: str, head: str) -> str:
    """Finds the head to export with an adapter or a fusion.

    Args:
      store_folder: The store.
      kind: ``adapters`` or ``fusion``.
      name: The name of the adapter or fusion.
      head: The head's name. Empty for the head that was trained with the adapter or fusion.

    Returns:
      The head's name. Empty if no head was trained with the adapter or fusion.

    Raises:
      UserError: Several heads were trained with it, and none has its name. Or ``head`` does not exist or was trained
        with something else.
    """
    if head:
        manifest = read_manifest(store_folder, "heads", head)
        if not manifest.belongs_to(read_manifest(store_folder, kind, name)):
            raise UserError(
                f'The head "{head}" was not trained with the {_NOUNS[kind]} "{name}"; name another head, or export '
                "without one (--no_head, or with_head=False in Python)."
            )
        return head
    try:
        return recorded_head(store_folder, kind, name)
    except NoHeadError as error:
        if not error.heads:
            return ""
        raise UserError(
            f"{error.fact}; choose one with --head ({', '.join(error.heads)}; head=NAME in Python), or export without "
            "one (--no_head, or with_head=False)."
        ) from error


def without_paths(task: TaskConfig) -> TaskConfig:
    """Removes local paths from a task."""
    source = task.source if source_kind(task.source).portable else ""
    return dataclasses.replace(task, source=source, train="", dev="", test="")
