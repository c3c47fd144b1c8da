"""Leaves and batches are sharded by rules, and results do not depend on the mesh."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec
from jobs import Job, result

from afjax.config.experiment import ExperimentConfig
from afjax.config.tasks import TaskConfig
from afjax.config.training import MeshConfig, TrainConfig
from afjax.data.batches import Batching, eval_batches, train_batches
from afjax.data.tokenization import TokenizedRows
from afjax.distributed.sharding import AXES, check_batch, leaf_sharding, make_mesh, tree_sharding
from afjax.errors import UserError
from tests.small_trunk import small_trunk_on_disk

pytestmark = pytest.mark.slow


def abstract(data: int, fsdp: int, tensor: int) -> Any:
    return AbstractMesh((data, fsdp, tensor), AXES)


@pytest.mark.parametrize(
    ("path", "shape", "expected"),
    [
        ("trunk/layers/attention/query/kernel", (12, 768, 768), (None, "fsdp", "tensor")),
        ("trunk/layers/0/attention/query/kernel", (768, 768), ("fsdp", "tensor")),
        ("trunk/layers/looped/attention/output/kernel", (11, 768, 768), (None, "tensor", "fsdp")),
        ("trunk/top_layers/1/ffn/intermediate/bias", (3072,), ("tensor",)),
        ("trunk/layers/ffn/norm/scale", (12, 768), (None, None)),
        ("trunk/embeddings/word", (30522, 768), (None, "fsdp")),
        ("trunk/embeddings/relative/position", (512, 768), (None, "fsdp")),
        ("trunk/embeddings/relative/norm/scale", (768,), (None,)),
        ("adapters/rte/ffn/down/kernel", (12, 768, 48), (None, "fsdp", None)),
        ("own/adapters/drawn/ffn/up/kernel", (8, 12, 48, 768), (None, None, None, "fsdp")),
        ("own/adapters/drawn/top/layer/ffn/output/kernel", (8, 3072, 768), (None, "tensor", "fsdp")),
        ("bank/layers/0/ffn/down/kernel", (768, 768), ("fsdp", None)),
        ("bank/layers/ffn/up/kernel", (12, 768, 768), (None, None, "fsdp")),
        ("adapters/rte/attention/query/down/kernel", (12, 768, 8), (None, "fsdp", None)),
        ("adapters/rte/attention/query/up/kernel", (12, 8, 768), (None, None, "tensor")),
        ("adapters/rte/attention/output/down/kernel", (12, 768, 8), (None, "tensor", None)),
        ("adapters/rte/ffn/output/scale", (12, 3072), (None, "tensor")),
        # This adapter is called "trunk", like a top-level key of the parameters.
        ("adapters/trunk/ffn/down/kernel", (12, 768, 48), (None, "fsdp", None)),
        ("optimizer/kernel/fusion/rte/ffn/value/kernel", (12, 768, 768), (None, "fsdp", None)),
        ("heads/rte/output/kernel", (768, 2), ("fsdp", None)),
        # Axes that are not divisible by the size of the mesh axis are replicated.
        ("trunk/layers/attention/query/kernel", (12, 30, 31), (None, None, None)),
        ("step", (), ()),
    ],
)
def test_leaf_is_sharded_by_its_path_and_shape(
    path: str, shape: tuple[int, ...], expected: tuple[str | None, ...]
) -> None:
    assert leaf_sharding(path, shape, abstract(1, 4, 2)).spec == PartitionSpec(*expected)


def test_optimizer_state_is_sharded_like_its_parameters() -> None:
    shape = jax.ShapeDtypeStruct((12, 768, 3072), "float32")
    trained = {"trunk": {"layers": {"ffn": {"intermediate": {"kernel": shape}}}}}
    import optax

    state = jax.eval_shape(optax.adamw(1e-3).init, trained)
    specs = {leaf.spec for leaf in jax.tree.leaves(tree_sharding(state, abstract(2, 2, 2)))}
    assert specs == {PartitionSpec(), PartitionSpec(None, "fsdp", "tensor")}


def test_meshes_and_batches_that_do_not_fit_the_devices_are_refused() -> None:
    devices = list(range(8))
    assert make_mesh(MeshConfig(fsdp=2), devices).shape == {"data": 4, "fsdp": 2, "tensor": 1}
    assert make_mesh(MeshConfig(data=2, fsdp=-1, tensor=2), devices).shape == {"data": 2, "fsdp": 2, "tensor": 2}
    for config in (MeshConfig(data=3), MeshConfig(data=4, fsdp=4), MeshConfig(fsdp=3)):
        with pytest.raises(
            UserError, match=r"does not match 8 devices; the product of the three sizes must be the number of devices"
        ):
            make_mesh(config, devices)
    with pytest.raises(UserError, match=r"mesh\.fsdp is 0; it must be at least 1, or -1"):
        MeshConfig(fsdp=0)
    with pytest.raises(UserError, match=r"mesh\.data and mesh\.fsdp are -1;"):
        MeshConfig(fsdp=-1)
    check_batch(32, abstract(4, 2, 1))
    with pytest.raises(UserError, match="A batch of 30 rows cannot be split across 8 devices"):
        check_batch(30, abstract(4, 2, 1))


def test_hosts_build_their_parts_of_the_same_batches() -> None:
    lengths = np.random.default_rng(0).integers(1, 17, 45)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.arange(offsets[-1], dtype=np.int32)
    labels = np.arange(45, dtype=np.int32)
    data = TokenizedRows(tokens, np.zeros_like(tokens, np.int8), offsets, labels, 0)
    batching = Batching(batch_size=8, lengths=(4, 8, 16), pad_id=0)
    for make in (
        lambda **part: train_batches(data, batching, seed=1, epoch=0, **part),
        lambda **part: eval_batches(data, batching, **part),
    ):
        parts = [list(make(part=slice(first, first + 4))) for first in (0, 4)]
        for batch, *host_parts in zip(make(), *parts, strict=True):
            for name in batch:
                if name == "rows":
                    assert all(np.array_equal(part[name], batch[name]) for part in host_parts)
                else:
                    assert np.array_equal(np.concatenate([part[name] for part in host_parts]), batch[name])


def test_config_has_a_mesh() -> None:
    config = ExperimentConfig(task=TaskConfig(name="a"), mesh=MeshConfig(data=1), train=TrainConfig())
    assert config.mesh.data == 1
    assert config.remat == "none"


# Relative tolerance of losses and parameters. On another mesh, sums are computed in another order.
TOLERANCE = 1e-5
RUNS = {
    "adapter:1,1,1": "adapter:8,1,1",
    "full:1,1,1": "full:2,2,2",
    "multitask:1,1,1": "multitask:2,4,1",
    "fusion:1,1,1": "fusion:1,1,8",
    "adapter:1,1,1:scan": "adapter:2,2,2:scan",
    "lora:1,1,1": "lora:2,2,2",
    "multitask:1,1,1:scan": "multitask:1,4,2:scan",
}


@pytest.fixture(scope="module")
def trained(tiny_trunk_folder: Path, compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("meshes")
    runs = " ".join(run for pair in RUNS.items() for run in pair)
    job = Job(tiny_trunk_folder, folder, [f"--runs={runs}", "--steps=20"], cache=compiled)
    assert job.wait(600) == [0], job.output()
    assert "Involuntary full rematerialization" not in job.output()
    return folder


MODERNBERT_RUNS = {"full:1,1,1": "full:2,2,2", "adapter:1,1,1:scan": "adapter:2,2,2:scan"}


@pytest.fixture(scope="module")
def trained_modernbert(tiny_trunk_folder: Path, compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    trunk, folder = tmp_path_factory.mktemp("modernbert"), tmp_path_factory.mktemp("modernbert_meshes")
    small_trunk_on_disk("modernbert", tiny_trunk_folder, trunk)
    runs = " ".join(run for pair in MODERNBERT_RUNS.items() for run in pair)
    job = Job(trunk, folder, [f"--runs={runs}", "--steps=20"], cache=compiled)
    assert job.wait(600) == [0], job.output()
    assert "Involuntary full rematerialization" not in job.output()
    return folder


@pytest.mark.parametrize(("one_device", "mesh"), RUNS.items())
def test_results_do_not_depend_on_the_mesh(trained: Path, one_device: str, mesh: str) -> None:
    check_same_results(trained, one_device, mesh)


@pytest.mark.parametrize(("one_device", "mesh"), MODERNBERT_RUNS.items())
def test_results_of_modernbert_do_not_depend_on_the_mesh(trained_modernbert: Path, one_device: str, mesh: str) -> None:
    check_same_results(trained_modernbert, one_device, mesh)


def check_same_results(folder: Path, one_device: str, mesh: str) -> None:
    expected, actual = (result(folder, run.replace(":", "-").replace(",", "x")) for run in (one_device, mesh))
    assert len(expected["losses"]) == 20
    np.testing.assert_allclose(actual["losses"], expected["losses"], rtol=TOLERANCE)
    for path, leaf in expected.items():
        if path.endswith("key/bias"):
            # Attention does not depend on this bias. Its gradient is only rounding error, which Adam amplifies.
            continue
        scale = max(float(np.abs(leaf).max()), 1e-3)
        np.testing.assert_allclose(actual[path], leaf, rtol=0, atol=10 * TOLERANCE * scale, err_msg=path)
        if path.startswith("metrics/"):
            # The metrics are equal although the 69 dev rows are not divisible by the number of devices.
            assert actual[path] == leaf
