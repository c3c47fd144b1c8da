"""What a run would compute: its model, what it trains and the shapes of its arrays, without any parameters."""

import dataclasses
from collections.abc import Mapping

import jax

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import ADAPTER_PRESETS, Adapter, AdapterConfig
from afjax.config.experiment import ExperimentConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Partition
from afjax.config.tasks import TaskConfig, TaskKind
from afjax.config.training import MeshConfig, TrainConfig
from afjax.config.values import Remat, TrunkDtype
from afjax.errors import UserError
from afjax.fusion.factored import init_fusion
from afjax.model import partition
from afjax.model.heads import READS, init_head, num_outputs
from afjax.model.model import Model, trunk_layer_norms
from afjax.trees import Tree
from afjax.trunk.encoder import init_trunk
from afjax.trunk.pretrained import trunk_size

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
      model: What is computed, of one task.
      trained: The partition's preset.
      top_k: Of the ``top_k`` preset.
      kinds: Of the tasks: one, or those of a multi-task run.
      outputs: Of each task's head.
      multitask: Whether tasks are stacked, one of them a step.
      settings: Batches, optimizer.
      dtype: What the trunk computes in, and is kept in where it is frozen.
      length: Tokens a row.
      mesh: How devices share the work.
    """

    title: str
    model: Model
    trained: Partition
    top_k: int = 0
    kinds: tuple[TaskKind, ...] = ("classification",)
    outputs: tuple[int, ...] = (2,)
    multitask: bool = False
    settings: TrainConfig
    dtype: TrunkDtype
    length: int
    mesh: MeshConfig

    def with_batch(self, batch_size: int) -> "Plan":
        """The same run with other batches."""
        return dataclasses.replace(self, settings=dataclasses.replace(self.settings, batch_size=batch_size))

    @property
    def rules(self) -> tuple[partition.Rule, ...]:
        head = self.model.head if self.multitask or self.model.reads == "pooled" else HeadConfig()
        return partition.preset(self.trained, head)

    def params(self) -> Tree:
        """The shapes of the tree with four roots, with the adapter and the head of the first task."""
        return jax.eval_shape(self._params)

    def _params(self) -> Tree:
        key, model = jax.random.key(0), self.model
        trunk = init_trunk(key, model.trunk)
        adapters = {name: init_adapter(key, config, model.trunk) for name, config in model.adapters}
        for name, config in model.adapters:
            if isinstance(config, AdapterConfig) and config.layer_norms:
                adapters[name]["layer_norms"] = trunk_layer_norms(trunk)
        size = {"hidden_size": model.trunk.hidden_size, "num_layers": model.trunk.num_layers}
        first = model.adapters[0][1] if model.adapters else None
        fusion = init_fusion(key, model.fusion, first, **size) if model.fusion_name and first else None
        return {
            "trunk": partition.split_layers(trunk, self.top_k) if self.top_k else trunk,
            "adapters": adapters,
            "fusion": {OWN: fusion} if fusion else {},
            "heads": {OWN: self.head(trunk, 0)},
        }

    def own(self, task: int) -> Tree:
        """The shapes of what a task of a multi-task run has for itself."""

        def make() -> Tree:
            trunk = init_trunk(jax.random.key(0), self.model.trunk)
            adapters = {name: init_adapter(jax.random.key(0), of, self.model.trunk) for name, of in self.model.adapters}
            return {"heads": {OWN: self.head(trunk, task)}, **({"adapters": adapters} if adapters else {})}

        return jax.eval_shape(make)

    def head(self, trunk: Tree, task: int) -> Tree:
        """A head at random."""
        reads = READS[self.kinds[task]]
        return init_head(jax.random.key(0), self.model.head, self.outputs[task], trunk=trunk, reads=reads)


def of_method(
    *,
    trunk: str,
    method: str,
    num_adapters: int,
    num_tasks: int,
    batch_size: int,
    max_length: int,
    dtype: TrunkDtype,
    scan_layers: bool,
    remat: Remat,
    mesh: MeshConfig,
) -> Plan:
    """A method's run by a few numbers.

    Args:
      trunk: A size's name or a folder with a config.json.
      method: One of :data:`METHODS`.
      num_adapters: How many adapters a fusion has.
      num_tasks: How many tasks share the trunk under PALs.
      batch_size: Rows of all devices.
      max_length: Tokens a row.
      dtype: Of the trunk.
      scan_layers: One compiled loop over the layers.
      remat: What the backward pass computes again.
      mesh: How devices share the work.

    Raises:
      UserError: An unknown size, or numbers that make no step.
    """
    config = trunk_size(trunk)
    if min(num_adapters, num_tasks, batch_size) < 1 or not 4 <= max_length <= config.max_length:
        raise UserError(
            f"num_adapters={num_adapters}, num_tasks={num_tasks}, batch_size={batch_size}, max_length={max_length}: "
            f"take at least 1 of each, and 4 to {config.max_length} tokens."
        )
    trained, preset = METHODS[method]
    several = method == "pals"
    adapter: Adapter | None = ADAPTER_PRESETS[preset] if preset else None
    names = [OWN] if method != "fusion" else [f"adapter{number}" for number in range(num_adapters)]
    model = Model(
        trunk=config,
        head_name=OWN,
        adapters=tuple((name, adapter) for name in names) if adapter is not None else (),
        fusion_name=OWN if method == "fusion" else "",
        dtype=dtype,
        scan_layers=scan_layers,
        remat=remat,
    )
    kinds: tuple[TaskKind, ...] = tuple("classification" for _ in range(num_tasks if several else 1))
    detail = {"fusion": f" over {num_adapters} adapters", "pals": f" for {num_tasks} tasks"}.get(method, "")
    return Plan(
        title=f"{trunk}, {method}{detail}",
        model=model,
        trained=trained,
        kinds=kinds,
        outputs=(2,) * len(kinds),
        multitask=several,
        settings=TrainConfig(batch_size=batch_size, max_length=max_length),
        dtype=dtype,
        length=max_length,
        mesh=mesh,
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
    names = [OWN]
    if config.recipe == "fusion":
        names = list(config.fused or (source.task.name for source in config.sources))
    fused = config.recipe == "fusion"
    model = Model(
        trunk=trunk,
        head_name=OWN,
        head=config.head,
        reads="pooled" if several else READS[tasks[0].kind],
        adapters=tuple((name, config.adapter) for name in names) if fused or config.has_adapter else (),
        fusion_name=OWN if fused else "",
        fusion=config.fusion,
        dtype=config.trunk_dtype,
        scan_layers=config.scan_layers,
        remat=config.remat,
    )
    return Plan(
        title=f"{config.trunk}, {config.recipe} recipe",
        model=model,
        trained="fusion" if fused else config.partition,
        top_k=config.top_k,
        kinds=tuple(task.kind for task in tasks),
        outputs=tuple(num_outputs(task.kind, task.labels or ("0", "1")) for task in tasks),
        multitask=several,
        settings=config.train,
        dtype=config.trunk_dtype,
        length=config.train.max_length,
        mesh=config.mesh,
    )
