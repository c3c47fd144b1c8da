"""Recipes train the right parameters, and stored models can be loaded."""

import dataclasses
import errno
import json
import operator
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from facts import has_facts
from jax.experimental.compilation_cache import compilation_cache
from recipe_arguments import recipe_arguments

import afjax
from afjax import store as artifacts
from afjax.config.adapters import ADAPTER_PRESETS, AdapterConfig
from afjax.config.from_dict import to_dict
from afjax.config.heads import HeadConfig
from afjax.config.methods import FusionMethod, Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.model import saving
from afjax.model.loading import load_task_model, stored_text_columns
from afjax.model.setup import new_adapter
from afjax.model.task_model import TaskModel
from afjax.tasks.load import rows_from_lists
from afjax.train.fusion import train_fusion
from afjax.train.logs import RunLog
from afjax.train.options import RunOptions
from afjax.train.single import train_single
from afjax.trees import flatten, tree_digest
from afjax.trunk.pretrained import Trunk, load_trunk, save_trunk

pytestmark = pytest.mark.slow

TEXTS = ["all of the two", "none", "some of the nine", "most of the three"]


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def params_digest(task_model: TaskModel) -> str:
    return tree_digest(task_model.params)


@pytest.fixture
def single(tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tiny: TrainConfig, tmp_path: Path) -> Any:
    """Returns a function that calls ``train_single`` on the tiny task.

    The workdir is ``tmp_path / folder``.
    """

    def train(folder: str = "run", settings: TrainConfig = tiny, **kwargs: Any) -> TaskModel:
        return train_single(
            tiny_trunk, task, rows, workdir=tmp_path / folder, config=settings, **recipe_arguments(**kwargs)
        )

    return train


def loss_decreases(folder: Path) -> bool:
    values = losses(folder)
    return np.mean(values[-4:]) < np.mean(values[:4])


# Tests of the trained parameters of each partition.


@pytest.mark.parametrize("partition_name", ["adapter", "head"])
def test_frozen_trunk_does_not_change(single: Any, tiny_trunk: Trunk, tmp_path: Path, partition_name: str) -> None:
    before = tree_digest(tiny_trunk.params)
    task_model = single(partition=partition_name, head=HeadConfig(dropout=0.0))
    assert loss_decreases(tmp_path / "run")
    assert task_model.trunk is tiny_trunk
    assert tree_digest(tiny_trunk.params) == before == tiny_trunk.sha256
    assert list(task_model.params["adapters"]) == (["quantity"] if partition_name == "adapter" else [])


@pytest.mark.parametrize(
    ("partition_name", "top_k", "trained"),
    [("full", 0, {"embeddings", "layers"}), ("layernorm", 0, {"norm"}), ("top_k", 1, {"layers"})],
)
def test_trained_trunk_is_restored_from_its_folder(
    single: Any, tiny_trunk: Trunk, tmp_path: Path, partition_name: str, top_k: int, trained: set[str]
) -> None:
    before = tree_digest(tiny_trunk.params)
    task_model = single(partition=partition_name, top_k=top_k)
    assert loss_decreases(tmp_path / "run")
    assert tree_digest(tiny_trunk.params) == before
    new = flatten(task_model.trunk.params)
    old = flatten(tiny_trunk.params)
    assert new.keys() == old.keys()
    changed = {path for path in new if not np.array_equal(new[path], old[path])}
    assert changed
    assert all(set(path.split("/")) & trained for path in changed)
    if top_k:
        assert all(np.array_equal(new[path][0], old[path][0]) for path in changed)
        assert all(not np.array_equal(new[path][1], old[path][1]) for path in changed)
    save_trunk(tmp_path / "trunk", task_model.trunk)
    loaded = load_trunk(str(tmp_path / "trunk"))
    assert loaded.sha256 == task_model.trunk.sha256 != tiny_trunk.sha256
    task_model.save(tmp_path / "store")
    again = load_task_model(tmp_path / "store", loaded, head="quantity")
    np.testing.assert_array_equal(again.predict(TEXTS).logits, task_model.predict(TEXTS).logits)
    with pytest.raises(UserError, match=r'"quantity".*trunk.*differs'):
        load_task_model(tmp_path / "store", tiny_trunk, head="quantity")


def test_saving_writes_a_trained_trunk_to_the_recorded_folder(
    single: Any, tiny_trunk: Trunk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task_model = single(partition="adapter+trunk")
    task_model.save(tmp_path / "store")
    assert str(tmp_path / "run" / "trunk") in capsys.readouterr().err
    name = artifacts.read_manifest(tmp_path / "store", "heads", "quantity").trunk["name"]
    loaded = load_trunk(name)
    assert loaded.sha256 == task_model.trunk.sha256
    again = load_task_model(tmp_path / "store", loaded, head="quantity", adapter="quantity")
    np.testing.assert_array_equal(again.predict(TEXTS).logits, task_model.predict(TEXTS).logits)
    with pytest.raises(UserError) as refused:
        load_task_model(tmp_path / "store", tiny_trunk, head="quantity", adapter="quantity")
    assert str(tmp_path / "run" / "trunk") in str(refused.value)

    # The trunk is only written again if its folder contains another trunk.
    weights = tmp_path / "run" / "trunk" / "model.safetensors"
    written = weights.stat().st_mtime_ns
    task_model.save(tmp_path / "other")
    assert weights.stat().st_mtime_ns == written
    save_trunk(tmp_path / "run" / "trunk", tiny_trunk)
    task_model.save(tmp_path / "third")
    assert load_trunk(name).sha256 == task_model.trunk.sha256


def test_compilation_of_a_step_is_logged(single: Any, capfd: pytest.CaptureFixture[str]) -> None:
    single()
    shown = capfd.readouterr().err
    assert sum(has_facts(line, "quantity: ", "compiling", "8 tokens") for line in shown.splitlines()) == 1
    assert "step 16 of 16" in shown


@pytest.fixture
def compiled_programs(tmp_path: Path) -> Path:
    """Makes JAX store all compiled programs in an empty folder during the test. Returns the folder."""
    folder = tmp_path / "compiled"
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()
    return folder


def test_runs_with_different_names_share_compiled_programs(single: Any, compiled_programs: Path) -> None:
    def steps() -> list[str]:
        return sorted(path.name for path in compiled_programs.iterdir() if "step" in path.name)

    single("one", name="one")
    first = steps()
    assert sum("train_step" in name and name.endswith("-cache") for name in first) == 1
    single("other", name="another")
    assert steps() == first


def test_predicting_again_compiles_nothing(single: Any, caplog: pytest.LogCaptureFixture) -> None:
    task_model = single()
    first = task_model.predict(TEXTS)
    with jax.log_compiles():
        again = task_model.predict(TEXTS[::-1])
    assert not [record.getMessage() for record in caplog.records if "ompiling" in record.getMessage()]
    np.testing.assert_array_equal(again.logits, first.logits[::-1])


# Tests of training on a bfloat16 trunk.


@pytest.mark.parametrize(
    ("partition_name", "top_k", "scan_layers"),
    [
        ("adapter", 0, False),
        ("adapter", 0, True),
        ("head", 0, False),
        ("layernorm", 0, False),
        ("top_k", 1, True),
        ("full", 0, False),
    ],
)
def test_training_on_a_bfloat16_trunk_keeps_float32_leaves(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    tmp_path: Path,
    partition_name: Any,
    top_k: int,
    scan_layers: bool,
) -> None:
    bfloat16_trunk = dataclasses.replace(tiny_trunk, dtype="bfloat16")
    task_model = train_single(
        bfloat16_trunk,
        task,
        rows,
        workdir=tmp_path / "run",
        config=tiny,
        method=Method(partition=partition_name, top_k=top_k),
        options=RunOptions(scan_layers=scan_layers),
    )
    assert loss_decreases(tmp_path / "run")
    trained = {**flatten(task_model.params), **flatten(task_model.trunk.params)}
    assert {leaf.dtype.name for leaf in trained.values()} == {"float32"}
    assert tree_digest(tiny_trunk.params) == tiny_trunk.sha256

    # A loaded model computes in the dtype of its training run, even if the given trunk has another dtype.
    task_model.save(tmp_path / "store")
    float32_trunk = dataclasses.replace(task_model.trunk, dtype="float32")
    adapter = "quantity" if partition_name == "adapter" else ""
    again = load_task_model(tmp_path / "store", float32_trunk, head="quantity", adapter=adapter)
    assert again.trunk.dtype == "bfloat16"
    scores = again.evaluate(rows["dev"])
    assert scores == pytest.approx({name: task_model.metrics[name] for name in scores})
    in_float32 = dataclasses.replace(again, trunk=float32_trunk).predict(TEXTS).logits
    np.testing.assert_allclose(again.predict(TEXTS).logits, in_float32, atol=0.1)
    assert not np.array_equal(again.predict(TEXTS).logits, in_float32)


def test_fusion_on_a_bfloat16_trunk_accepts_float32_adapters(
    single: Any, tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tiny: TrainConfig, tmp_path: Path
) -> None:
    for seed, name in enumerate(("one", "other")):
        single(name, name=name, seed=seed).save(tmp_path / "store")
    bfloat16_trunk = dataclasses.replace(tiny_trunk, dtype="bfloat16")
    method = FusionMethod(adapters=("one", "other"), store=tmp_path / "store")
    task_model = train_fusion(bfloat16_trunk, task, rows, method, config=tiny, workdir=tmp_path / "fused")
    assert loss_decreases(tmp_path / "fused")
    attention = task_model.predict(TEXTS, fusion_attention=True).fusion_attention["ffn"]
    np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-2)


def test_houlsby_trains_its_own_layer_norms(single: Any, tiny_trunk: Trunk, tmp_path: Path) -> None:
    preset = dataclasses.replace(ADAPTER_PRESETS["houlsby"], size=4)
    task_model = single(adapter=preset)
    assert loss_decreases(tmp_path / "run")
    norms = flatten(task_model.params["adapters"]["quantity"]["layer_norms"])
    start = flatten(
        new_adapter(jax.random.key(0), "quantity", preset, tiny_trunk.config, tiny_trunk.params)["layer_norms"]
    )
    assert len(norms) == 6
    assert all(not np.array_equal(norms[path], start[path]) for path in norms)
    assert task_model.trunk is tiny_trunk
    assert tree_digest(tiny_trunk.params) == tiny_trunk.sha256


def test_regression_learns_and_predicts_values(tiny_trunk: Trunk, tiny: TrainConfig, tmp_path: Path) -> None:
    task = TaskConfig(name="length", kind="regression")
    texts = ["two " * count for count in range(1, 7)] * 3
    rows = {
        split: rows_from_lists(texts, [len(text) / 8 for text in texts], kind="regression")
        for split in ("train", "dev")
    }
    task_model = train_single(tiny_trunk, task, rows, workdir=tmp_path / "run", config=tiny)
    assert loss_decreases(tmp_path / "run")
    assert task_model.metrics.keys() == {"pearson", "spearman", "mse", "step"}
    task_model.save(tmp_path / "store")
    found = load_task_model(tmp_path / "store", tiny_trunk, head="length", adapter="length").predict(texts[:3])
    assert found.logits.shape == (3, 1)
    assert found.probabilities.shape == (3, 0)
    assert found.labels == found.logits[:, 0].tolist()


# Tests of seeds, early stopping and failures.


def test_results_are_determined_by_the_seed(single: Any, tiny: TrainConfig) -> None:
    settings = dataclasses.replace(tiny, max_steps=4, eval_every=2, dropout=True)
    first, again, other = (single(str(index), settings, seed=seed) for index, seed in enumerate((3, 3, 4)))
    assert params_digest(first) == params_digest(again) != params_digest(other)
    assert first.metrics == again.metrics


def evaluations(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "dev/accuracy" in line]


def test_best_evaluation_is_kept_and_patience_stops_training(
    single: Any, rows: Mapping[str, Rows], tiny: TrainConfig, tmp_path: Path
) -> None:
    settings = dataclasses.replace(tiny, max_steps=200, eval_every=2, patience=3, learning_rate=0.05)
    task_model = single(settings=settings)
    found = evaluations(tmp_path / "run")
    scores = [evaluation["dev/accuracy"] for evaluation in found]
    best = int(np.argmax(scores))
    assert task_model.metrics["accuracy"] == scores[best]
    assert task_model.metrics["step"] == found[best]["step"]
    # Training stops after three evaluations without improvement. The last evaluation is at the run's last step.
    assert len(found) == best + 1 + 3
    assert len(losses(tmp_path / "run")) == 2 * len(found)
    # The returned parameters are from the best evaluation, not from the last one.
    again = task_model.evaluate(rows["dev"])
    assert {name: task_model.metrics[name] for name in again} == pytest.approx(again)


def test_max_steps_or_epochs_set_the_number_of_steps(single: Any, tiny: TrainConfig, tmp_path: Path) -> None:
    single("steps", dataclasses.replace(tiny, max_steps=3, epochs=100.0, eval_every=0))
    assert len(losses(tmp_path / "steps")) == 3
    single("epochs", dataclasses.replace(tiny, max_steps=0, epochs=1.5, eval_every=0))
    # An epoch has three steps, because there are 24 rows in batches of 8.
    assert len(losses(tmp_path / "epochs")) == 5
    assert [evaluation["step"] for evaluation in evaluations(tmp_path / "epochs")] == [3, 5]


def test_non_finite_loss_stops_the_run_and_saves_rows_and_state(single: Any, tiny: TrainConfig, tmp_path: Path) -> None:
    settings = dataclasses.replace(tiny, learning_rate=1e38)
    with pytest.raises(UserError, match=r"finite.* step 2 ") as raised:
        single(settings=settings)
    folder = tmp_path / "run" / "not_finite_step_2"
    assert str(folder) in str(raised.value)
    report = json.loads((folder / "report.json").read_text())
    assert report["step"] == 2
    assert len(report["train_rows"]) == 8
    assert set(report["train_rows"]) <= set(range(24))
    with ocp.StandardCheckpointer() as checkpointer:
        state = checkpointer.restore(folder / "state")
    assert int(state["step"]) == 1
    assert all(np.isfinite(leaf).all() for leaf in flatten(state["trained"]).values())
    # The same call fails at the same step if it is repeated.
    with pytest.raises(UserError, match=r"finite.* step 2 "):
        single(settings=settings)


def test_non_finite_loss_is_reported_if_its_state_cannot_be_saved(
    single: Any, tiny: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any, **named: Any) -> None:
        raise ValueError("os_error_code='28'")

    monkeypatch.setattr(ocp.StandardCheckpointer, "save", fails)
    with pytest.raises(UserError) as raised:
        single(settings=dataclasses.replace(tiny, learning_rate=1e38))
    assert has_facts(str(raised.value), "step 2", str(tmp_path / "run" / "not_finite_step_2"), os.strerror(28))


def test_broken_pipe_is_not_an_error_of_the_folder(
    single: Any, tiny: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*given: Any) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(RunLog, "evaluated", fails)
    with pytest.raises(BrokenPipeError):
        single(settings=tiny)


# Tests of saving, loading and predicting.


@pytest.fixture(scope="module")
def store(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a store with two untrained adapters of different sizes to fuse."""
    folder = tmp_path_factory.mktemp("store")
    for name, size in (("first", 3), ("second", 5)):
        config = AdapterConfig(size=size, init_scale=0.3)
        tree = jax.tree.map(
            np.asarray, new_adapter(jax.random.key(0), name, config, tiny_trunk.config, tiny_trunk.params)
        )
        artifacts.save(
            folder, artifacts.Draft("adapters", name, tree, config=to_dict(config), trunk=tiny_trunk.identity())
        )
    return folder


@pytest.fixture(scope="module")
def fused(
    store: Path,
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[TaskModel, Path]:
    """Trains a fusion of the store's adapters, and returns ``(model, folder)``."""
    folder = tmp_path_factory.mktemp("fused")
    shutil.copytree(store, folder / "store")
    task_model = train_fusion(
        tiny_trunk,
        task,
        rows,
        FusionMethod(adapters=("first", "second"), store=store),
        workdir=folder / "run",
        config=tiny,
    )
    task_model.save(folder / "store")
    return task_model, folder


def test_fusion_changes_neither_trunk_nor_adapters(
    fused: tuple[TaskModel, Path], store: Path, tiny_trunk: Trunk
) -> None:
    task_model, folder = fused
    assert loss_decreases(folder / "run")
    assert tree_digest(tiny_trunk.params) == tiny_trunk.sha256
    assert task_model.trunk is tiny_trunk
    for name in ("first", "second"):
        digest = artifacts.read_manifest(store, "adapters", name).digest
        assert tree_digest(task_model.params["adapters"][name]) == digest
        assert artifacts.load(folder / "store", "adapters", name).manifest.digest == digest
    assert artifacts.verify(folder / "store") == []
    assert artifacts.names(folder / "store", "fusion") == ["quantity-fusion"]
    assert artifacts.names(folder / "store", "heads") == ["quantity-fusion"]


def test_attention_over_adapters_is_returned_for_every_row_and_layer(fused: tuple[TaskModel, Path]) -> None:
    task_model, _ = fused
    predictions = task_model.predict(TEXTS, fusion_attention=True)
    attention = predictions.fusion_attention["ffn"]
    assert attention.shape == (len(TEXTS), 2, 2)
    np.testing.assert_allclose(attention.sum(-1), 1.0, atol=1e-5)
    assert attention.min() >= 0
    assert task_model.predict(TEXTS).fusion_attention == {}
    # A row's attention is the mean over its own tokens, so other rows in the batch do not matter.
    one_row = task_model.predict(TEXTS[1:2], fusion_attention=True).fusion_attention["ffn"]
    np.testing.assert_allclose(attention[1:2], one_row, atol=1e-5)


def test_loaded_model_gives_the_same_predictions(fused: tuple[TaskModel, Path], tiny_trunk: Trunk) -> None:
    task_model, folder = fused
    loaded = load_task_model(folder / "store", tiny_trunk, head="quantity-fusion", fusion="quantity-fusion")
    trained, stored = task_model.predict(TEXTS), loaded.predict(TEXTS)
    np.testing.assert_array_equal(trained.logits, stored.logits)
    np.testing.assert_allclose(trained.probabilities.sum(-1), 1.0, atol=1e-6)
    assert trained.labels == stored.labels == [("few", "many")[index] for index in trained.logits.argmax(-1)]
    assert loaded.evaluate(rows_from_lists(TEXTS, ["many", "few", "few", "many"], label_names=("few", "many")))


def test_batch_size_and_padding_do_not_change_predictions(fused: tuple[TaskModel, Path]) -> None:
    task_model, _ = fused
    reference = task_model.predict(TEXTS).logits
    for batch_size, max_length in ((1, 8), (3, 32), (64, 20)):
        found = task_model.predict(TEXTS, batch_size=batch_size, max_length=max_length).logits
        np.testing.assert_allclose(found, reference, atol=1e-5)


def test_bad_arguments_of_predict_are_refused(fused: tuple[TaskModel, Path], rows: Mapping[str, Rows]) -> None:
    task_model, _ = fused
    with pytest.raises(UserError, match=r"max_length is 0.*trunk .* 4 to 128 tokens"):
        task_model.predict(TEXTS, max_length=0)
    with pytest.raises(UserError, match="batch_size is 0"):
        task_model.predict(TEXTS, batch_size=0)
    with pytest.raises(UserError, match="no labels"):
        task_model.evaluate(rows_from_lists(TEXTS))
    with pytest.raises(UserError, match=r"labels \['a', 'b'\].*head \"quantity-fusion\""):
        task_model.evaluate(rows_from_lists(TEXTS, ["a", "b", "a", "b"]))


def test_fusion_needs_adapters_in_the_same_slots(
    store: Path, tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tmp_path: Path
) -> None:
    shutil.copytree(store, tmp_path / "store")
    config = AdapterConfig(size=3, position="attention")
    tree = new_adapter(jax.random.key(0), "third", config, tiny_trunk.config, tiny_trunk.params)
    artifacts.save(
        tmp_path / "store",
        artifacts.Draft("adapters", "third", tree, config=to_dict(config), trunk=tiny_trunk.identity()),
    )
    with pytest.raises(UserError, match=r'"first".*"third".*slots'):
        train_fusion(
            tiny_trunk,
            task,
            rows,
            FusionMethod(adapters=("first", "third"), store=tmp_path / "store"),
            workdir=tmp_path / "run",
        )
    with pytest.raises(UserError, match="at least one"):
        FusionMethod(adapters=(), store=tmp_path / "store")
    assert not (tmp_path / "run").exists()


def test_stored_fusion_with_changed_adapters_is_refused(fused: tuple[TaskModel, Path], tiny_trunk: Trunk) -> None:
    _, folder = fused
    again = folder / "again"
    shutil.copytree(folder / "store", again)
    config = AdapterConfig(size=3)
    tree = new_adapter(jax.random.key(5), "first", config, tiny_trunk.config, tiny_trunk.params)
    draft = artifacts.Draft("adapters", "first", tree, config=to_dict(config), trunk=tiny_trunk.identity())
    artifacts.save(again, draft, overwrite=True)
    with pytest.raises(UserError, match=r'fusion "quantity-fusion".*adapter "first".*SHA-256'):
        load_task_model(again, tiny_trunk, head="quantity-fusion", fusion="quantity-fusion")
    with pytest.raises(UserError, match=r'Both.*adapter "first".*fusion "quantity-fusion"'):
        load_task_model(again, tiny_trunk, head="quantity-fusion", adapter="first", fusion="quantity-fusion")


def test_stored_model_is_only_replaced_with_overwrite(fused: tuple[TaskModel, Path]) -> None:
    task_model, folder = fused
    # Saving the same model again is allowed, so that a program can be run twice.
    task_model.save(folder / "store")
    other = dataclasses.replace(task_model, seed=task_model.seed + 1)
    with pytest.raises(UserError, match="already exists"):
        other.save(folder / "store")
    task_model.save(folder / "store", overwrite=True)
    assert saving.artifacts(task_model) == [("fusion", "quantity-fusion"), ("heads", "quantity-fusion")]


# Test of loading a stored adapter without afjax.


def test_adapter_can_be_used_with_only_jax_and_orbax(store: Path) -> None:
    folder = store / "adapters" / "first" / "params"
    adapter = ocp.PyTreeCheckpointer().restore(folder)
    x = jax.random.normal(jax.random.key(0), (4, 32))
    for layer in range(2):
        params = jax.tree.map(operator.itemgetter(layer), adapter["ffn"])
        down, up = params["down"], params["up"]
        with jax.numpy_rank_promotion("allow"):
            by_hand = jax.nn.relu(x @ down["kernel"] + down["bias"]) @ up["kernel"] + up["bias"]
        np.testing.assert_allclose(by_hand, afjax.bottleneck(params, x, AdapterConfig(size=3)), atol=1e-6)


# Tests of single texts and pairs of texts.


def test_model_trained_on_single_texts_refuses_pairs(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tiny: TrainConfig, single: Any, tmp_path: Path
) -> None:
    labels, names = ["few", "many"], ("few", "many")
    pairs = rows_from_lists([("all", "two"), ("none", "two")], labels, label_names=names)
    with pytest.raises(UserError, match=r"train rows.*single texts.*dev rows.*pairs"):
        train_single(tiny_trunk, task, {**rows, "dev": pairs}, workdir=tmp_path / "pairs", config=tiny)
    assert not (tmp_path / "pairs").exists()
    trained = single()
    assert trained.text_columns == 1
    trained.save(tmp_path / "store")
    name = trained.model.head_name
    stored = load_task_model(tmp_path / "store", tiny_trunk, head=name, adapter=name)
    assert stored.text_columns == 1
    for model in (trained, stored):
        for refused in (lambda model=model: model.evaluate(pairs), lambda model=model: model.predict([("all", "two")])):
            with pytest.raises(UserError, match=r"single texts.*these rows.*pairs"):
                refused()
        assert model.evaluate(rows["dev"])["accuracy"] == trained.metrics["accuracy"]


@pytest.mark.parametrize(
    ("values", "settings", "expected", "warns"),
    [
        ({"text_columns": 1}, {}, 1, False),
        ({"text_columns": None}, {}, None, False),
        ({"text_columns": "two"}, {}, None, False),
        ({}, {"text_a": "a"}, 1, False),
        ({}, {"text_a": "a", "text_b": "b"}, 2, False),
        ({}, {"source": "builtin:target"}, 2, False),
        ({}, {"kind": "span"}, 2, False),
        ({}, {"kind": "multiple_choice", "text_a": "a"}, None, True),
        ({}, {}, None, True),
    ],
)
def test_number_of_text_columns_of_a_stored_head(
    values: dict[str, Any], settings: dict[str, Any], expected: int | None, warns: bool, capsys: Any
) -> None:
    assert stored_text_columns(values, "mine", TaskConfig(name="t", **settings)) == expected
    assert values == {}
    assert ("mine" in capsys.readouterr().err) == warns
