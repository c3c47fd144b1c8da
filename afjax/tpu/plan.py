"""Describes a training run by its model, partition and shapes, without parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import check_value
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.config.ranges import PositiveInt
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.config.training import MeshConfig, TrainConfig
from afjax.config.values import TRAINS_LAYERS, Partition, Remat, TrunkDtype
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.setup import Setup, fusion_setup, single_setup
from afjax.tasks.kind import Reads
from afjax.tasks.kinds import TASK_KINDS
from afjax.train.defaults import choose_defaults, choose_pooling
from afjax.train.padded_heads import padded_outputs
from afjax.trees import Tree
from afjax.trunk.encoder import init_trunk
from afjax.trunk.sizes import size_pooling, trunk_size

# Each method's partition and adapter preset. ``adapter`` is a Pfeiffer adapter, as in ``afjax bench``.
METHODS: Mapping[str, tuple[Partition, str]] = {
    "full": ("full", ""),
    "head": ("head", ""),
    "adapter": ("adapter", "pfeiffer"),
    "pfeiffer": ("adapter", "pfeiffer"),
    "houlsby": ("adapter", "houlsby"),
    "lora": ("adapter", "lora"),
    "ia3": ("adapter", "ia3"),
    "pals": ("adapter+trunk", "pals"),
    "fusion": ("fusion", "pfeiffer"),
}
# The name of the head and of the trained adapter or fusion.
OWN = "own"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A training run whose steps can be compiled without parameters or data.

    Attributes:
      title: A short description of the run.
      setup: The model and its trained partition, for the first task.
      kinds: The kind of each task; several for a multi-task run.
      outputs: Number of outputs of each task's head. A single task's head is padded; see
        :mod:`afjax.train.padded_heads`.
      trained: The partition preset.
      multitask: Whether this is a multi-task run: task parameters are stacked and each step trains one task.
      sequential: Whether the run is the first of several that train one after another.
      settings: Batch size, optimizer and other training settings.
      mesh: The device mesh.
      slots: Number of runs whose steps are compiled as one program; see :func:`afjax.train_many`.
    """

    title: str
    setup: Setup
    kinds: tuple[TaskKind, ...] = ("classification",)
    outputs: tuple[int, ...] = (2,)
    trained: Partition
    multitask: bool = False
    sequential: bool = False
    settings: TrainConfig
    mesh: MeshConfig
    slots: int = 1

    @property
    def model(self) -> Model:
        """The model of the first task, whose step is planned."""
        return dataclasses.replace(self.setup.model, reads=TASK_KINDS[self.kinds[0]].reads)

    @property
    def length(self) -> int:
        """Number of tokens per row, including padding."""
        return self.settings.max_length

    @property
    def top_k(self) -> int:
        """Number of layers trained by the ``top_k`` partition; 0 for other partitions."""
        return self.setup.top_k

    def with_batch(self, batch_size: int) -> "Plan":
        """Returns the same run with a different batch size."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, batch_size=batch_size))

    def with_slots(self, slots: int) -> "Plan":
        """Returns the same run with steps that train ``slots`` runs at a time.

        Raises:
          UserError: The number is not positive, or runs with this partition or generator cannot be trained together.
        """
        check_value(PositiveInt, slots, "slots")
        reasons = {
            f"the partition {self.trained}": self.trained in TRAINS_LAYERS,
            "several tasks": self.multitask or self.sequential,
        }
        if slots > 1 and any(reasons.values()):
            given = " and ".join(reason for reason, holds in reasons.items() if holds)
            raise UserError(f"slots is {slots}, but runs with {given} cannot be trained together; remove slots.")
        if slots > 1 and self.settings.prng == "rbg":
            raise UserError(
                f"slots is {slots}, but runs with train.prng=rbg cannot be trained together; remove slots or set "
                "train.prng=threefry2x32."
            )
        return dataclasses.replace(self, slots=slots)

    def params(self) -> Tree:
        """Returns the shapes of all parameters, with the first task's adapter and head."""
        return self._shapes(self.setup)

    def own(self, task: int) -> Tree:
        """Returns the shapes of one task's adapter and head in a multi-task run."""
        model = dataclasses.replace(self.model, reads=TASK_KINDS[self.kinds[task]].reads)
        params = self._shapes(dataclasses.replace(self.setup, model=model, num_outputs=self.outputs[task]))
        return {root: params[root] for root in ("heads", "adapters") if params[root]}

    def _shapes(self, setup: Setup) -> Tree:
        key = jax.random.key(0)
        return jax.eval_shape(lambda: setup.init(key, init_trunk(key, setup.model.trunk)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodCase:
    """A training method with its sizes, as an alternative to an experiment config.

    Attributes:
      method: One of :data:`METHODS`.
      trunk: Name of a trunk size, or a folder with a config.json.
      num_adapters: Number of fused adapters. Only used by ``fusion``.
      num_tasks: Number of tasks in a run with PALs. Only used by ``pals``.
      batch_size: Rows per step, over all devices.
      max_length: Number of tokens per row, including padding.
      trunk_dtype: The trunk's dtype.
      remat: The rematerialization policy for the backward pass.
      fsdp: Number of devices to shard the parameters over; -1 for all devices.
      tensor: Number of devices to shard each layer's units over; -1 for all devices.
      unrolled: Whether to compile the layers as straight-line code, instead of a loop.
    """

    method: str
    trunk: str = "bert-base"
    num_adapters: int = 16
    num_tasks: int = 8
    batch_size: int = 256
    max_length: int = 128
    trunk_dtype: TrunkDtype = "bfloat16"
    remat: Remat = "none"
    fsdp: int = 1
    tensor: int = 1
    unrolled: bool = False


def plan_method(case: MethodCase) -> Plan:
    """Plans a run of a training method.

    Raises:
      UserError: The trunk size is unknown, or a number is out of range.
    """
    config = trunk_size(case.trunk)
    if min(case.num_adapters, case.num_tasks, case.batch_size) < 1 or not 4 <= case.max_length <= config.max_length:
        raise UserError(
            f"num_adapters={case.num_adapters}, num_tasks={case.num_tasks}, batch_size={case.batch_size}, "
            f"max_length={case.max_length}: use at least 1 of each, and 4 to {config.max_length} tokens."
        )
    trained, preset = METHODS[case.method]
    several = case.method == "pals"
    num_outputs = 2 if several else padded_outputs("classification", 2)
    head: dict[str, Any] = {"reads": "pooled", "num_outputs": num_outputs}
    head_config = choose_pooling(HeadConfig(), trained, lambda: size_pooling(case.trunk), {})
    if case.method == "fusion":
        adapters = {f"adapter{number}": ADAPTER_PRESETS[preset] for number in range(case.num_adapters)}
        setup = fusion_setup(adapters, FusionConfig(), head_config, config, name=OWN, **head)
    else:
        adapter = ADAPTER_PRESETS[preset] if preset else AdapterConfig()
        method = Method(partition=trained, adapter=adapter, head=head_config)
        setup = single_setup(method, config, name=OWN, **head)
    kinds: tuple[TaskKind, ...] = tuple("classification" for _ in range(case.num_tasks if several else 1))
    details = {
        "fusion": f" over {counted(case.num_adapters, 'adapter')}",
        "pals": f" for {counted(case.num_tasks, 'task')}",
    }
    return Plan(
        title=f"{case.trunk}, {case.method}{details.get(case.method, '')}",
        setup=setup.computed(dtype=case.trunk_dtype, scan_layers=not case.unrolled, remat=case.remat),
        kinds=kinds,
        outputs=(num_outputs,) * len(kinds),
        trained=trained,
        multitask=several,
        settings=TrainConfig(batch_size=case.batch_size, max_length=case.max_length),
        # Only one axis can take all remaining devices.
        mesh=MeshConfig(data=1 if -1 in (case.fsdp, case.tensor) else -1, fsdp=case.fsdp, tensor=case.tensor),
    )


def plan_experiment(config: ExperimentConfig) -> Plan:
    """Plans an experiment's run at its longest padded length.

    If the experiment has source tasks, the plan is for its target task. If it trains several tasks jointly, the plan is
    for a batch of the kind with the costliest step, which comes first. No data is loaded, so tasks without label names
    are assumed to have two labels, and stored adapters (``fused``) to have the architecture ``config.adapter``.

    Raises:
      UserError: The trunk is neither a known size nor a local folder, the adapters cannot be fused, or an adapter is in
        a layer that the trunk does not have.
    """
    trunk = trunk_size(config.trunk)
    config = choose_defaults(config, lambda: size_pooling(config.trunk), recorded={})
    several = config.recipe == "multitask"
    tasks = config.target_tasks
    if several:
        tasks = tuple(sorted(tasks, key=_cost, reverse=True))
    elif config.recipe == "sequential":
        tasks = tasks[:1]
    outputs = tuple(TASK_KINDS[task.kind].num_outputs(task.labels or ("0", "1")) for task in tasks)
    if not several:
        outputs = (padded_outputs(tasks[0].kind, outputs[0]),)
    # If no head uses the trunk's pooler, it is not trained.
    reads: Reads = "pooled" if any(TASK_KINDS[task.kind].reads == "pooled" for task in tasks) else "tokens"
    head: dict[str, Any] = {"reads": reads, "num_outputs": outputs[0]}
    if config.recipe == "fusion":
        adapters = dict.fromkeys(config.fused_names, config.adapter)
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
        sequential=config.recipe == "sequential",
        settings=config.train,
        mesh=config.mesh,
    )


def _cost(task: TaskConfig) -> tuple[bool, bool]:
    """Returns a key that sorts tasks by the cost of a step: multiple choice has several sequences per row."""
    return TASK_KINDS[task.kind].has_choices, TASK_KINDS[task.kind].reads == "tokens"
