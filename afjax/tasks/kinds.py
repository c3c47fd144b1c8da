"""Registry of the kinds of tasks.

To add a kind, name it in :mod:`afjax.config.tasks`, write a module with a ``KIND`` in this package, and add it to
:data:`TASK_KINDS`.
"""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float32

from afjax.config.from_dict import check_value
from afjax.config.tasks import TaskKind
from afjax.data.splits import AnyRows
from afjax.display.words import counted
from afjax.errors import UserError, did_you_mean
from afjax.tasks import classification, multi_label, multiple_choice, regression, span, tagging
from afjax.tasks.kind import KindSpec

TASK_KINDS: Mapping[TaskKind, KindSpec] = {
    spec.name: spec
    for spec in (classification.KIND, regression.KIND, multiple_choice.KIND, span.KIND, multi_label.KIND, tagging.KIND)
}


def initial_output_bias(kind: TaskKind, rows: AnyRows) -> Float32[np.ndarray, "outputs"] | None:
    """Computes the output bias with which the recipes initialize a new head.

    Args:
      kind: The task's kind.
      rows: The labeled train rows.

    Returns:
      For multi-label tasks, float32 ``[outputs]``, the log-odds of each label's frequency. None (zeros) for other
      kinds.

    Raises:
      UserError: The kind is unknown, or the rows of a multi-label task have no labels.

    Example:
      >>> from afjax import initial_output_bias, rows_from_lists
      >>> rows = rows_from_lists(["A.", "B.", "C."], [["a"], ["a", "b"], ["a"]], kind="multi_label")
      >>> bias = initial_output_bias("multi_label", rows)  # with smoothing, 4 of 5 and 2 of 5 rows
      >>> [round(float(value), 4) for value in bias]
      [1.3863, -0.4055]
    """
    check_value(TaskKind, kind, "The kind")
    output_bias = TASK_KINDS[kind].output_bias
    if output_bias is None:
        return None
    if rows.labels is None:
        raise UserError("The rows have no labels; pass the labeled train rows.")
    return output_bias(rows.labels)


def fitting_metrics(kind: TaskKind, num_labels: int) -> list[str]:
    """Lists the metrics that apply to a kind of task, for example for early stopping."""
    two_classes = not TASK_KINDS[kind].has_classes or num_labels == 2
    return [name for name in TASK_KINDS[kind].metrics if name != "f1" or two_classes]


def check_metric(metric: str, kind: TaskKind, num_labels: int) -> None:
    """Raises UserError unless a metric applies to a task."""
    allowed = fitting_metrics(kind, num_labels)
    if metric not in allowed:
        task = f"a {kind.replace('_', '-')} task" + (
            f" with {counted(num_labels, 'label')}" if kind == "classification" else ""
        )
        raise UserError(
            f'The metric "{metric}" is not supported for {task}; use one of {", ".join(allowed)}.'
            f"{did_you_mean(metric, allowed)}"
        )
