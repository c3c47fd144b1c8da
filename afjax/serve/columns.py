"""Selects each task's columns from rows in data files and HTTP requests."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.serve.requests import ServedTask, grouped
from afjax.tasks.prediction_rows import pick_input

# The column with the name of a row's adapter, fusion or head.
ADAPTER_COLUMN = "adapter"


def without_adapter(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row's columns without the name of its adapter."""
    return {column: value for column, value in row.items() if column != ADAPTER_COLUMN}


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
    if task is None:
        return pick_input(place, dict(row), TaskConfig(name="embedding"), None)
    return pick_input(f'{place} (for "{task.name}")', dict(row), task.model.task, task.model.text_columns)


def pick_inputs(
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    tasks: Iterable[ServedTask],
    advise: Callable[[list[str]], str] | None = None,
) -> list[tuple[list[ServedTask], list[Any]]]:
    """Selects the columns of several tasks from rows.

    Args:
      rows: Each row's name in error messages, and its columns.
      tasks: The tasks.
      advise: Formats a sentence for the error message, given the names of the tasks that can read all rows. It is not
        called if there are none.

    Returns:
      Groups of tasks that use the same columns, each with the rows as input for its tasks.

    Raises:
      UserError: A column is missing or has a value of the wrong type.
    """

    def columns(task: ServedTask) -> Hashable:
        config = task.model.task
        return config.kind, config.text_a, config.text_b, config.choices, task.model.text_columns

    def inputs(task: ServedTask) -> list[Any]:
        return [pick_task_input(place, row, task) for place, row in rows]

    def can_read(task: ServedTask) -> bool:
        try:
            inputs(task)
        except UserError:
            return False
        return True

    groups = grouped(tasks, columns)
    try:
        return [(group, inputs(group[0])) for group in groups]
    except UserError as error:
        if advise is None:
            raise
        fitting = [task.name for group in groups if can_read(group[0]) for task in group]
        if not fitting:
            raise
        raise UserError(f"{error} {advise(fitting)}") from None
