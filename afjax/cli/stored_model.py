"""Loads the stored model that a command's flags name, and the rows to score it on."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afjax.display.terminal import print_line
from afjax.errors import UserError
from afjax.storage.paths import cache_folder

if TYPE_CHECKING:
    from afjax.data.splits import AnyRows
    from afjax.model.task_model import TaskModel


def set_up_libraries() -> None:
    """Enables the persistent compilation cache."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def load_stored_model(arguments: argparse.Namespace) -> Any:
    """Loads the stored model that ``--adapter`` or ``--fusion``, and ``--head`` name.

    ``--trunk`` and ``--head`` default to the trunk and the head that the store records. Then ``--with``, ``--without``
    and ``--drop_layers`` change the model.

    Raises:
      UserError: The flags name no model, or both an adapter and a fusion; the store does not have the model, does not
        record the trunk, or does not record exactly one head; or the model cannot be changed in this way.
    """
    from afjax.model.loading import load_adapters, load_task_model
    from afjax.model.stored import recorded_head

    if arguments.adapter and arguments.fusion:
        raise UserError(
            f"Both --adapter={arguments.adapter} and --fusion={arguments.fusion} were given; give one of them."
        )
    kind = "adapters" if arguments.adapter else "fusion" if arguments.fusion else "heads"
    name = arguments.adapter or arguments.fusion or arguments.head
    if not name:
        raise UserError("No model was named; give --adapter=NAME or --fusion=NAME, or only --head=NAME.")
    set_up_libraries()
    head = arguments.head or recorded_head(arguments.store, kind, name)
    if not arguments.head:
        print_line(f'The head is "{head}", as the store records.')
    trunk = load_recorded_trunk(arguments.trunk, arguments.store, kind, name)
    task_model = load_task_model(
        arguments.store,
        trunk,
        head=head,
        adapter=arguments.adapter,
        fusion=arguments.fusion,
        allow_mismatch=arguments.allow_mismatch,
    )
    if arguments.added:
        task_model = task_model.with_adapters(load_adapters(arguments.store, arguments.added.split(","), trunk))
    if arguments.without:
        task_model = task_model.without_adapters(arguments.without.split(","))
    if arguments.drop_layers:
        numbers = arguments.drop_layers.split(",")
        if not all(number.strip().isdecimal() and len(number) < 10 for number in numbers):
            raise UserError(f"--drop_layers is {arguments.drop_layers}; give layer numbers, as in 0,1,2.")
        task_model = task_model.without_layers([int(number) for number in numbers])
    return task_model


def load_recorded_trunk(given: str, store_folder: str, kind: str, name: str) -> Any:
    """Loads the trunk of ``--trunk``, or else the trunk that an artefact's manifest names.

    Args:
      given: The flag's value; empty if it was not given.
      store_folder: The store.
      kind, name: The artefact's kind (``adapters``, ``fusion`` or ``heads``) and name.

    Raises:
      UserError: The trunk cannot be loaded, or the manifest does not name it.
    """
    from afjax.model.stored import recorded_trunk
    from afjax.trunk.pretrained import load_trunk

    if given:
        return load_trunk(given)
    recorded = recorded_trunk(store_folder, kind, name)
    print_line(f'The trunk is "{recorded}", as the store records.')
    try:
        return load_trunk(recorded)
    except UserError as error:
        raise UserError(f"{error} The store records this trunk; give --trunk if it has moved.") from error


def rows_of(task_model: Any, arguments: argparse.Namespace, split: Any) -> Any:
    """Loads the labelled rows of ``--source`` or ``--data_dir`` to score a task model on."""
    import dataclasses

    from afjax.data.sources.kinds import open_source
    from afjax.tasks.by_name import find_task, read_task
    from afjax.tasks.load import load_split

    model_task, source = task_model.task, arguments.source or ""
    if not (arguments.data_dir or source or getattr(model_task, split)):
        raise UserError(
            f'The store does not record where the rows of the head "{task_model.model.head_name}" are, because it was '
            "trained from Python or imported; give --source."
        )
    if arguments.data_dir:
        data_task = find_task(model_task.name, arguments.data_dir)
    elif source.endswith(".toml"):
        data_task = read_task(Path(source))
    elif source == model_task.source or _is_same_file(source, model_task.source):
        data_task = model_task
    elif Path(source).is_file():
        # All rows of the file are scored: dev_share is 0, so no rows are left out as train rows.
        if split == "dev" and model_task.dev_share and not model_task.dev:
            print_line(
                f"Note: All rows of {source} are used. If the model was trained on some of them, its scores are too "
                "high."
            )
        files = {"train": "", "dev": "", "test": "", split: source}
        data_task = dataclasses.replace(model_task, source="", dev_share=0.0, **files)
    else:
        data_task = dataclasses.replace(model_task, source=source, train="", dev="", test="")
    places = {name: getattr(data_task, name) for name in ("source", "train", "dev", "test", "dev_share")}
    task = dataclasses.replace(model_task, **places)
    # If the source names its labels, they must be the head's labels. evaluate checks this.
    names = task.labels or open_source(task, split).label_names or task_model.labels
    # The head lists its labels in the order of its outputs, so an integer label may be an index into them.
    return load_split(task, split, label_names=names, listed=True)


def _is_same_file(first: str, second: str) -> bool:
    """Returns whether two paths name the same file. Then the sources have the same dev rows."""
    return os.path.isfile(first) and os.path.isfile(second) and os.path.samefile(first, second)


def own_rows(model: "TaskModel", arguments: argparse.Namespace, split: Any) -> "AnyRows":
    """Loads the rows of ``--source`` or ``--data_dir``, or else of the model's own task."""
    from afjax.tasks.load import load_split

    if arguments.source or arguments.data_dir:
        rows: AnyRows = rows_of(model, arguments, split)
        return rows
    return load_split(model.task, split, label_names=model.labels, listed=True)
