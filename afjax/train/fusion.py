"""The AdapterFusion recipe: trains attention over stored adapters, and a head."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax.config.methods import FusionMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.model.task_model import TaskModel
from afjax.train.arguments import check_types
from afjax.train.loop import run_alone
from afjax.train.options import RunOptions
from afjax.train.single import PlannedRun, single_training
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
    check_types(trunk, method, FusionMethod, config, options)
    planned = PlannedRun(task=task, data=data, workdir=workdir, method=method, config=config, options=options)
    return run_alone(single_training(trunk, planned))
