"""Builds task models with random parameters."""

from typing import Any

import jax
import numpy as np

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.fusion.parameters import init_fusion
from afjax.model.heads import init_head
from afjax.model.model import Model, trunk_layer_norms
from afjax.model.task_model import TaskModel
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree, map_with_path, named_key
from afjax.trunk.pretrained import Trunk


def make(
    trunk: Trunk,
    config: Adapter,
    *,
    names: tuple[str, ...] = ("a",),
    fused: bool = False,
    kind: TaskKind = "classification",
) -> TaskModel:
    """Builds a model whose random parameters are large enough to affect its outputs."""
    key, mixed = jax.random.key(0), FusionConfig()

    def draw(tree: Tree, name: str) -> Tree:
        def leaf(path: str, leaf: Any) -> np.ndarray:
            return np.asarray(0.4 * jax.random.normal(named_key(jax.random.key(3), name, path), leaf.shape))

        return map_with_path(leaf, tree)

    adapters = {name: draw(init_adapter(key, config, trunk.config), name) for name in names}
    if isinstance(config, AdapterConfig) and config.layer_norms:
        for tree in adapters.values():
            tree["layer_norms"] = jax.tree.map(lambda leaf: 1.3 * leaf + 0.1, trunk_layer_norms(trunk.params))
    labels = ("few", "many") if kind == "classification" else ()
    outputs = TASK_KINDS[kind].num_outputs(labels)
    size = {"hidden_size": trunk.config.hidden_size, "num_layers": trunk.config.num_layers}
    fusion = {"mix": draw(init_fusion(key, mixed, config, **size), "mix")} if fused else {}
    return TaskModel(
        trunk=trunk,
        model=Model(
            trunk=trunk.config,
            head_name="task",
            reads=TASK_KINDS[kind].reads,
            adapters=tuple((name, config) for name in names),
            fusion_name="mix" if fused else "",
        ),
        params={
            "adapters": adapters,
            "fusion": fusion,
            "heads": {"task": draw(init_head(key, HeadConfig(), outputs, trunk=trunk.params), "head")},
        },
        task=TaskConfig(name="task", kind=kind),
        labels=labels,
        metrics={},
        seed=0,
        max_length=8,
    )
