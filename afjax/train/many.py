"""Trains many runs on one trunk in one program."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.config.from_dict import shown
from afjax.config.methods import FusionMethod, Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.storage.paths import open_path
from afjax.train.fusion import fusion_training
from afjax.train.loop import Training
from afjax.train.options import RunOptions
from afjax.train.shared import Shared
from afjax.train.single import single_training
from afjax.train.together import run_together
from afjax.trunk.pretrained import Trunk


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One run of :func:`train_many`.

    Attributes:
      task, data, workdir, config, options: As in :func:`afjax.train_single`.
      method: What to train: a ``Method``, or a ``FusionMethod`` as in :func:`afjax.train_fusion`.

    Example:
      >>> from afjax import PlannedRun, TaskConfig, load_task
      >>> task = TaskConfig(name="entail", source="builtin:entail")
      >>> PlannedRun(task=task, data=load_task(task), workdir="runs/entail").options.seed
      0
    """

    task: TaskConfig
    data: Mapping[str, Any] = dataclasses.field(repr=False)
    workdir: str | Path
    method: Method | FusionMethod = Method()
    config: TrainConfig = TrainConfig()
    options: RunOptions = RunOptions()


def train_many(trunk: Trunk, runs: Sequence[PlannedRun], *, slots: int = 1) -> list[TaskModel | Exception]:
    """Trains many runs on one trunk in one program.

    The runs share one copy of the frozen trunk on the devices. Runs that differ only in seed, rows, learning rate or
    schedule also share their compiled programs. Each run writes the same files as a run of its own, and a killed call
    resumes when it is repeated.

    With ``slots=1``, the runs train one after another, and every result is bit-identical to a separate run's. With more
    slots, as many runs train at a time: the next steps of all runs that have the same program and the same padded
    length are one compiled step, in which the trunk's layers see the rows of all runs. Results then equal those of
    separate runs up to rounding, and do not depend on the other runs. Runs that train the whole trunk, and runs with
    ``prng="rbg"``, compute their steps separately.

    Args:
      trunk: The pretrained encoder. It is not changed.
      runs: The runs. Each has its own workdir.
      slots: The number of runs that train at a time.

    Returns:
      One entry per run, in order: its model, or the error that ended the run. A failed run does not affect the others.

    Raises:
      UserError: ``slots`` is not positive, or two runs have the same workdir.
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
        raise UserError(f"slots is {shown(slots)}; give a positive integer.")
    folders = [str(open_path(run.workdir)) for run in runs]
    for folder in folders:
        if folders.count(folder) > 1:
            raise UserError(f"Several runs have the workdir {folder}; give each run its own.")
    shared = Shared()
    return run_together([_training(trunk, run, shared) for run in runs], slots=slots, shared=shared)


def _training(trunk: Trunk, run: PlannedRun, shared: Shared) -> Training[TaskModel]:
    named: dict[str, Any] = {
        "workdir": run.workdir,
        "config": run.config,
        "options": dataclasses.replace(run.options, shared=shared),
    }
    if isinstance(run.method, FusionMethod):
        return fusion_training(trunk, run.task, run.data, run.method, **named)
    return single_training(trunk, run.task, run.data, method=run.method, **named)
