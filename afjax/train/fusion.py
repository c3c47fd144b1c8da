"""The AdapterFusion recipe: trains attention over stored adapters, and a head."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax.config.methods import FusionMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.fusion.checks import check_subset
from afjax.model.loading import load_adapters
from afjax.model.setup import fusion_setup
from afjax.model.task_model import TaskModel
from afjax.storage.paths import open_path
from afjax.tasks.kinds import TASK_KINDS
from afjax.train.arguments import check_data, check_types
from afjax.train.defaults import choose_learning_rate, choose_pooling
from afjax.train.loop import Training, run_alone
from afjax.train.options import RunOptions
from afjax.train.record import recorded_settings
from afjax.train.single import TaskRun, task_training
from afjax.trunk.pretrained import Trunk


def train_fusion(
    trunk: Trunk,
    task: TaskConfig,
    data: Mapping[str, Any],
    method: FusionMethod,
    *,
    workdir: str | Path,
    config: TrainConfig = TrainConfig(),
    options: RunOptions = RunOptions(),
) -> TaskModel:
    """Trains attention over stored adapters, and a head, for a target task.

    The trunk and the adapters stay frozen.

    Args:
      method: The store, the adapters to fuse, and the architectures of the fusion and the head.
      trunk, task, data, workdir, config, options: As in :func:`afjax.train_single`.

    Returns:
      The model with the best parameters by the main dev metric, and their dev metrics.

    Raises:
      UserError: As in :func:`afjax.train_single`, or an adapter is missing, damaged or for a different trunk or slot,
        or has changed since the resumed run began.

    Example:
      >>> from afjax import FusionMethod, TaskConfig, load_task, load_trunk, train_fusion
      >>> task = TaskConfig(name="target", source="builtin:target")
      >>> method = FusionMethod(adapters=("entail", "paraphrase"), store="store")
      >>> trunk = load_trunk("minilm")  # doctest: +SKIP
      >>> fused = train_fusion(trunk, task, load_task(task), method, workdir="runs/fused")  # doctest: +SKIP
      >>> fused.predict([("All cats sleep.", "Some cats sleep.")]).labels  # doctest: +SKIP
      ['follows']

    Reference:
      Pfeiffer et al. 2021, *AdapterFusion*, section 3.2.
    """
    return run_alone(fusion_training(trunk, task, data, method, workdir=workdir, config=config, options=options))


def fusion_training(
    trunk: Trunk,
    task: TaskConfig,
    data: Mapping[str, Any],
    method: FusionMethod,
    *,
    workdir: str | Path,
    config: TrainConfig,
    options: RunOptions,
) -> Training[TaskModel]:
    """Trains a fusion like :func:`train_fusion`, but the caller computes the steps.

    See :mod:`afjax.train.loop`.
    """
    check_types(trunk, method, FusionMethod, config, options)
    splits = check_data(task, data)
    members = load_adapters(os.fspath(method.store), method.adapters, trunk)
    check_subset(method.fusion, len(members))
    recorded = recorded_settings(open_path(workdir), overwrite=options.overwrite)
    setup = fusion_setup(
        {name: architecture for name, (architecture, _) in members.items()},
        method.fusion,
        choose_pooling(method.head, "fusion", lambda: trunk.pooling, recorded),
        trunk.config,
        name=options.name or f"{task.name}-fusion",
        reads=TASK_KINDS[task.kind].reads,
        num_outputs=TASK_KINDS[task.kind].num_outputs(splits["train"].label_names),
    )
    task_run = TaskRun(
        trunk=trunk,
        task=task,
        data=splits,
        setup=setup.computed(dtype=trunk.dtype, scan_layers=options.scan_layers, remat=options.remat),
        adapters={name: tree for name, (_, tree) in members.items()},
        method=method,
    )
    config = choose_learning_rate(config, "fusion", recorded)
    return (yield from task_training(task_run, config, options, workdir))
