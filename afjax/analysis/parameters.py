"""Counts a run's trunk parameters, and how many of them it trains."""

import functools
from typing import Any

import jax
from etils import epath

from afjax.config.heads import HeadConfig
from afjax.errors import UserError
from afjax.model import partition
from afjax.storage.paths import client_errors, is_remote
from afjax.trees import count
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import read_trunk_config
from afjax.trunk.encoder import init_trunk, trunk_shapes
from afjax.trunk.sizes import SIZES


@functools.cache
def trained_in_trunk(architecture: TrunkConfig, preset: str, top_k: int, head: HeadConfig) -> int:
    """Counts the trunk parameters that a run trains.

    The count uses the partition rules of training. Trained adapters, fusions and heads are not counted, because they
    are in the store.

    Args:
      architecture: The trunk's architecture.
      preset: The name of the partition.
      top_k: The number of trained upper layers, or 0.
      head: The head's settings. It may use the trunk's pooler.
    """

    def init() -> Any:
        trunk = init_trunk(jax.random.key(0), architecture)
        return {"trunk": partition.split_layers(trunk, top_k) if top_k else trunk}

    params = jax.eval_shape(init)
    trunk_rules = [rule for rule in partition.preset(preset, head) if rule.pattern.startswith("trunk/")]
    trained, _ = partition.split(params, partition.label(params, trunk_rules))
    return count(trained)


@functools.cache
def _size(architecture: TrunkConfig) -> int:
    return count(trunk_shapes(architecture))


def trunk_architecture(name: str, kept: epath.Path | None) -> TrunkConfig | None:
    """Finds a trunk's architecture. Returns None if it is unknown.

    Args:
      name: A folder, or the name of a known trunk. A folder on an object store that cannot be read is unknown.
      kept: A workdir's folder with the trained trunk, which takes precedence, or None.
    """
    unreadable: tuple[type[Exception], ...] = (UserError, OSError, ImportError, *client_errors())
    for folder in (epath.Path(folder) for folder in (kept, name) if folder):
        try:
            if (folder / "config.json").exists():
                return read_trunk_config(folder)
        except unreadable:
            if not is_remote(folder):
                raise
    return SIZES.get(name)


def trunk_size(name: str, architecture: TrunkConfig | None) -> int | None:
    """Counts a trunk's parameters. Returns None if its architecture is unknown.

    Args:
      name: The trunk's name.
      architecture: The trunk's architecture, or None to look it up by name.
    """
    architecture = architecture or trunk_architecture(name, None)
    return None if architecture is None else _size(architecture)
