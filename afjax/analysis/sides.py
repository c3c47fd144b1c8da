"""Loads the two sides of a comparison: stored models or the runs of workdirs."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

from afjax import store
from afjax.analysis.workdirs import ExperimentRecord, Moved, differing_settings, find_experiments, load_result
from afjax.display.words import first_of
from afjax.errors import UserError, did_you_mean
from afjax.model.loading import load_task_model
from afjax.model.stored import recorded_trunk
from afjax.model.task_model import TaskModel
from afjax.storage.paths import check_readable, is_remote, open_path
from afjax.trunk.pretrained import Trunk

_MODEL = re.compile(r"(adapter|fusion|head):([^:]+)(?::([^:]+))?")


@dataclasses.dataclass(frozen=True)
class Side:
    """A run or a stored model on one side of a comparison.

    Attributes:
      title: The name from the command line, or the workdir.
      model: The model.
      config: The run's settings by dotted path, or None for a stored model.
    """

    title: str
    model: TaskModel
    config: Mapping[str, Any] | None = None


def open_sides(
    text: str,
    load_trunk: Callable[[str], Trunk],
    *,
    moved: Moved = Moved(),
    task: str = "",
    allow_mismatch: bool = False,
) -> list[Side]:
    """Loads one side of ``afjax compare``.

    Args:
      text: Comma-separated names. A name is a stored model (``adapter:NAME``, ``fusion:NAME`` or ``head:NAME``,
        optionally followed by ``:HEAD``) or a workdir. The folder of a sweep over seeds expands to its runs, sorted by
        seed.
      load_trunk: Loads a trunk by name, like ``afjax.load_trunk``. It may be called repeatedly with the same name.
      moved: The store and the trunk. For workdirs, an empty store means their own stores. An empty trunk means the one
        recorded in the store or the workdir.
      task: The task to compare, for runs on several tasks.
      allow_mismatch: Whether a stored head may be used with an adapter or fusion that it was not trained with.

    Raises:
      UserError: A name is neither a stored model nor a workdir, its model cannot be loaded, a folder has runs with
        different settings or inputs or two runs with the same seed, or ``task`` does not select one of a run's several
        tasks.
    """
    sides = []
    for name in split_words(text):
        if match := _MODEL.fullmatch(name):
            sides.append(_stored_side(name, match, load_trunk, moved, allow_mismatch))
            _check_task(name, sides[-1], task)
            continue
        if is_remote(folder := open_path(name)):
            check_readable(folder, "workdir")
        if folder.is_dir():
            sides += _run_sides(folder, load_trunk, moved, task)
        else:
            raise UserError(
                f'"{name}" is neither a workdir nor a model; pass a workdir created by afjax train, or '
                "adapter:NAME, fusion:NAME or head:NAME from --store."
            )
    return sides


def split_words(text: str) -> list[str]:
    """Splits text at commas, except within the paths of existing folders.

    A sweep's run folders have commas in their names.
    """
    pieces, names = text.split(","), []
    while pieces:
        ends = range(len(pieces), 0, -1)
        end = next(end for end in ends if end == 1 or open_path(",".join(pieces[:end]).strip()).is_dir())
        names.append(",".join(pieces[:end]).strip())
        pieces = pieces[end:]
    return names


def _stored_side(
    text: str, match: re.Match[str], load_trunk: Callable[[str], Trunk], moved: Moved, allow_mismatch: bool
) -> Side:
    if not moved.store_folder:
        raise UserError(f'"{text}" is a stored model; pass --store.')
    kind, name, head = match.groups()
    if kind == "head" and head:
        raise UserError(f'"{text}" names two heads; use head:NAME for a head without an adapter.')
    adapter, fusion = (name if kind == chosen else "" for chosen in ("adapter", "fusion"))
    folder = {"adapter": "adapters", "head": "heads"}.get(kind, kind)
    model = load_task_model(
        moved.store_folder,
        load_trunk(moved.trunk or recorded_trunk(moved.store_folder, folder, name)),
        # By default, the head of the same name, or else the head that was trained with the adapter or fusion.
        head=head or (name if kind == "head" or name in store.names(moved.store_folder, "heads") else ""),
        adapter=adapter,
        fusion=fusion,
        allow_mismatch=allow_mismatch,
    )
    return Side(text, model)


def _check_task(text: str, side: Side, task: str) -> None:
    """Raises UserError if a stored model does not have the given task, if any."""
    own = side.model.task.name
    if task and task != own:
        raise UserError(
            f'{text} has the task {own}, but --task is "{task}"; leave out --task.{did_you_mean(task, [own])}'
        )


def _run_sides(folder: epath.Path, load_trunk: Callable[[str], Trunk], moved: Moved, task: str) -> list[Side]:
    finished = [experiment for experiment in find_experiments(folder) if experiment.results]
    swept = differing_settings([experiment.conditions for experiment in finished])
    if swept:
        raise UserError(
            f"{folder} has runs with different settings or inputs ({first_of(list(swept), 4)} differ); pass the "
            "workdirs to compare, separated by commas."
        )
    by_seed: dict[int, ExperimentRecord] = {}
    for experiment in finished:
        first = by_seed.setdefault(experiment.config["seed"], experiment)
        if first is not experiment:
            raise UserError(
                f"{first.workdir} and {experiment.workdir} have the same settings and seed; pass the workdirs to "
                "compare, separated by commas."
            )
    sides = []
    for _, experiment in sorted(by_seed.items()):
        results = experiment.results
        if task not in results and (task or len(results) > 1):
            raise UserError(
                f"{experiment.workdir} covers the tasks {', '.join(results)}; set --task to one of them."
                f"{did_you_mean(task, results)}"
            )
        result = results[task] if task else next(iter(results.values()))
        model = load_result(experiment, result, load_trunk, moved=moved)
        sides.append(Side(str(experiment.workdir), model, experiment.settings))
    return sides
