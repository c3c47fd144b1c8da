"""Whole experiments, made once from an ml_collections config. Nothing deeper in the package sees a ConfigDict."""

import dataclasses
import functools
from typing import Any, Literal

from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.from_dict import check_fields, settings_repr
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import MeshConfig, SamplingConfig, TrainConfig
from afjax.config.values import Partition, Remat, TrunkDtype, check_name, check_seed
from afjax.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One source of a fusion: an adapter of the store, and how to train it where it is missing."""

    task: TaskConfig
    train: TrainConfig = TrainConfig()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """All of one experiment.

    Attributes:
      recipe: ``single`` trains one partition on one task. ``fusion`` trains what is missing of its sources' adapters,
        then fuses them for the task. ``multitask`` trains one partition on several tasks, a step on one of them.
        ``sequential`` trains it on one task after the other, and scores the earlier ones each time.
      trunk: A Hugging Face id, a folder (local or ``gs://``), or ``minilm``.
      trunk_dtype: What the trunk computes in, and is kept in where it is frozen. ``bfloat16`` halves its memory and is
        faster where the hardware multiplies it faster; what is trained is kept, and updated, in float32.
      task: The task of ``single``, the target of ``fusion``.
      tasks: Those of ``multitask`` and ``sequential``, the latter in this order.
      name: Under which name results enter the store; empty: the task's name, with ``-fusion`` behind it for the fusion
        recipe. With several tasks each has its own name behind it: ``NAME-TASK``.
      seed: All randomness follows from it.
      partition: What is trained, but for the ``fusion`` recipe.
      top_k: Number of layers that the ``top_k`` partition trains.
      adapter: The adapters' architecture (of every source, for the fusion recipe; of every task's, for multitask).
      fusion, head, train, sampling: As their names say; ``train`` is that of the target's run.
      sources: The fusion recipe's source tasks.
      fused: Which of them are fused, by name; empty: all. The others are trained to compare with.
      scan_layers: Whether the layers are one compiled loop (compiles in less than half the time) or unrolled (runs
        faster on CPU and TPU v5p; docs/scaling.md).
      remat: What the backward pass computes again instead of keeping it: nothing, all but the results of ``matmuls``
        and dropout masks, or all but each layer's input (``layers``). Results are the same.
      mesh: How devices share the work.
    """

    recipe: Literal["single", "fusion", "multitask", "sequential"] = "single"
    trunk: str = "minilm"
    trunk_dtype: TrunkDtype = "float32"
    task: TaskConfig | None = None
    tasks: tuple[TaskConfig, ...] = ()
    name: str = ""
    seed: int = 0
    partition: Partition = "adapter"
    top_k: int = 0
    adapter: Adapter = AdapterConfig()
    fusion: FusionConfig = FusionConfig()
    head: HeadConfig = HeadConfig()
    train: TrainConfig = TrainConfig()
    sampling: SamplingConfig = SamplingConfig()
    sources: tuple[SourceConfig, ...] = ()
    fused: tuple[str, ...] = ()
    scan_layers: bool = False
    remat: Remat = "none"
    mesh: MeshConfig = MeshConfig()

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "config", unbounded=("seed",))
        check_seed(self.seed)
        if self.name:
            check_name(self.name, "experiment")
        several = self.recipe in ("multitask", "sequential")
        wanted, unwanted = ("tasks", "task") if several else ("task", "tasks")
        if not getattr(self, wanted):
            raise UserError(f"config.{wanted} is missing; the {self.recipe} recipe needs it.")
        if getattr(self, unwanted):
            raise UserError(f"config.{unwanted} is given, but the {self.recipe} recipe takes config.{wanted} alone.")
        if self.recipe != "fusion" and (self.sources or self.fused):
            raise UserError(
                f"config.sources and config.fused are the fusion recipe's; this is the {self.recipe} recipe."
            )
        if self.recipe == "fusion" and not self.sources:
            raise UserError("The fusion recipe needs config.sources: one {task, train} for every adapter to fuse.")
        names = [source.task.name for source in self.sources]
        _check_distinct("sources", names)
        _check_distinct("tasks", [task.name for task in self.tasks])
        for name in self.fused:
            if name not in names:
                raise UserError(
                    f'config.fused names "{name}", which is no source; sources: {", ".join(names)}.'
                    f"{did_you_mean(name, names)}"
                )
        if len(set(self.fused)) != len(self.fused):
            raise UserError(f"config.fused is {self.fused}; name each source once.")
        assert self.method, "its checks are the config's"
        for task in self.tasks or (self.target,):
            check_name(self.artefact_name(task), "experiment")
        # The workdir records the rates themselves, so that a run does not depend on later defaults.
        trained: Partition = "fusion" if self.recipe == "fusion" else self.partition
        object.__setattr__(self, "train", self.train.with_rate(trained))
        with_rates = (dataclasses.replace(source, train=source.train.with_rate("adapter")) for source in self.sources)
        object.__setattr__(self, "sources", tuple(with_rates))

    @property
    def target(self) -> TaskConfig:
        """The one task of ``single`` and ``fusion``."""
        assert self.task is not None, "__post_init__ sees to it"
        return self.task

    @functools.cached_property
    def method(self) -> Method:
        """What is trained: a :class:`MultitaskMethod` for several tasks at once; for a fusion that of its sources."""
        given: dict[str, Any] = {"partition": self.partition, "adapter": self.adapter, "head": self.head}
        given["top_k"] = self.top_k
        return MultitaskMethod(**given, sampling=self.sampling) if self.recipe == "multitask" else Method(**given)

    @property
    def has_adapter(self) -> bool:
        """Whether the partition trains adapters."""
        return self.method.has_adapter

    @property
    def trains_trunk(self) -> bool:
        """Whether any of the trunk is trained."""
        return self.recipe != "fusion" and self.method.trains_trunk

    def artefact_name(self, task: TaskConfig) -> str:
        """Under which name what was trained for one of its tasks enters the store."""
        if self.tasks:
            return f"{self.name}-{task.name}" if self.name else task.name
        return self.name or task.name + ("-fusion" if self.recipe == "fusion" else "")


def _check_distinct(field: str, names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"config.{field} has two tasks named {', '.join(twice)}; give each its own name.")
