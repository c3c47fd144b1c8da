"""Trains many runs on one trunk in one process."""

import dataclasses
import os
from collections.abc import Iterable, Sequence

from afjax.config.from_dict import shown, to_dict
from afjax.config.methods import FusionMethod, Method
from afjax.distributed.hosts import several_hosts
from afjax.distributed.notes import note
from afjax.distributed.preemption import stopping_between_runs
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.storage.paths import absolute, is_remote, open_path
from afjax.train.arguments import check_task, check_types
from afjax.train.loop import Training
from afjax.train.record import by_path
from afjax.train.shared import Shared
from afjax.train.single import PlannedRun, default_name, single_training
from afjax.train.together import run_together
from afjax.trunk.pretrained import Trunk

# If runs with the same name differ in more settings than this, their printed lines show the workdir instead.
MAX_SETTINGS = 4


def train_many(trunk: Trunk, runs: Iterable[PlannedRun], *, slots: int = 1) -> list[TaskModel | Exception]:
    """Trains many runs on one trunk in one process.

    The runs share one copy of the frozen trunk on the devices. Runs that differ only in name, seed, rows, schedule,
    learning rate, weight decay, ``clip_norm`` or class weights also share their compiled programs. Tasks with two,
    three and four labels share programs too, because heads are padded during training. Each run writes the same files
    as a separate run would. To resume a killed call, repeat it. If several runs have the same name, their printed lines
    also show the settings in which they differ.

    With ``slots=1``, the runs train one after another, and every result is bit-identical to a separate run's. With more
    slots, up to ``slots`` runs train at a time: runs with the same program and padded length advance in one compiled
    step, in which the trunk's layers process the rows of all runs at once. Such a step costs as much as ``slots``
    separate steps, even if fewer runs take part. Results match a separate run's up to rounding, and do not depend on
    the other runs. Runs that train the trunk's layers or use ``prng="rbg"`` compute their steps separately; runs that
    train only its LayerNorms can share steps.

    Args:
      trunk: The pretrained encoder. It is not changed.
      runs: The runs, each with its own workdir. A run whose options have a ``Shared`` object uses that object.
      slots: The number of runs that train at a time.

    Returns:
      One entry per run, in order: its model, or the error that ended the run. The error is also printed, and the other
      runs continue.

    Raises:
      UserError: ``slots`` is not positive, two runs have the same workdir, an argument has the wrong type, or there are
        several hosts.
      PreemptionError: SIGTERM was received. All runs that were training have saved their state.

    Example:
      >>> from afjax import PlannedRun, RunOptions, TaskConfig, load_task, load_trunk, train_many
      >>> task = TaskConfig(name="entail", source="builtin:entail")
      >>> data = load_task(task)
      >>> options = [RunOptions(seed=seed) for seed in range(3)]
      >>> runs = [PlannedRun(task=task, data=data, workdir=f"runs/{each.seed}", options=each) for each in options]
      >>> models = train_many(load_trunk("minilm"), runs)  # doctest: +SKIP
      >>> [model.metrics["accuracy"] for model in models]  # doctest: +SKIP
      [0.78, 0.81, 0.79]
    """
    if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
        raise UserError(f"slots is {shown(slots)}; pass a positive integer.")
    if several_hosts():
        raise UserError("train_many works on one host only. On several hosts, call train_single for each run.")
    if not isinstance(runs, Iterable):
        raise UserError(f"The runs are {shown(runs)}; pass a list of afjax.PlannedRun.")
    runs = list(runs)
    for run in runs:
        if not isinstance(run, PlannedRun):
            raise UserError(f"A run is {shown(run)}; pass an afjax.PlannedRun.")
        check_task(run.task)
        kind = FusionMethod if isinstance(run.method, FusionMethod) else Method
        check_types(trunk, run.method, kind, run.config, run.options)
    paths = [absolute(open_path(run.workdir)) for run in runs]
    folders = [str(path) if is_remote(path) else os.path.realpath(path) for path in paths]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UserError(f"Several runs have the workdir {folder}; choose a different workdir for each run.")
    shared, runs = Shared(), _with_details(runs)

    def ended(number: int, outcome: TaskModel | Exception) -> None:
        if isinstance(outcome, Exception):
            problem = str(outcome) if isinstance(outcome, UserError) else f"{type(outcome).__name__}: {outcome}"
            note(f"The run in {runs[number].workdir} failed: {problem}")

    with stopping_between_runs():
        return run_together([_training(trunk, run, shared) for run in runs], slots=slots, shared=shared, ended=ended)


def _with_details(runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Returns runs whose options have a detail, if other runs have the same name."""
    numbers_by_name: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        numbers_by_name.setdefault(run.options.name or default_name(run.task, run.method), []).append(number)
    detailed = list(runs)
    for numbers in numbers_by_name.values():
        for number, detail in zip(numbers, _details([runs[number] for number in numbers]), strict=True):
            run = runs[number]
            detailed[number] = dataclasses.replace(
                run, options=dataclasses.replace(run.options, detail=run.options.detail or detail)
            )
    return detailed


def _details(runs: Sequence[PlannedRun]) -> list[str]:
    """Describes how each of several runs differs from the others.

    A description consists of a few settings, or else of the workdir.
    """
    settings_per_run = [
        by_path(
            {"task": to_dict(run.task), **to_dict(run.method), "train": to_dict(run.config), "seed": run.options.seed}
        )
        for run in runs
    ]
    names = dict.fromkeys(name for settings in settings_per_run for name in settings)
    differing = [name for name in names if len({str(settings.get(name)) for settings in settings_per_run}) > 1]
    details = [
        ", ".join(f"{name}={settings[name]}" for name in differing if name in settings) for settings in settings_per_run
    ]
    if len(differing) > MAX_SETTINGS or len(set(details)) < len(runs):
        return [str(run.workdir) for run in runs]
    return details


def _training(trunk: Trunk, run: PlannedRun, shared: Shared) -> Training[TaskModel]:
    options = dataclasses.replace(run.options, shared=run.options.shared or shared)
    return single_training(trunk, dataclasses.replace(run, options=options))
