"""The stored model that a command's flags name, and the rows that it is scored on."""

import argparse
import os
from pathlib import Path
from typing import Any

from afjax.errors import UserError
from afjax.paths import cache_folder


def set_up_libraries() -> None:
    """Enables the persistent compilation cache."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def load_stored_model(arguments: argparse.Namespace) -> Any:
    from afjax.task_model import load_adapters, load_task_model
    from afjax.trunk import load_trunk

    if arguments.adapter and arguments.fusion:
        raise UserError(
            f"Both --adapter={arguments.adapter} and --fusion={arguments.fusion} were given; give one of them."
        )
    set_up_libraries()
    trunk = load_trunk(arguments.trunk)
    task_model = load_task_model(
        arguments.store,
        trunk,
        head=arguments.head,
        adapter=arguments.adapter,
        fusion=arguments.fusion,
        allow_mismatch=arguments.allow_mismatch,
    )
    if arguments.added:
        task_model = task_model.with_adapters(load_adapters(arguments.store, arguments.added.split(","), trunk))
    if arguments.without:
        task_model = task_model.without_adapters(arguments.without.split(","))
    if arguments.drop_layers:
        words = arguments.drop_layers.split(",")
        if not all(word.strip().isdecimal() and len(word) < 10 for word in words):
            raise UserError(f"--drop_layers is {arguments.drop_layers}; give layers by their numbers, as in 0,1,2.")
        task_model = task_model.without_layers([int(word) for word in words])
    return task_model


def rows_of(task_model: Any, arguments: argparse.Namespace, split: Any) -> Any:
    """The labelled rows of ``--source``, or in ``--data_dir``, that a task model is scored on."""
    import dataclasses

    from afjax.data.rows import load_split
    from afjax.data.sources import open_source
    from afjax.data.tasks import find_task, read_task

    own, source = task_model.task, arguments.source or ""
    if arguments.data_dir:
        found = find_task(own.name, arguments.data_dir)
    elif source.endswith(".toml"):
        found = read_task(Path(source))
    elif source == own.source or _is_same_file(source, own.source):
        found = own
    elif Path(source).is_file():
        # All rows of the file are scored, whatever the split is called.
        files = {"train": "", "dev": "", "test": "", split: source}
        found = dataclasses.replace(own, source="", dev_share=0.0, **files)
    else:
        found = dataclasses.replace(own, source=source, train="", dev="", test="")
    places = {name: getattr(found, name) for name in ("source", "train", "dev", "test", "dev_share")}
    task = dataclasses.replace(own, **places)
    # A source that names its labels must name those of the head, which evaluate sees to.
    names = task.labels or open_source(task, split).label_names or task_model.labels
    # The head lists its labels in the order of its outputs, so an integer label may be an index into them.
    return load_split(task, split, label_names=names, listed=True)


def _is_same_file(one: str, other: str) -> bool:
    """Whether two sources are one file, however its path is written. Both then have the same dev rows."""
    return os.path.isfile(one) and os.path.isfile(other) and os.path.samefile(one, other)
