"""An artifact whose manifest contradicts its arrays is refused.

The artifacts of these tests have correct checksums.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from afjax import store
from afjax.config.adapters import AdapterConfig, PalConfig
from afjax.config.from_dict import to_dict
from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.tasks.load import rows_from_lists
from afjax.train.single import train_single
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

Save = Callable[..., None]


@pytest.fixture
def save(tiny_trunk: Trunk, tmp_path: Path) -> Save:
    """Returns a function that saves a trained adapter and its head.

    The function can change fields in the manifest of either.
    """
    rows = rows_from_lists(["a b", "c d", "e f", "g h"], ["no", "yes", "no", "yes"])
    data: Mapping[str, Rows] = {"train": rows, "dev": rows}  # type: ignore[dict-item]
    config = TrainConfig(max_steps=1, batch_size=4, max_length=8, buckets=(8,), eval_every=1)
    model = train_single(
        tiny_trunk,
        TaskConfig(name="x"),
        data,
        workdir=tmp_path / "run",
        config=config,
        method=Method(adapter=AdapterConfig(size=2)),
    )

    def changed(kind: str, **changes: Any) -> None:
        model.save(tmp_path / "store")
        artifact = store.load(tmp_path / "store", kind, "x")
        names = ("config", "trunk", "task", "labels", "metrics", "seed", "trained_with")
        fields = {name: getattr(artifact.manifest, name) for name in names}
        for name, value in changes.items():
            fields[name] = {**fields[name], **value} if isinstance(value, dict) else value
        store.save(tmp_path / "store", store.Draft(kind, "x", artifact.params, **fields), overwrite=True)

    return changed


@pytest.mark.parametrize(
    ("kind", "changes", "fact"),
    [
        ("adapters", {"config": {"size": 3}}, "ffn/down/bias"),
        ("adapters", {"config": {"position": "attention"}}, "attention/down/bias"),
        ("adapters", {"config": {"layer_norms": True}}, "layer_norms"),
        ("heads", {"config": {"max_length": -4}}, "max_length"),
        ("heads", {"config": {"max_length": 10**9}}, "max_length"),
        ("heads", {"labels": ["no", "no"]}, "labels"),
        ("heads", {"labels": ["no", ""]}, "labels"),
    ],
)
def test_manifest_that_contradicts_its_arrays_is_refused(
    save: Save, tiny_trunk: Trunk, tmp_path: Path, kind: str, changes: dict[str, Any], fact: str
) -> None:
    save(kind, **changes)
    with pytest.raises(UserError) as refused:
        load_task_model(tmp_path / "store", tiny_trunk, head="x", adapter="x")
    assert fact in str(refused.value)


def test_manifest_of_another_kind_of_adapter_is_refused(save: Save, tiny_trunk: Trunk, tmp_path: Path) -> None:
    save("adapters")
    artifact = store.load(tmp_path / "store", "adapters", "x")
    config = to_dict(PalConfig(size=4, num_heads=2))
    trunk = artifact.manifest.trunk
    store.save(
        tmp_path / "store", store.Draft("adapters", "x", artifact.params, config=config, trunk=trunk), overwrite=True
    )
    with pytest.raises(UserError) as refused:
        load_task_model(tmp_path / "store", tiny_trunk, head="x", adapter="x")
    assert '"x"' in str(refused.value)


def test_unchanged_artifacts_are_accepted(save: Save, tiny_trunk: Trunk, tmp_path: Path) -> None:
    save("adapters")
    assert load_task_model(tmp_path / "store", tiny_trunk, head="x", adapter="x").labels == ("no", "yes")
