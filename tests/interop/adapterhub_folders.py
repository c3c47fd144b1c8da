"""Reads folders that AdapterHub's library saved, and their trunk."""

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from afjax.trees import tree_digest
from afjax.trunk.config_file import trunk_config
from afjax.trunk.hugging_face import from_hugging_face
from afjax.trunk.pretrained import Trunk

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclasses.dataclass(frozen=True)
class Folders:
    """AdapterHub's folders for one encoder family, with their trunk and a batch."""

    family: str
    trunk: Trunk
    batch: dict[str, np.ndarray]
    root: Path

    def expected(self, case: str) -> dict[str, np.ndarray]:
        with np.load(self.root / case / "expected.npz") as file:
            return dict(file)


def unpack(family: str, root: Path) -> Folders:
    with zipfile.ZipFile(GOLDEN / f"adapterhub_folders_{family}.zip") as archive:
        archive.extractall(root)
    with np.load(GOLDEN / f"adapterhub_base_{family}.npz") as file:
        arrays: dict[str, Any] = dict(file)
    config = trunk_config(json.loads(str(arrays["config"])), where=family)
    state = {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}
    params = from_hugging_face(state, config, where=family)
    trunk = Trunk(name=f"tiny-{family}", config=config, params=params, sha256=tree_digest(params), folder=None)
    batch = {"tokens": arrays["tokens"], "types": arrays["types"], "mask": arrays["mask"].astype(bool)}
    return Folders(family, trunk, batch, root)
