"""Checks the arguments common to all recipes."""

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import jax

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import Adapter
from afjax.config.from_dict import shown
from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import SamplingConfig, TrainConfig
from afjax.data.splits import AnyRows
from afjax.distributed.host_memory import physical_memory
from afjax.errors import UserError
from afjax.tasks.class_loss import check_class_settings
from afjax.tasks.kinds import TASK_KINDS, check_metric
from afjax.tasks.load import rows_by_split
from afjax.train.options import RunOptions
from afjax.trunk.pretrained import Trunk


def check_types(
    trunk: Trunk,
    method: Method | FusionMethod,
    kind: type[Method | FusionMethod],
    config: TrainConfig,
    options: RunOptions,
) -> None:
    """Checks the types of a recipe's arguments.

    Args:
      trunk, method, config, options: The arguments.
      kind: The required class of ``method``.

    Raises:
      UserError: An argument has the wrong type. The message names the expected type.
    """
    given: tuple[tuple[str, Any, type], ...] = (
        ("trunk", trunk, Trunk),
        ("method", method, kind),
        ("config", config, TrainConfig),
        ("options", options, RunOptions),
    )
    for name, value, expected in given:
        if not isinstance(value, expected):
            raise UserError(f"{name} is {shown(value)}; pass a {expected.__name__}.")
    if isinstance(method, MultitaskMethod) and kind is Method and method.sampling != SamplingConfig():
        raise UserError("method.sampling is set, but this function does not sample tasks; pass a Method.")


def check_task(task: Any) -> None:
    """Raises UserError if a task is not a TaskConfig."""
    if not isinstance(task, TaskConfig):
        raise UserError(f"The task is {shown(task)}; pass a TaskConfig, such as TaskConfig(name=...).")


def check_several(tasks: Any, data: Any, config: TrainConfig) -> dict[TaskConfig, dict[str, AnyRows]]:
    """Checks the tasks of a recipe that trains several, their data, and their metrics and class settings.

    Returns:
      The rows of each task's splits.

    Raises:
      UserError: The tasks are not iterable, one of them is not a TaskConfig, there are none, or two have the same name;
        or the data are not ``{task name: splits}``; or a task's data, metric or class settings are invalid.
    """
    if not isinstance(tasks, Iterable) or isinstance(tasks, str):
        raise UserError(f"The tasks are {shown(tasks)}; pass a list of TaskConfig.")
    tasks = tuple(tasks)
    for task in tasks:
        check_task(task)
    names = [task.name for task in tasks]
    if not names or len(set(names)) != len(names):
        raise UserError(f"The tasks are {', '.join(names) or '(none)'}; pass at least one, with distinct names.")
    if not isinstance(data, Mapping):
        raise UserError(f'The data is of type {type(data).__name__}; pass {{"{names[0]}": {{"train": rows}}, ...}}.')
    rows = {task: check_data(task, data.get(task.name, {})) for task in tasks}
    label_names = {task: splits["train"].label_names for task, splits in rows.items()}
    for task, labels in label_names.items():
        check_metric(task.main_metric, task.kind, len(labels))
    check_class_settings(config, label_names)
    return rows


def check_data(task: TaskConfig, data: Mapping[str, Any]) -> dict[str, AnyRows]:
    """Checks a task and its data.

    Returns:
      The rows of each split; see :func:`afjax.tasks.load.rows_by_split`.

    Raises:
      UserError: The task is not a TaskConfig, a split is missing, invalid or empty, its labels do not fit the task, or
        the splits have different label names.
    """
    check_task(task)
    splits = rows_by_split(task, data)
    for split in ("train", "dev"):
        if not len(splits[split]):
            raise UserError(f"The task {task.name} has no {split} rows; it needs at least one.")
    for split, rows in splits.items():
        TASK_KINDS[task.kind].check_labels(rows, task, f"{task.name}'s {split} rows")
    names, dev_names = splits["train"].label_names, splits["dev"].label_names
    # Labels are indices into these names, so mismatched names would score the wrong classes.
    if names and dev_names and names != dev_names:
        raise UserError(
            f"The task {task.name} has the labels {shown(list(names))} in train and {shown(list(dev_names))} in dev. "
            "Use the same label_names for both splits."
        )
    return splits


def check_adapter_size(config: Adapter, trunk: Trunk) -> None:
    """Raises UserError if an adapter does not fit the trunk or the host's memory."""
    try:
        shapes = jax.eval_shape(lambda: init_adapter(jax.random.key(0), config, trunk.config))
        size = sum(4 * math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    except (OverflowError, TypeError):  # The shapes are too large for JAX.
        size = sys.maxsize
    if size > physical_memory():
        raise UserError(
            f"One adapter with these settings takes {size / 1e9:,.0f} GB, but this machine has only "
            f"{physical_memory() / 1e9:,.0f} GB of memory. Choose adapter.size or adapter.reduction_factor so that the "
            f"bottleneck is at most a few times the trunk's hidden size, {trunk.config.hidden_size}."
        )
