"""Fixtures: models with large random parameters, and AdapterHub's folders."""

from collections.abc import Callable, Mapping

import jax
import numpy as np
import pytest

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
from tests.interop.adapterhub_folders import Folders, unpack

LABELS = ("no", "perhaps", "yes")

MakeModel = Callable[..., TaskModel]


def draw(tree: Tree, name: str) -> Tree:
    return map_with_path(
        lambda path, leaf: np.asarray(0.3 * jax.random.normal(named_key(jax.random.key(3), name, path), leaf.shape)),
        tree,
    )


@pytest.fixture(scope="session")
def make_model(tiny_trunk: Trunk) -> MakeModel:
    """Returns a function that makes a task model.

    The model has a head. If it has several adapters, it also has a fusion with the head's name.
    """

    def make(
        name: str,
        adapters: Mapping[str, Adapter],
        *,
        trunk: Trunk = tiny_trunk,
        kind: str = "classification",
        **task: float,
    ) -> TaskModel:
        key, labels = jax.random.key(0), LABELS if kind in ("classification", "multi_label", "tagging") else ()
        sizes = {"hidden_size": trunk.config.hidden_size, "num_layers": trunk.config.num_layers}
        fused = len(adapters) > 1
        fusion_params = init_fusion(key, FusionConfig(), next(iter(adapters.values())), **sizes) if fused else {}
        reads = TASK_KINDS[kind].reads
        head = init_head(key, HeadConfig(), TASK_KINDS[kind].num_outputs(labels), trunk=trunk.params, reads=reads)
        return TaskModel(
            trunk=trunk,
            model=Model(
                trunk=trunk.config,
                head_name=name,
                reads=reads,
                adapters=tuple(adapters.items()),
                fusion_name=name if fused else "",
            ),
            params={
                "adapters": {
                    member: draw(new_adapter(key, member, config, trunk.config, trunk.params), member)
                    for member, config in adapters.items()
                },
                "fusion": {name: draw(fusion_params, name)} if fused else {},
                "heads": {name: draw(head, name)},
            },
            task=TaskConfig(name=name, source=f"builtin:{name}", kind=kind, **task),
            labels=labels,
            metrics={},
            seed=0,
            max_length=16,
        )

    return make


@pytest.fixture(scope="session", params=["bert", "roberta"])
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return unpack(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    return unpack("bert", tmp_path_factory.mktemp("bert_only"))
