"""The summary of a task model that its repr shows."""

from typing import TYPE_CHECKING

from afjax.display.html import listed
from afjax.display.words import counted

if TYPE_CHECKING:
    from afjax.model.task_model import TaskModel


def facts(task_model: "TaskModel") -> list[tuple[str, str]]:
    """Summarizes a model as ``(name, value)`` pairs.

    They include the task, labels, adapters, fusion, head, trunk, dev metrics, seed and maximum length.
    """
    model = task_model.model
    adapters = [name for name, _ in model.adapters]
    pairs = [("task", task_model.task.name), ("kind", task_model.task.kind.replace("_", "-"))]
    if task_model.labels:
        pairs.append((counted(len(task_model.labels), "label"), listed(task_model.labels)))
    if model.fusion_name:
        pairs += [("fusion", model.fusion_name), (f"of {counted(len(adapters), 'adapter')}", listed(adapters))]
    elif adapters:
        pairs.append(("adapter", adapters[0]))
    pairs += [("head", model.head_name), ("trunk", task_model.trunk.name)]
    pairs += [(f"dev {name}", f"{value:.4f}") for name, value in task_model.metrics.items() if name != "step"]
    return [*pairs, ("seed", str(task_model.seed)), ("max_length", str(task_model.max_length))]
