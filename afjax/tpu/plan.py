"""What a run would compute: its model, what it trains and the shapes of its arrays, without any parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.config.experiment import ExperimentConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.config.training import MeshConfig, TrainConfig
from afjax.config.values import Partition, Remat, TrunkDtype
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.setup import Setup, fusion_setup, single_setup
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree
from afjax.trunk.encoder import init_trunk
from afjax.trunk.sizes import trunk_size

# ``adapter`` is a Pfeiffer adapter, as for ``afjax bench``.
METHODS: Mapping[str, tuple[Partition, str]] = {
    "full": ("full", ""),
    "head": ("head", ""),
    "adapter": ("adapter", "pfeiffer"),
    "pfeiffer": ("adapter", "pfeiffer"),
    "houlsby": ("adapter", "houlsby"),
    "pals": ("adapter+trunk", "pals"),
    "fusion": ("fusion", "pfeiffer"),
}
# Under which name the model sees the adapter and the head that are trained.
OWN = "own"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """One training run.

    Attributes:
      title: What it is, in a few words.
      setup: What is computed and trained, on the first task.
      kinds: The kinds of the tasks: one, or those of a multi-task run.
      outputs: The number of outputs of each task's head.
      trained: The name of the partition.
      multitask: Whether tasks are stacked, one of them per step.
      settings: Batches, optimizer.
      mesh: How devices share the work.
    """

    title: str
    setup: Setup
    kinds: tuple[TaskKind, ...] = ("classification",)
    outputs: tuple[int, ...] = (2,)
    trained: Partition
    multitask: bool = False
    settings: TrainConfig
    mesh: MeshConfig

    @property
    def model(self) -> Model:
        """What is computed, on one task."""
        return self.setup.model

    @property
    def dtype(self) -> TrunkDtype:
        """The dtype that the trunk computes in, and is kept in if it is frozen."""
        return self.model.dtype or "float32"

    @property
    def length(self) -> int:
        """Tokens per row."""
        return self.settings.max_length

    @property
    def top_k(self) -> int:
        """How many upper layers are trained; 0 for other partitions."""
        return self.setup.top_k

    def with_batch(self, batch_size: int) -> "Plan":
        """The same run with other batches."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, batch_size=batch_size))

    def params(self) -> Tree:
        """The shapes of the tree with four roots, with the adapter and the head of the first task."""
        return self._shapes(self.setup)

    def own(self, task: int) -> Tree:
        """The shapes of the adapter and the head of one task of a multi-task run."""
        model = dataclasses.replace(self.model, reads=TASK_KINDS[self.kinds[task]].reads)
        params = self._shapes(dataclasses.replace(self.setup, model=model, num_outputs=self.outputs[task]))
        return {root: params[root] for root in ("heads", "adapters") if params[root]}

    def _shapes(self, setup: Setup) -> Tree:
        key = jax.random.key(0)
        return jax.eval_shape(lambda: setup.init(key, init_trunk(key, setup.model.trunk)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodCase:
    """A method and the sizes of its run, without a config.

    Attributes:
      trunk: A size's name or a folder with a config.json.
      method: One of :data:`METHODS`.
      num_adapters: The number of fused adapters.
      num_tasks: The number of tasks with PALs.
      batch_size: Rows per step of all devices.
      max_length: Tokens per row.
      dtype: The dtype of the trunk.
      scan_layers: Whether to compile one loop over the layers.
      remat: What the backward pass rematerializes.
      mesh: How devices share the work.
    """

    trunk: str
    method: str
    num_adapters: int
    num_tasks: int
    batch_size: int
    max_length: int
    dtype: TrunkDtype
    scan_layers: bool
    remat: Remat
    mesh: MeshConfig


def of_method(case: MethodCase) -> Plan:
    """The run of a method.

    Raises:
      UserError: An unknown size, or impossible numbers.
    """
    config = trunk_size(case.trunk)
    if min(case.num_adapters, case.num_tasks, case.batch_size) < 1 or not 4 <= case.max_length <= config.max_length:
        raise UserError(
            f"num_adapters={case.num_adapters}, num_tasks={case.num_tasks}, batch_size={case.batch_size}, "
            f"max_length={case.max_length}: take at least 1 of each, and 4 to {config.max_length} tokens."
        )
    trained, preset = METHODS[case.method]
    several = case.method == "pals"
    if case.method == "fusion":
        adapters = {f"adapter{number}": ADAPTER_PRESETS[preset] for number in range(case.num_adapters)}
        setup = fusion_setup(adapters, FusionConfig(), HeadConfig(), config, name=OWN, reads="pooled", num_outputs=2)
    else:
        adapter = ADAPTER_PRESETS[preset] if preset else AdapterConfig()
        setup = single_setup(
            Method(partition=trained, adapter=adapter), config, name=OWN, reads="pooled", num_outputs=2
        )
    kinds: tuple[TaskKind, ...] = tuple("classification" for _ in range(case.num_tasks if several else 1))
    details = {"fusion": f" over {case.num_adapters} adapters", "pals": f" for {case.num_tasks} tasks"}
    return Plan(
        title=f"{case.trunk}, {case.method}{details.get(case.method, '')}",
        setup=setup.computed(dtype=case.dtype, scan_layers=case.scan_layers, remat=case.remat),
        kinds=kinds,
        outputs=(2,) * len(kinds),
        trained=trained,
        multitask=several,
        settings=TrainConfig(batch_size=case.batch_size, max_length=case.max_length),
        mesh=case.mesh,
    )


def of_experiment(config: ExperimentConfig) -> Plan:
    """The run of an experiment (of its target, where it has sources), at its longest padded length.

    Data is not read: tasks that do not name their labels are taken to have two.

    Raises:
      UserError: A trunk whose architecture is not at hand, or of another recipe's.
    """
    trunk = trunk_size(config.trunk)
    several = config.recipe == "multitask"
    tasks: tuple[TaskConfig, ...] = config.tasks or (config.target,)
    if config.recipe == "sequential":
        tasks = tasks[:1]
    outputs = tuple(TASK_KINDS[task.kind].num_outputs(task.labels or ("0", "1")) for task in tasks)
    head: dict[str, Any] = {
        "reads": "pooled" if several else TASK_KINDS[tasks[0].kind].reads,
        "num_outputs": outputs[0],
    }
    if config.recipe == "fusion":
        names = config.fused or tuple(source.task.name for source in config.sources)
        adapters = dict.fromkeys(names, config.adapter)
        setup = fusion_setup(adapters, config.fusion, config.head, trunk, name=OWN, **head)
    else:
        setup = single_setup(config.method, trunk, name=OWN, **head)
    return Plan(
        title=f"{config.trunk}, {config.recipe} recipe",
        setup=setup.computed(dtype=config.trunk_dtype, scan_layers=config.scan_layers, remat=config.remat),
        kinds=tuple(task.kind for task in tasks),
        outputs=outputs,
        trained="fusion" if config.recipe == "fusion" else config.partition,
        multitask=several,
        settings=config.train,
        mesh=config.mesh,
    )
