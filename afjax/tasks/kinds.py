"""The table of all kinds of tasks.

To add a kind, name it in :mod:`afjax.config.tasks`, write a module with a ``KIND`` in this package, and add the module
to :data:`TASK_KINDS`.
"""

import types
from collections.abc import Mapping

from afjax.config.tasks import TaskKind
from afjax.display.words import counted
from afjax.errors import UserError, did_you_mean
from afjax.tasks import classification, multi_label, multiple_choice, regression, span, tagging
from afjax.tasks.kind import KindSpec

TASK_KINDS: Mapping[TaskKind, KindSpec] = types.MappingProxyType(
    {
        spec.name: spec
        for spec in (
            classification.KIND,
            regression.KIND,
            multiple_choice.KIND,
            span.KIND,
            multi_label.KIND,
            tagging.KIND,
        )
    }
)


def fitting_metrics(kind: TaskKind, num_labels: int) -> list[str]:
    """The metrics that early stopping can use for a task of this kind with this number of labels."""
    two_classes = not TASK_KINDS[kind].has_classes or num_labels == 2
    return [name for name in TASK_KINDS[kind].metrics if name != "f1" or two_classes]


def check_metric(metric: str, kind: TaskKind, num_labels: int) -> None:
    """Raises UserError unless the metric is allowed for this kind of task and number of labels."""
    allowed = fitting_metrics(kind, num_labels)
    if metric not in allowed:
        task = f"a {kind.replace('_', '-')} task" + (
            f" with {counted(num_labels, 'label')}" if kind == "classification" else ""
        )
        raise UserError(
            f'The metric "{metric}" does not fit {task}; it can be {", ".join(allowed)}.{did_you_mean(metric, allowed)}'
        )
