"""Reads folders that PEFT saved, and their trunk."""

import dataclasses
import json
import zipfile
from pathlib import Path

import numpy as np

from afjax.trees import tree_digest
from afjax.trunk.config_file import trunk_config
from afjax.trunk.hugging_face import from_hugging_face
from afjax.trunk.pretrained import Trunk

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclasses.dataclass(frozen=True)
class PeftFolders:
    """PEFT's folders for one encoder family, with their trunk and a batch."""

    family: str
    trunk: Trunk
    batch: dict[str, np.ndarray]
    root: Path

    def expected(self, case: str) -> dict[str, np.ndarray]:
        with np.load(self.root / case / "expected.npz") as file:
            return dict(file)


def unpack(family: str, root: Path) -> PeftFolders:
    with zipfile.ZipFile(GOLDEN / "peft_folders.zip") as archive:
        archive.extractall(root, [name for name in archive.namelist() if name.startswith(f"{family}/")])
    with np.load(GOLDEN / f"encoder_{family}.npz") as file:
        arrays = dict(file)
    config = trunk_config(json.loads(str(arrays["config"])), where=family)
    state = {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}
    params = from_hugging_face(state, config, where=family)
    trunk = Trunk(name=f"tiny-{family}", config=config, params=params, sha256=tree_digest(params), folder=None)
    batch = {"tokens": arrays["tokens"], "types": arrays["types"], "mask": arrays["mask"].astype(bool)}
    return PeftFolders(family, trunk, batch, root / family)
