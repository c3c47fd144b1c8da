"""Makes task models with random parameters, for any adapters, head and task."""

import dataclasses
from typing import Any

import jax
import numpy as np

from afjax.config.adapters import Adapter
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig
from afjax.fusion.parameters import init_fusion
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.model.setup import new_adapter
from afjax.model.task_model import TaskModel
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree, map_with_path, named_key
from afjax.trunk.pretrained import Trunk


def random_task(
    trunk: Trunk,
    name: str,
    *adapters: Adapter,
    fusion: FusionConfig | None = None,
    head: HeadConfig = HeadConfig(),
    task: TaskConfig | None = None,
    labels: tuple[str, ...] = ("few", "many"),
    max_length: int = 16,
) -> TaskModel:
    """Makes a model with random parameters that depend only on its name.

    The parameters are large enough to change predictions.
    """
    task = TaskConfig(name=name) if task is None else dataclasses.replace(task, name=name)
    key = named_key(jax.random.key(0), name)

    def draw(tree: Tree, part: str) -> Tree:
        def leaf(path: str, leaf: Any) -> np.ndarray:
            noise = 0.3 * jax.random.normal(named_key(key, part, path), leaf.shape)
            return np.asarray(leaf + noise)

        return map_with_path(leaf, tree)

    trees = {
        str(number): draw(new_adapter(key, str(number), config, trunk.config, trunk.params), str(number))
        for number, config in enumerate(adapters)
    }
    sizes = {"hidden_size": trunk.config.hidden_size, "num_layers": trunk.config.num_layers}
    fusion_params = {} if fusion is None else {"fusion": draw(init_fusion(key, fusion, adapters[0], **sizes), "fusion")}
    reads = TASK_KINDS[task.kind].reads
    outputs = TASK_KINDS[task.kind].num_outputs(labels)
    return TaskModel(
        trunk=trunk,
        model=Model(
            trunk=trunk.config,
            head_name="task",
            head=head,
            reads=reads,
            adapters=tuple((str(number), config) for number, config in enumerate(adapters)),
            fusion_name="" if fusion is None else "fusion",
            fusion=fusion or FusionConfig(),
        ),
        params={
            "adapters": trees,
            "fusion": fusion_params,
            "heads": {"task": draw(init_head(key, head, outputs, trunk=trunk.params, reads=reads), "head")},
        },
        task=task,
        labels=labels,
        metrics={},
        seed=0,
        max_length=max_length,
    )
