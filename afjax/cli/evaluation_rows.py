"""Loads the labeled rows that a command's flags select."""

import dataclasses
from typing import TYPE_CHECKING, Any

from afjax.display.terminal import print_line
from afjax.errors import UserError
from afjax.storage.paths import expanded, is_remote, open_path

if TYPE_CHECKING:
    from afjax.config.tasks import TaskConfig
    from afjax.data.sources.kind import Split
    from afjax.data.splits import AnyRows
    from afjax.model.task_model import TaskModel


def is_other_file(model: "TaskModel", source: str | None) -> bool:
    """Whether a source is a file other than the model's recorded source.

    All rows of such a file belong to the requested split.
    """
    if not source or source.endswith(".toml") or _is_recorded(model, source):
        return False
    return open_path(source).is_file()


def _is_recorded(model: "TaskModel", source: str) -> bool:
    return source == model.task.source or _is_same_path(source, model.task.source)


def rows_of(model: "TaskModel", split: "Split", *, source: str | None = None, data_dir: str | None = None) -> "AnyRows":
    """Loads labeled rows to evaluate a model on.

    Args:
      model: The model.
      split: The split.
      source: The value of ``--source``.
      data_dir: The value of ``--data_dir``. Without a source and a folder, the rows of the model's task are loaded.

    Raises:
      UserError: The rows cannot be read or have no labels, or the store does not record the model's data.
    """
    from afjax.data.sources.kinds import open_source, source_kind
    from afjax.tasks.load import load_split

    source = source or ""
    data_task = _task_of_data(model, split, source, data_dir)
    located = ("source", "train", "dev", "test", "dev_share", "train_rows")
    task = dataclasses.replace(model.task, **{name: getattr(data_task, name) for name in located})
    if source_kind(task.source).fixed_splits:
        # Earlier versions ignored these settings, and recorded them.
        task = dataclasses.replace(task, train="", dev="", test="")
    if source.endswith(".toml") and not data_dir:
        task = _with_columns(task, data_task, source)
    # If the source names its labels, they must match the head's labels, which evaluate checks.
    own_names = open_source(task, split).label_names
    names = task.labels or own_names or model.labels
    # The head's labels are in output order, so an integer label may be an index into them, unless the source lists its
    # labels in a different order.
    listed = data_task is model.task or not own_names or own_names == names
    return load_split(task, split, label_names=names, listed=listed)


def _task_of_data(model: "TaskModel", split: "Split", source: str, data_dir: str | None) -> "TaskConfig":
    """Returns a task whose data settings say where the rows are. The arguments are described in :func:`rows_of`."""
    from afjax.tasks.by_name import find_task, read_task

    task = model.task
    if data_dir:
        found = find_task(task.name, data_dir)
        return task if _is_same_path(found.source, task.source) else found
    if not source:
        # Without a dev split, dev rows are held out from the train split.
        if not (task.source or getattr(task, split) or (split == "dev" and task.train)):
            raise UserError(
                f'The store does not record the data of the head "{model.model.head_name}", because it was trained '
                "from Python or imported; pass --source."
            )
        return task
    if source.endswith(".toml"):
        return read_task(source)
    if _is_recorded(model, source):
        return task
    if not is_other_file(model, source):
        return dataclasses.replace(task, source=source, train="", dev="", test="", train_rows=0)
    # Score all rows of the file: with a dev_share of 0, none are held back as train rows.
    if split == "dev" and task.dev_share and not task.dev:
        print_line(
            f"Note: All rows of {source} are used. If the model was trained on some of them, its scores are inflated."
        )
    files: dict[str, Any] = {"train": "", "dev": "", "test": "", split: source}
    return dataclasses.replace(task, source="", dev_share=0.0, train_rows=0, **files)


def _with_columns(task: Any, described: Any, path: str) -> Any:
    """Copies the columns and label names that a TOML file describes to a model's task.

    If the file sets no column, the task's columns are used.

    Raises:
      UserError: The file describes a different kind of task.
    """
    if described.kind != task.kind:
        raise UserError(
            f'{path} describes a task of the kind "{described.kind}", but the model was trained for "{task.kind}"; set '
            f'kind = "{task.kind}" in it.'
        )
    columns = {name: getattr(described, name) for name in ("text_a", "text_b", "label", "choices")}
    labels = described.labels or task.labels
    multi_label = dataclasses.replace(task.multi_label, separator=described.multi_label.separator)
    return dataclasses.replace(
        task, labels=labels, multi_label=multi_label, **(columns if any(columns.values()) else {})
    )


def _is_same_path(first: str, second: str) -> bool:
    """Checks whether two paths are the same file or folder, and so have the same dev rows."""
    if not first or not second or is_remote(first) or is_remote(second):
        return False
    paths = expanded(first), expanded(second)
    return all(path.exists() for path in paths) and paths[0].samefile(paths[1])
