"""Training metadata in exported files, which survives a round trip."""

import dataclasses
from typing import Any

from afjax.config.from_dict import from_dict, to_dict
from afjax.config.tasks import TaskConfig
from afjax.data.sources.kinds import shared_source, source_kind
from afjax.store import Manifest


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


def without_paths(task: TaskConfig) -> TaskConfig:
    """Removes a local source and its splits from a task."""
    if source_kind(task.source).portable and shared_source(task.source) == task.source:
        return task
    return dataclasses.replace(task, source="", train="", dev="", test="")
