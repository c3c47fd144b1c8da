"""Models of every encoder family can be trained, stored and loaded."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts

from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig, LoraConfig, PalConfig
from afjax.config.methods import FusionMethod, Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.task_model import TaskModel
from afjax.tasks.load import load_task
from afjax.train.fusion import train_fusion
from afjax.train.options import RunOptions
from afjax.train.single import train_single
from afjax.trees import flatten
from afjax.trunk.pretrained import Trunk, load_trunk
from tests.small_trunk import distinct_families, families_with_distinct_layers, small_trunk_on_disk

pytestmark = pytest.mark.slow

TASK = TaskConfig(name="entail", source="builtin:entail")
TEXTS = [("all cats sleep", "some cats sleep"), ("no dogs run", "most dogs run")]
BOTTLENECK = AdapterConfig(size=4, init_scale=0.1)


@pytest.fixture(scope="module", params=distinct_families())
def trunk(request: pytest.FixtureRequest, tiny_trunk_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trunk:
    """Returns a small trunk of each family, with the tiny BERT's vocabulary."""
    return small_trunk_on_disk(request.param, tiny_trunk_folder, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def settings(tiny: TrainConfig) -> TrainConfig:
    return dataclasses.replace(tiny, max_length=14, buckets=(14,), max_steps=4, eval_every=4)


def train(
    trunk: Trunk, method: Method, config: TrainConfig, workdir: Path, name: str = TASK.name, **options: Any
) -> TaskModel:
    """Trains a task called ``name`` on a few rows of ``TASK`` for four steps."""
    task, shared = dataclasses.replace(TASK, name=name), RunOptions(**options)
    return train_single(trunk, task, few_rows(), workdir=workdir, method=method, config=config, options=shared)


def few_rows() -> dict[str, Rows]:
    return {split: rows[:64] for split, rows in load_task(TASK).items()}


METHODS = {
    "houlsby": Method(adapter=dataclasses.replace(ADAPTER_PRESETS["houlsby"], size=4)),
    "lora": Method(adapter=LoraConfig(rank=2)),
    "pal": Method(adapter=PalConfig(size=4, num_heads=2)),
    "full": Method(partition="full"),
    "top_k": Method(partition="top_k", top_k=1),
}


# These methods train parameters of the embeddings: all of them, or a copy of their LayerNorm.
WITH_EMBEDDINGS = ("full", "houlsby")


@pytest.mark.parametrize(
    ("trunk", "method"),
    [
        (family, method)
        for family in distinct_families()
        for method in METHODS
        if method in WITH_EMBEDDINGS or family in families_with_distinct_layers()
    ],
    indirect=["trunk"],
)
def test_methods_train_and_predict(trunk: Trunk, method: str, settings: TrainConfig, tmp_path: Path) -> None:
    model = train(trunk, METHODS[method], settings, tmp_path / "run")
    before, after = flatten(trunk.params), flatten(model.trunk.params)
    changed = {path for path, leaf in after.items() if not np.array_equal(leaf, before[path])}
    assert bool(changed) == (method in ("full", "top_k"))
    logits = model.predict(TEXTS).logits
    assert np.isfinite(logits).all()
    if method == "lora":
        np.testing.assert_allclose(model.merged().predict(TEXTS).logits, logits, atol=1e-5)
    if method == "full":
        # The trunk's pooler is not trained, because the head has its own pooler.
        assert changed == {path for path in before if not path.startswith("pooler/")}
        model.save(tmp_path / "store")
        loaded = load_trunk(model.trunk.name)
        assert (loaded.sha256, loaded.config) == (model.trunk.sha256, trunk.config)


@pytest.mark.parametrize("trunk", families_with_distinct_layers(), indirect=True)
def test_scanned_layers_train_the_same_adapter(trunk: Trunk, settings: TrainConfig, tmp_path: Path) -> None:
    method = Method(adapter=BOTTLENECK)
    unrolled = train(trunk, method, settings, tmp_path / "unrolled")
    scanned = train(trunk, method, settings, tmp_path / "scanned", scan_layers=True)
    np.testing.assert_allclose(scanned.predict(TEXTS).logits, unrolled.predict(TEXTS).logits, atol=1e-4)


def test_stored_fusion_gives_the_same_predictions(trunk: Trunk, settings: TrainConfig, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for seed, name in enumerate(("one", "two")):
        train(trunk, Method(adapter=BOTTLENECK), settings, tmp_path / name, name=name, seed=seed).save(store)
    method = FusionMethod(adapters=("one", "two"), store=store)
    fused = train_fusion(trunk, TASK, few_rows(), method, workdir=tmp_path / "fusion", config=settings)
    fused.save(store)
    loaded = load_task_model(store, trunk, fusion="entail-fusion")
    np.testing.assert_allclose(loaded.predict(TEXTS).logits, fused.predict(TEXTS).logits, atol=1e-5)


def test_adapters_are_refused_on_a_trunk_of_another_family(
    settings: TrainConfig, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one = small_trunk_on_disk("mpnet", tiny_trunk_folder, tmp_path / "one")
    other = small_trunk_on_disk("roberta", tiny_trunk_folder, tmp_path / "other")
    train(one, Method(adapter=BOTTLENECK), settings, tmp_path / "run").save(tmp_path / "store")
    with pytest.raises(UserError) as raised:
        load_task_model(tmp_path / "store", other, adapter="entail", head="entail")
    assert has_facts(str(raised.value), "model_type", "mpnet", "roberta")
