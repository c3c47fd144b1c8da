"""Loads the stored model and the labeled rows that a command's flags select."""

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from afjax.cli.parsers import flags, split_numbers
from afjax.config.flags import split_names
from afjax.display.terminal import print_line
from afjax.errors import UserError
from afjax.storage.paths import cache_folder, expanded, is_remote, open_path

if TYPE_CHECKING:
    from afjax.config.tasks import TaskConfig
    from afjax.data.sources.kind import Split
    from afjax.data.splits import AnyRows
    from afjax.model.task_model import TaskModel


def set_up_libraries() -> None:
    """Enables the persistent compilation cache."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def load_stored_model(arguments: argparse.Namespace) -> Any:
    """Loads the stored model selected by ``--adapter``, ``--fusion`` and ``--head``.

    ``--trunk`` and ``--head`` default to the trunk and head recorded in the store. ``--with``, ``--without`` and
    ``--drop_layers`` are then applied to the model.

    Raises:
      UserError: The flags select no model, or both an adapter and a fusion; the store lacks the model, or does not
        record the trunk or a unique head; or ``--with``, ``--without`` or ``--drop_layers`` does not fit the model.
    """
    from afjax.model.loading import load_adapters, load_task_model
    from afjax.model.stored import recorded_head

    if arguments.adapter and arguments.fusion:
        raise UserError(
            f"Both --adapter={arguments.adapter} and --fusion={arguments.fusion} were given; pass only one of them."
        )
    kind = "adapters" if arguments.adapter else "fusion" if arguments.fusion else "heads"
    name = arguments.adapter or arguments.fusion or arguments.head
    if not name:
        raise UserError("No model was selected; pass --adapter=NAME or --fusion=NAME, or only --head=NAME.")
    set_up_libraries()
    head = arguments.head or recorded_head(arguments.store, kind, name)
    if not arguments.head:
        print_line(f'Using the head "{head}", as recorded in the store.')
    trunk = load_recorded_trunk(arguments.trunk, arguments.store, kind, name)
    task_model = load_task_model(
        arguments.store, trunk, head=head, **flags(arguments, "adapter", "fusion", "allow_mismatch")
    )
    if arguments.added:
        task_model = task_model.with_adapters(load_adapters(arguments.store, split_names(arguments.added), trunk))
    if arguments.without:
        task_model = task_model.without_adapters(split_names(arguments.without))
    if arguments.drop_layers:
        task_model = task_model.without_layers(split_numbers(arguments.drop_layers, "--drop_layers"))
    return task_model


def load_recorded_trunk(given: str, store_folder: str, kind: str, name: str) -> Any:
    """Loads the trunk of ``--trunk``, or else the one recorded in a manifest.

    Args:
      given: The flag's value; empty if it was not given.
      store_folder: The store.
      kind, name: The artifact's kind (``adapters``, ``fusion`` or ``heads``) and name.

    Raises:
      UserError: The trunk cannot be loaded, or the manifest does not name one.
    """
    from afjax.model.stored import recorded_trunk
    from afjax.trunk.pretrained import load_trunk

    if given:
        return load_trunk(given)
    recorded = recorded_trunk(store_folder, kind, name)
    print_line(f'Using the trunk "{recorded}", as recorded in the store.')
    try:
        return load_trunk(recorded)
    except UserError as error:
        raise UserError(
            f"{error} This trunk is recorded in the store; if it has moved, set --trunk to its new path."
        ) from error


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


def servable_names(store_folder: str) -> list[str]:
    """Lists the adapters and fusions of a store that have a head, and notes which are left out.

    Raises:
      UserError: There is none.
    """
    from afjax.serve.loading import names_with_heads

    names, left_out = names_with_heads(store_folder)
    for name, reason in left_out.items():
        print_line(f"Note: {name} is left out. {reason}")
    if not names:
        raise UserError(f"The store {store_folder} has no adapter with a head; train one first.")
    return names
