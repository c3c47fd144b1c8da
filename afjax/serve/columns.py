"""Selects each task's columns from rows in data files and HTTP requests."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.serve.requests import ServedTask, grouped
from afjax.tasks.prediction_rows import pick_input

# The column with the name of a row's adapter, fusion or head.
ADAPTER_COLUMN = "adapter"


def pick_task_input(place: str, row: Mapping[str, Any], task: ServedTask | None) -> Any:
    """Selects a task's columns from a row.

    Args:
      place: The row's name in error messages.
      row: The row's columns.
      task: The task, or None for the trunk's embedding.

    Returns:
      The row as input for :meth:`afjax.RoutedModel.predict`.

    Raises:
      UserError: A column is missing or has a value of the wrong type.
    """
    values = {column: value for column, value in row.items() if column != ADAPTER_COLUMN}
    if task is None:
        return pick_input(place, values, TaskConfig(name="embedding"), None)
    return pick_input(f'{place} (for "{task.name}")', values, task.model.task, task.model.text_columns)


def names_that_fit(rows: Sequence[tuple[str, Mapping[str, Any]]], groups: Iterable[Sequence[ServedTask]]) -> list[str]:
    """Returns the names of the tasks that can read all rows.

    Args:
      rows: Each row's name in error messages, and its columns.
      groups: The tasks, grouped by :func:`groups_with_equal_columns`.
    """

    def can_read(task: ServedTask) -> bool:
        try:
            for place, row in rows:
                pick_task_input(place, row, task)
        except UserError:
            return False
        return True

    return [task.name for group in groups if can_read(group[0]) for task in group]


def groups_with_equal_columns(tasks: Iterable[ServedTask]) -> list[list[ServedTask]]:
    """Groups tasks that use the same columns of a row."""

    def columns(task: ServedTask) -> Hashable:
        config = task.model.task
        return config.kind, config.text_a, config.text_b, config.choices, task.model.text_columns

    return grouped(tasks, columns)
