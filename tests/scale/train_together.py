"""Compares runs that train together on four devices with separate runs on one device.

Tests run ``train_together.py TRUNK FOLDER``. The four runs take three slots, so that one of them starts later.
"""

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np

from afjax import PlannedRun, RunOptions, TaskConfig, TrainConfig, load_task, load_trunk, train_many
from afjax.config.training import MeshConfig
from afjax.distributed.sharding import make_mesh
from afjax.model.task_model import TaskModel
from afjax.train import stack
from afjax.trees import flatten

trunk, folder, task = load_trunk(sys.argv[1]), Path(sys.argv[2]), TaskConfig(name="target", source="builtin:target")
data, shardings, trunk_shardings = load_task(task), set[str](), set[str]()


step = stack.Stack.step


def recorded_step(self: stack.Stack, requests: Any) -> Any:
    """Records the shardings of the stacked states after each step, and of the frozen trunk."""
    done = step(self, requests)
    trunk_shardings.update(str(leaf.sharding.spec) for leaf in jax.tree.leaves(requests[0][0].frozen["trunk"]))
    assert self._arrays is not None
    shardings.update(str(leaf.sharding.spec) for leaf in self._arrays[0])
    return done


def trained(name: str, devices: Any, mesh: MeshConfig, slots: int) -> list[TaskModel]:
    runs = [
        PlannedRun(
            task=task,
            data=data,
            workdir=folder / name / str(seed),
            config=TrainConfig(batch_size=8, max_length=16, max_steps=4 + seed, eval_every=2, adam_epsilon=1e-3),
            options=RunOptions(seed=seed, mesh=make_mesh(mesh, devices)),
        )
        for seed in range(4)
    ]
    outcomes = train_many(trunk, runs, slots=slots)
    models = [outcome for outcome in outcomes if isinstance(outcome, TaskModel)]
    assert len(models) == len(runs), outcomes
    return models


separate = trained("separate", jax.devices()[:1], MeshConfig(), slots=1)
with mock.patch.object(stack.Stack, "step", recorded_step):
    together = trained("together", jax.devices(), MeshConfig(data=2, fsdp=2), slots=3)
for model, own in zip(together, separate, strict=True):
    leaves, others = flatten(model.params), flatten(own.params)
    assert leaves.keys() == others.keys()
    for path, leaf in leaves.items():
        np.testing.assert_allclose(leaf, others[path], atol=2e-4, rtol=2e-3, err_msg=path)
print(jax.device_count(), *sorted(shardings), "frozen trunk:", *sorted(trunk_shardings), sep="\n")
