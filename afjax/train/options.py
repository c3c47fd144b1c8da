"""Options of a run that concern neither the method, nor the data, nor the schedule."""

import dataclasses
from pathlib import Path

from jax.sharding import Mesh

from afjax.config.from_dict import check_value, shown
from afjax.config.training import MeshConfig
from afjax.config.values import Remat, check_name, check_seed
from afjax.distributed.sharding import make_mesh
from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is executed.

    Attributes:
      name: The name of what is trained: the adapter or fusion, and the head. Empty: the task's name, followed by
        ``-fusion`` for a fusion. A run on several tasks appends each task's name: ``NAME-TASK``.
      seed: The seed of all randomness, 0 to 4294967295.
      mesh: The devices; None: all of them, each with its own rows of a batch.
      scan_layers: Whether the layers are one compiled loop. It compiles in less than half the time.
      remat: Activations that the backward pass recomputes; see ``ExperimentConfig``.
      cache_dir: The folder for tokenised rows; None: they are not kept.
      overwrite: Whether to discard the run that the workdir holds, and to train from the beginning.
    """

    name: str = ""
    seed: int = 0
    mesh: Mesh | None = None
    scan_layers: bool = False
    remat: Remat = "none"
    cache_dir: Path | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UserError(f"The name is {shown(self.name)}; give a text.")
        if self.name:
            check_name(self.name, "run")
        check_seed(self.seed)
        check_value(Remat, self.remat, "remat")
        for field in ("scan_layers", "overwrite"):
            check_value(bool, getattr(self, field), field)
        if self.mesh is not None and not isinstance(self.mesh, Mesh):
            raise UserError(f"The mesh is {shown(self.mesh)}; give a jax.sharding.Mesh, or None for all devices.")
        if self.cache_dir is not None:
            if not isinstance(self.cache_dir, str | Path):
                raise UserError(f"The cache_dir is {shown(self.cache_dir)}; give a path, or None.")
            object.__setattr__(self, "cache_dir", Path(self.cache_dir))

    def name_of(self, task: str) -> str:
        """The name of the adapter and the head of one task, in a run on several tasks.

        Raises:
          UserError: The name and the task's name make a name that is too long.
        """
        name = f"{self.name}-{task}" if self.name else task
        check_name(name, "run")
        return name

    def devices(self) -> Mesh:
        """The mesh, or one of all devices."""
        return make_mesh(MeshConfig()) if self.mesh is None else self.mesh
