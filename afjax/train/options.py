"""Options for executing a run, independent of its method, data and schedule."""

import dataclasses
from pathlib import Path

import numpy as np
from jax.sharding import Mesh

from afjax.config.from_dict import check_value, shown
from afjax.config.training import MeshConfig
from afjax.config.values import Remat, check_name, check_seed
from afjax.distributed.sharding import make_mesh, usable_mesh
from afjax.errors import UserError
from afjax.storage.paths import expanded, is_remote
from afjax.train.shared import Shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How a run is executed.

    Attributes:
      name: The name of the trained adapter or fusion, and of the head. Defaults to the task's name, followed by
        ``-fusion`` for a fusion. A run on several tasks appends each task's name: ``NAME-TASK``.
      seed: The seed of all randomness, 0 to 4294967295.
      mesh: The devices, with the axes ``data``, ``fsdp`` and ``tensor``. By default, batches are split across all
        devices.
      scan_layers: Whether to compile the layers as one loop, which more than halves the compile time.
      remat: Which of a layer's activations the backward pass rematerializes: ``none``, all except matrix products and
        dropout masks (``matmuls``), or all (``layers``).
      cache_dir: Local folder for cached tokenized rows. None disables the cache.
      overwrite: Whether to discard the run in the workdir and train from the beginning.
      shared: Compiled functions and parameters to share with other runs. None shares nothing.
      detail: Text after the run's name in printed lines, such as ``seed=1``. :func:`afjax.train_many` sets it if
        several runs have the same name.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import RunOptions
      >>> RunOptions(name="pals", seed=1).name_of("rte")  # in a run on several tasks
      'pals-rte'
    """

    name: str = ""
    seed: int = 0
    mesh: Mesh | None = None
    scan_layers: bool = False
    remat: Remat = "none"
    cache_dir: Path | None = None
    overwrite: bool = False
    shared: Shared | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise UserError(f"The name is {shown(self.name)}; pass a string.")
        if self.name:
            check_name(self.name, "run")
        check_value(str, self.detail, "detail")
        if isinstance(self.seed, np.integer):
            object.__setattr__(self, "seed", int(self.seed))
        check_seed(self.seed)
        check_value(Remat, self.remat, "remat")
        for field in ("scan_layers", "overwrite"):
            check_value(bool, getattr(self, field), field)
        if self.mesh is not None:
            object.__setattr__(self, "mesh", usable_mesh(self.mesh))
        if self.shared is not None and not isinstance(self.shared, Shared):
            raise UserError(f"shared is {shown(self.shared)}; pass an afjax.Shared, or None.")
        if self.cache_dir is not None:
            if not isinstance(self.cache_dir, str | Path) or is_remote(self.cache_dir):
                raise UserError(f"The cache_dir is {shown(self.cache_dir)}; pass a local path, or None.")
            object.__setattr__(self, "cache_dir", expanded(self.cache_dir))

    def name_of(self, task: str) -> str:
        """Returns the name of one task's adapter and head in a run on several tasks.

        Raises:
          UserError: The combined name is too long.
        """
        name = f"{self.name}-{task}" if self.name else task
        check_name(name, "run")
        return name

    def shown_name(self, name: str) -> str:
        """Returns a run's name for printed lines, followed by its detail."""
        return f"{name} ({self.detail})" if self.detail else name

    def devices(self) -> Mesh:
        """Returns the mesh, which defaults to all devices."""
        return make_mesh(MeshConfig()) if self.mesh is None else self.mesh
