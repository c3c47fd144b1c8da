"""Saves tiny artifacts with private paths, and reads stores and folders."""

from pathlib import Path

import numpy as np

from afjax import store
from afjax.config.adapters import AdapterConfig
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig

HOME = "/home/alice"
TRUNK = {
    "name": f"{HOME}/trunks/mine",
    "sha256": "ab" * 32,
    "hidden_size": 4,
    "num_layers": 2,
    "family": "bert",
    "dtype": "float32",
}


def save(path: Path, kind: str, name: str, seed: int = 0, *, overwrite: bool = False, **kwargs) -> store.Manifest:
    """Saves a small artifact, and returns its manifest."""
    draw = np.random.default_rng(seed)
    params = {"output": {"kernel": draw.normal(size=(4, 2)).astype(np.float32), "bias": np.zeros(2, np.float32)}}
    defaults = {
        "config": {"num_outputs": 2, "max_length": 32} if kind == "heads" else to_dict(AdapterConfig()),
        "trunk": TRUNK,
        "task": to_dict(TaskConfig(name=name, source=f"{HOME}/data/rte", dev=f"{HOME}/dev.jsonl")),
        "labels": ("entailment", "not_entailment"),
        "metrics": {"accuracy": 0.75, "step": 3},
    }
    return store.save(path, store.Draft(kind, name, params, **{**defaults, **kwargs}), overwrite=overwrite)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Returns the contents of all files in a folder by path.

    Subfolders are included, with the value None.
    """
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def digests(path: Path) -> dict[str, str]:
    """Verifies a store, and returns the digests of its artifacts by kind/name."""
    assert store.verify(path) == []
    return {f"{entry.kind}/{entry.name}": entry.digest for entry in store.entries(path)}
