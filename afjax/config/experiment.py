"""The config of an experiment."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.from_dict import Settings, check_fields
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import MeshConfig, SamplingConfig, TrainConfig
from afjax.config.values import Partition, Remat, TrunkDtype, check_name, check_seed
from afjax.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class SourceConfig(Settings, name="source"):
    """One source of a fusion: an adapter in the store.

    If the adapter is missing, it is trained with these settings.
    """

    task: TaskConfig
    train: TrainConfig = TrainConfig()


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class ExperimentConfig(Settings, name="config"):
    """The settings of one experiment.

    Attributes:
      recipe: ``single`` trains one partition on one task. ``fusion`` trains any source adapters missing from the store,
        then fuses them for the task. ``multitask`` trains one partition on several tasks, one task per step.
        ``sequential`` trains one partition on one task after another, and evaluates all earlier tasks after each task.
      trunk: A Hugging Face id, a folder (local or ``gs://``), or ``minilm``.
      trunk_dtype: Compute dtype of the trunk and storage dtype of its frozen parameters. ``bfloat16`` halves their
        memory and is faster on hardware with fast bfloat16 matrix multiplication. Trained parameters are always stored
        and updated in float32.
      task: The task of ``single``; the target task of ``fusion``.
      tasks: The tasks of ``multitask`` and ``sequential``. ``sequential`` trains on them in this order.
      name: Name of the results in the store. Defaults to the task's name, with the suffix ``-fusion`` for the fusion
        recipe. With several tasks, each task's results are named ``NAME-TASK``.
      seed: Random seed of the entire experiment.
      partition: The trained part of the model. The ``fusion`` recipe ignores it.
      top_k: Number of layers that the ``top_k`` partition trains.
      adapter: Architecture of the adapters, shared by all tasks and all sources of a fusion.
      fusion: Architecture of the fusion.
      head: Architecture of the head.
      train: Settings of the training run. In the fusion recipe, this is the target's run.
      sampling: Task sampling for the ``multitask`` recipe.
      sources: The source tasks of the fusion recipe.
      fused: Names of the sources to fuse; empty for all. The other sources are only trained for comparison.
      scan_layers: Whether to compile the layers as a loop instead of unrolled. A loop compiles in less than half the
        time, but unrolled layers run faster on CPU and TPU v5p (docs/scaling.md).
      remat: Which activations the backward pass rematerializes: ``none`` rematerializes no activations, ``matmuls`` all
        except matrix products and dropout masks, and ``layers`` all except the layers' inputs. The results do not
        depend on it. It has no effect on adapters on top of the encoder.
      mesh: The device mesh.
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

    def __post_init__(self) -> None:
        check_fields(self, self._name, unbounded=("seed",))
        check_seed(self.seed)
        if self.name:
            check_name(self.name, "experiment")
        several = self.recipe in ("multitask", "sequential")
        expected, excluded = ("tasks", "task") if several else ("task", "tasks")
        if not getattr(self, expected):
            raise UserError(f"config.{expected} is missing; the {self.recipe} recipe needs it.")
        if getattr(self, excluded):
            raise UserError(f"config.{excluded} is set, but the {self.recipe} recipe only takes config.{expected}.")
        if self.recipe != "fusion" and (self.sources or self.fused):
            raise UserError(
                f"config.sources and config.fused only apply to the fusion recipe; this is the {self.recipe} recipe."
            )
        if self.recipe == "fusion" and not self.sources:
            raise UserError("The fusion recipe needs config.sources: one {task, train} for each adapter to fuse.")
        names = self.source_names
        check_distinct("sources", names)
        check_distinct("tasks", [task.name for task in self.tasks])
        for name in self.fused:
            if name not in names:
                raise UserError(
                    f'config.fused names "{name}", which is not a source; sources: {", ".join(names)}.'
                    f"{did_you_mean(name, names)}"
                )
        if len(set(self.fused)) != len(self.fused):
            raise UserError(f"config.fused is {self.fused}; name each source once.")
        assert self.method, "the method's checks are part of the config's"
        for name in self.artifact_names:
            check_name(name, "experiment")

    @property
    def target(self) -> TaskConfig:
        """The task of the ``single`` and ``fusion`` recipes."""
        assert self.task is not None, "checked by __post_init__"
        return self.task

    @property
    def target_tasks(self) -> tuple[TaskConfig, ...]:
        """The tasks that the recipe trains, without the sources of a fusion."""
        return self.tasks or (self.target,)

    @property
    def artifact_names(self) -> tuple[str, ...]:
        """The store names of the artifacts trained for each of the target tasks."""
        return tuple(self.artifact_name(task) for task in self.target_tasks)

    @functools.cached_property
    def method(self) -> Method:
        """The training method.

        It is a :class:`MultitaskMethod` for ``multitask``. For ``fusion``, it is the sources' method.
        """
        given: dict[str, Any] = {"partition": self.partition, "adapter": self.adapter, "head": self.head}
        given["top_k"] = self.top_k
        return MultitaskMethod(**given, sampling=self.sampling) if self.recipe == "multitask" else Method(**given)

    @property
    def source_names(self) -> tuple[str, ...]:
        """Names of the sources, in order."""
        return tuple(source.task.name for source in self.sources)

    @property
    def fused_names(self) -> tuple[str, ...]:
        """Names of the fused adapters, in order."""
        return self.fused or self.source_names

    @property
    def has_adapter(self) -> bool:
        """Whether the partition trains adapters."""
        return self.method.has_adapter

    @property
    def trains_trunk(self) -> bool:
        """Whether any of the trunk's parameters are trained."""
        return self.recipe != "fusion" and self.method.trains_trunk

    @property
    def unused_settings(self) -> tuple[str, ...]:
        """Names of settings that have no effect with this recipe, partition and adapter."""
        unused = [] if self.recipe == "fusion" else ["fusion"]
        if self.recipe != "multitask":
            unused.append("sampling")
        if self.recipe == "fusion":
            unused.append("partition")
        elif not self.has_adapter:
            unused.append("adapter")
        # A fixed size replaces the reduction factor.
        if isinstance(self.adapter, AdapterConfig) and self.adapter.size:
            unused.append("adapter.reduction_factor")
        return tuple(unused)

    def artifact_name(self, task: TaskConfig) -> str:
        """Returns the store name of the artifacts trained for a task."""
        if self.tasks:
            return f"{self.name}-{task.name}" if self.name else task.name
        return self.name or task.name + ("-fusion" if self.recipe == "fusion" else "")


def check_distinct(field: str, names: Sequence[str]) -> None:
    """Raises UserError if two tasks of ``config.FIELD`` have the same name."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise UserError(f"config.{field} has two tasks named {', '.join(repeated)}; task names must be distinct.")
