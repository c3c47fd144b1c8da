"""``afjax report`` and ``afjax compare``: what runs gave, as a page, and side by side."""

import argparse
import functools
import json
from typing import Any

from afjax.cli.stored_model import rows_of
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.tasks.load import load_split
from afjax.trunk.pretrained import load_trunk


def report(arguments: argparse.Namespace) -> int:
    """Writes the page of a workdir."""
    from afjax.analysis.report import write_report

    if arguments.mistakes < 0:
        raise UserError(f"--mistakes is {arguments.mistakes}; it must be at least 0.")
    if arguments.batch_size < 1:
        raise UserError(f"--batch_size is {arguments.batch_size}; it must be at least 1.")
    write_report(
        arguments.workdir,
        arguments.output,
        rows_of=lambda model: _rows(model, arguments, "dev"),
        load_trunk=functools.cache(load_trunk),
        store_folder=arguments.store,
        trunk=arguments.trunk,
        num_mistakes=arguments.mistakes,
        batch_size=arguments.batch_size,
    )
    print(arguments.output)
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Prints how two models, or two groups of runs, do on the same rows."""
    from afjax.analysis import compare as comparing
    from afjax.analysis.sides import open_sides

    if arguments.resamples < 1:
        raise UserError(f"--resamples is {arguments.resamples}; it must be at least 1.")
    if arguments.seed < 0:
        raise UserError(f"--seed is {arguments.seed}; it must be at least 0.")
    where: dict[str, Any] = {
        "store_folder": arguments.store,
        "trunk": arguments.trunk,
        "task": arguments.task,
        "allow_mismatch": arguments.allow_mismatch,
    }
    # Both sides mostly have one trunk.
    load = functools.cache(load_trunk)
    first, second = (open_sides(text, load, **where) for text in (arguments.a, arguments.b))
    found = comparing.compare(
        first,
        second,
        _rows(first[0].model, arguments, arguments.split),
        metric=arguments.metric,
        batch_size=arguments.batch_size,
        max_length=arguments.max_length,
        num_resamples=arguments.resamples,
        seed=arguments.seed,
    )
    print("\n".join(comparing.to_lines(found)))
    if arguments.json:
        print(json.dumps(comparing.to_json(found)))
    return 0


def _rows(model: TaskModel, arguments: argparse.Namespace, split: Any) -> AnyRows:
    """The rows that the flags say; without any, those of the model's own task."""
    if arguments.source or arguments.data_dir:
        rows: AnyRows = rows_of(model, arguments, split)
        return rows
    return load_split(model.task, split, label_names=model.labels, listed=True)
