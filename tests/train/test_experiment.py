"""Experiments train, reuse earlier results, and check their inputs first."""

import dataclasses
import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from facts import has_facts
from safetensors.numpy import load_file, save_file

from afjax import store
from afjax.config.adapters import AdapterConfig, PalConfig
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.errors import UserError
from afjax.model.stored import load_adapter
from afjax.storage.paths import open_path
from afjax.tasks.load import load_task
from afjax.train import experiment
from afjax.train.experiment import experiment_training, run_experiment
from afjax.train.loop import run_alone
from afjax.train.results import Result
from afjax.train.shared import Shared
from afjax.trunk.pretrained import Trunk, load_trunk

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(tiny: TrainConfig) -> TrainConfig:
    return dataclasses.replace(tiny, max_steps=2, eval_every=2)


MakeConfig = Callable[..., ExperimentConfig]


@pytest.fixture
def fusion(data: Path, settings: TrainConfig, tiny_trunk_folder: Path) -> MakeConfig:
    """Returns a function that makes the config of a fusion for the task "two".

    By default, the sources of the fusion are "one" and "two".
    """

    def make(sources: tuple[str, ...] = ("one", "two"), **kwargs: Any) -> ExperimentConfig:
        tasks = [TaskConfig(name=name, source=str(data)) for name in sources]
        values = {
            "recipe": "fusion",
            "trunk": str(tiny_trunk_folder),
            "task": TaskConfig(name="two", source=str(data)),
            "sources": tuple(SourceConfig(task=task, train=settings) for task in tasks),
            "train": settings,
        }
        return ExperimentConfig(**{**values, **kwargs})

    return make


@pytest.fixture
def single(data: Path, settings: TrainConfig, tiny_trunk_folder: Path) -> MakeConfig:
    def make(task_name: str = "one", **kwargs: Any) -> ExperimentConfig:
        task = TaskConfig(name=task_name, source=str(data))
        return ExperimentConfig(**{"trunk": str(tiny_trunk_folder), "task": task, "train": settings, **kwargs})

    return make


@pytest.fixture(scope="module")
def finished_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def finished(single: MakeConfig, finished_runs: Path, data: Path) -> Path:
    """Returns the workdir of a finished run of ``single()``.

    The run is trained once for all tests. For each test, the recorded path of the data is replaced with the path of
    the test's own data.
    """
    if not (finished_runs / "run").exists():
        run_experiment(single(), workdir=finished_runs / "run")
    config = json.loads((finished_runs / "run" / "config.json").read_text())
    config["task"]["source"] = str(data)
    (finished_runs / "run" / "config.json").write_text(json.dumps(config))
    return finished_runs / "run"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def summary(results: list[Result]) -> list[tuple[str, str, str]]:
    return [(result.name, result.kind, result.task) for result in results]


def refusal(config: ExperimentConfig, tmp_path: Path, **kwargs: Any) -> str:
    """Returns the error message of a refused experiment.

    Checks that the experiment wrote nothing.
    """
    before = contents(tmp_path)
    with pytest.raises(UserError) as raised:
        run_experiment(config, **{"workdir": tmp_path / "refused", **kwargs})
    assert contents(tmp_path) == before
    return str(raised.value)


def test_missing_sources_are_trained_and_stored_sources_are_reused(
    fusion: MakeConfig, single: MakeConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = {"store_folder": tmp_path / "store"}
    assert summary(run_experiment(single("one"), workdir=tmp_path / "one", **shared)) == [("one", "adapter", "one")]
    stored = store.read_manifest(tmp_path / "store", "adapters", "one")
    capsys.readouterr()

    results = run_experiment(fusion(), workdir=tmp_path / "fusion", **shared)
    assert summary(results) == [
        ("one", "adapter (from the store)", "one"),
        ("two", "adapter", "two"),
        ("two-fusion", "fusion", "two"),
    ]
    assert has_facts(capsys.readouterr().err, "one: ", "store ", "has this adapter", "unchanged")
    assert all(0 <= result.metrics["accuracy"] <= 1 for result in results)
    assert store.read_manifest(tmp_path / "store", "adapters", "one") == stored
    assert store.names(tmp_path / "store", "adapters") == ["one", "two"]
    assert store.names(tmp_path / "store", "heads") == ["one", "two", "two-fusion"]
    members = store.read_manifest(tmp_path / "store", "fusion", "two-fusion").adapters
    assert [member["name"] for member in members] == ["one", "two"]
    assert store.verify(tmp_path / "store") == []

    # Running the same command again changes nothing.
    before = contents(tmp_path)
    assert run_experiment(fusion(), workdir=tmp_path / "fusion", **shared) == results
    assert contents(tmp_path) == before


def test_only_adapters_named_in_fused_are_fused(fusion: MakeConfig, tmp_path: Path) -> None:
    results = run_experiment(fusion(fused=("one",), name="mixed"), workdir=tmp_path / "run")
    assert [result.name for result in results] == ["one", "two", "mixed"]
    members = store.read_manifest(tmp_path / "run" / "store", "fusion", "mixed").adapters
    assert [member["name"] for member in members] == ["one"]


def test_trained_trunk_is_saved_with_its_head(single: MakeConfig, tiny_trunk_folder: Path, tmp_path: Path) -> None:
    results = run_experiment(single(partition="layernorm"), workdir=tmp_path / "run")
    assert summary(results) == [("one", "layernorm", "one")]
    identity = store.read_manifest(tmp_path / "run" / "store", "heads", "one").trunk
    trunk = load_trunk(str(tmp_path / "run" / "trunk"))
    assert (identity["name"], identity["sha256"]) == (trunk.name, trunk.sha256)
    assert trunk.sha256 != load_trunk(str(tiny_trunk_folder)).sha256
    assert store.names(tmp_path / "run" / "store", "adapters") == []
    shutil.rmtree(tmp_path / "run" / "trunk")
    assert run_experiment(single(partition="layernorm"), workdir=tmp_path / "run") == results
    assert load_trunk(str(tmp_path / "run" / "trunk")).sha256 == trunk.sha256


@pytest.mark.parametrize("written", [["store.json"], ["store.json", "inputs.json"]])
def test_incomplete_claim_of_a_workdir_does_not_bind_the_next_run(
    single: MakeConfig, tmp_path: Path, written: list[str]
) -> None:
    """A process can be killed while it claims a workdir. It writes config.json last."""
    run_experiment(single(), workdir=tmp_path / "killed", store_folder=tmp_path / "first")
    (tmp_path / "run").mkdir()
    for name in written:
        shutil.copy(tmp_path / "killed" / name, tmp_path / "run" / name)
    other = dataclasses.replace(single(), name="other", seed=5)
    run_experiment(other, workdir=tmp_path / "run", store_folder=tmp_path / "second")
    assert store.names(tmp_path / "second", "adapters") == ["other"]


@pytest.mark.parametrize(
    ("seed", "facts"),
    [(0, ("a different config", "seed: 5 ", " 0 ")), (5, ("began with the store", "first", "second"))],
)
def test_workdir_that_another_process_claims_meanwhile_is_refused(
    single: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, facts: tuple[str, ...]
) -> None:
    run_experiment(single(seed=5), workdir=tmp_path / "other", store_folder=tmp_path / "first")
    claim = experiment.claim_workdir

    def copy_and_claim(*args: Any) -> bool:
        shutil.copytree(tmp_path / "other", tmp_path / "run")
        return claim(*args)

    monkeypatch.setattr(experiment, "claim_workdir", copy_and_claim)
    with pytest.raises(UserError) as refused:
        run_experiment(single(seed=seed), workdir=tmp_path / "run", store_folder=tmp_path / "second")
    assert has_facts(str(refused.value), *facts)
    assert contents(tmp_path / "run") == contents(tmp_path / "other")


def test_workdir_with_another_config_is_refused_with_the_difference(single: MakeConfig, tmp_path: Path) -> None:
    config = single()
    run_experiment(config, workdir=tmp_path / "run")
    other = dataclasses.replace(config, seed=5, train=dataclasses.replace(config.train, batch_size=4))
    message = refusal(other, tmp_path, workdir=tmp_path / "run")
    assert has_facts(message, "a different config", "seed: 0 ", " 5 ", "train.batch_size: 8 ", " 4 ")


def test_workdir_with_changed_data_is_refused(single: MakeConfig, data: Path, tmp_path: Path) -> None:
    results = run_experiment(single(), workdir=tmp_path / "run")
    lines = (data / "train.jsonl").read_text()
    (data / "train.jsonl").write_text(lines.replace("all of the two", "all of the six"))
    message = refusal(single(), tmp_path, workdir=tmp_path / "run")
    assert has_facts(message, "different inputs", "task one's train rows ", "changed")
    first = lines.splitlines()[0]
    other = first.replace("many", "few") if "many" in first else first.replace("few", "many")
    (data / "train.jsonl").write_text(lines.replace(first, other))
    message = refusal(single(), tmp_path, workdir=tmp_path / "run")
    assert has_facts(message, "different inputs", "task one's train rows ", "changed")
    # The run can be resumed if another file has the same rows.
    (data / "train.jsonl").unlink()
    with gzip.open(data / "train.jsonl.gz", "wt") as file:
        file.write(lines)
    assert run_experiment(single(), workdir=tmp_path / "run") == results
    (tmp_path / "run" / "inputs.json").write_text('{"the trunk"')
    assert "inputs.json" in refusal(single(), tmp_path, workdir=tmp_path / "run")


def test_name_that_exists_in_the_store_is_refused(single: MakeConfig, fusion: MakeConfig, tmp_path: Path) -> None:
    shared = {"store_folder": tmp_path / "store"}
    run_experiment(single("one"), workdir=tmp_path / "one", **shared)
    message = refusal(single("one", seed=1), tmp_path, **shared)
    assert has_facts(message, '"one" in adapters and heads', "--config.name=NAME")
    assert '"one" in heads' in refusal(single("one", partition="head"), tmp_path, **shared)
    # The same workdir can then be used for a config with another name.
    run_experiment(single("one", partition="head", name="two"), workdir=tmp_path / "refused", **shared)
    # Training the source "two" would overwrite the stored head "two".
    assert '"two" in heads' in refusal(fusion(), tmp_path, workdir=tmp_path / "fusion", **shared)
    message = refusal(fusion(name="two"), tmp_path, workdir=tmp_path / "fusion")
    assert has_facts(message, '"two"', "share", "config.name")


def test_invalid_configs_are_refused_before_anything_is_written(
    single: MakeConfig, fusion: MakeConfig, settings: TrainConfig, tmp_path: Path
) -> None:
    long = dataclasses.replace(settings, max_length=129, buckets=())
    assert "max_length is 129; the trunk" in refusal(single(train=long), tmp_path)
    source = dataclasses.replace(fusion().sources[1], train=long)
    assert "max_length is 129" in refusal(dataclasses.replace(fusion(), sources=(source,)), tmp_path)
    task = dataclasses.replace(single().task, metric="pearson")
    assert has_facts(refusal(single(task=task), tmp_path), '"pearson"', "accuracy")
    message = refusal(single(adapter=AdapterConfig(layers=(2,))), tmp_path)
    assert has_facts(message, "adapter.layers ", "layer 2", "layers 0 to 1")
    assert has_facts(refusal(single(partition="top_k", top_k=3), tmp_path), "top_k is 3", "2 layers")
    message = refusal(fusion(adapter=AdapterConfig(layer_norms=True)), tmp_path)
    assert has_facts(message, "LayerNorms", "adapter.layer_norms=False")
    assert has_facts(refusal(fusion(fusion=FusionConfig(subset=3)), tmp_path), "fusion.subset is 3", "2 adapters")
    kept = FusionConfig(kept=(((0,), (2,)),))
    assert has_facts(refusal(fusion(fusion=kept), tmp_path), "fusion.kept ", "adapter 2", "adapters 0 to 1")
    (tmp_path / "file").write_text("")
    message = refusal(single(), tmp_path, store_folder=tmp_path / "file")
    assert has_facts(message, f"{tmp_path / 'file'} is not a folder")
    message = refusal(single(), tmp_path, workdir=tmp_path / "file")
    assert has_facts(message, f"workdir {tmp_path / 'file'} ", "cannot be ")


def test_adapters_in_different_slots_are_refused_before_training(
    single: MakeConfig, fusion: MakeConfig, tmp_path: Path
) -> None:
    shared = {"store_folder": tmp_path / "store"}
    adapter = AdapterConfig(position="attention")
    run_experiment(single("one", adapter=adapter), workdir=tmp_path / "one", **shared)
    message = refusal(fusion(), tmp_path, **shared)
    assert has_facts(message, '"one"', '"two"', "slots", 'position "attention" and "ffn"')


# Tests of the store that a run uses.


def test_resumed_run_uses_its_original_store(single: MakeConfig, fusion: MakeConfig, tmp_path: Path) -> None:
    run_experiment(single("one"), workdir=tmp_path / "here" / "one", store_folder=tmp_path / "here" / "store")
    workdir = tmp_path / "here" / "fusion"
    results = run_experiment(fusion(), workdir=workdir, store_folder=tmp_path / "here" / "store")
    before = contents(tmp_path)
    assert run_experiment(fusion(), workdir=workdir) == results
    assert contents(tmp_path) == before
    message = refusal(fusion(), tmp_path, workdir=workdir, store_folder=tmp_path / "other")
    assert has_facts(message, f"store {tmp_path / 'here' / 'store'}", f"not {tmp_path / 'other'}")

    # If the workdir and its store are moved together, the run still finds the store, even through a symbolic link.
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "link").symlink_to(tmp_path / "there" / "fusion")
    before = contents(tmp_path)
    assert run_experiment(fusion(), workdir=tmp_path / "there" / "fusion") == results
    assert run_experiment(fusion(), workdir=tmp_path / "link") == results
    assert contents(tmp_path) == before

    # If only the store is moved, one command must name its new path. The workdir then records the path.
    (tmp_path / "there" / "store").rename(tmp_path / "store")
    workdir = tmp_path / "there" / "fusion"
    assert has_facts(refusal(fusion(), tmp_path, workdir=workdir), "missing", "(one)", "--store")
    assert run_experiment(fusion(), workdir=workdir, store_folder=tmp_path / "store") == results
    assert run_experiment(fusion(), workdir=workdir) == results
    assert not (tmp_path / "there" / "store").exists()
    for text in ("[", "[]", "{}", '{"store": ""}', '{"store": 3}'):
        (workdir / "store.json").write_text(text)
        assert "store.json" in refusal(fusion(), tmp_path, workdir=workdir)


def test_fusion_with_changed_adapters_is_not_resumed(fusion: MakeConfig, tmp_path: Path) -> None:
    results = run_experiment(fusion(), workdir=tmp_path / "run")
    store_folder = tmp_path / "run" / "store"
    shutil.copytree(store_folder, tmp_path / "copy")
    # Deleting the result simulates a run that was killed after its last checkpoint.
    (tmp_path / "run" / "target" / "result.json").unlink()
    manifest = store.read_manifest(store_folder, "adapters", "one")
    params = jax.tree.map(lambda leaf: leaf + 1, load_adapter(store_folder, "one")[1])
    draft = store.Draft("adapters", "one", params, config=manifest.config, trunk=manifest.trunk, task=manifest.task)
    store.save(store_folder, dataclasses.replace(draft, metrics=manifest.metrics), overwrite=True)
    with pytest.raises(UserError, match=r"adapter one .*changed"):
        run_experiment(fusion(), workdir=tmp_path / "run")
    shutil.rmtree(store_folder)
    shutil.move(tmp_path / "copy", store_folder)
    assert run_experiment(fusion(), workdir=tmp_path / "run") == results


# Tests of fusions of stored adapters. They do not need the adapters' training data.


@pytest.fixture
def stored_one(single: MakeConfig, tmp_path: Path, data: Path) -> tuple[Path, Path]:
    """Makes a store with the adapter "one".

    Returns:
      ``(store, data)``. The folder ``data`` does not exist.
    """
    run_experiment(single("one"), workdir=tmp_path / "one", store_folder=tmp_path / "store")
    return tmp_path / "store", tmp_path / "nowhere"


def without_data(config: ExperimentConfig, folder: Path) -> ExperimentConfig:
    """Returns the config with ``folder`` as the first source's data folder."""
    first, *others = config.sources
    first = dataclasses.replace(first, task=dataclasses.replace(first.task, source=str(folder)))
    return dataclasses.replace(config, sources=(first, *others))


@pytest.mark.parametrize("is_imported", [False, True])
def test_stored_source_is_reported_with_its_stored_metric(
    is_imported: bool, fusion: MakeConfig, single: MakeConfig, stored_one: tuple[Path, Path], tmp_path: Path
) -> None:
    store_folder, _ = stored_one
    if is_imported:  # An imported adapter has no task and no scores.
        one = store.load(store_folder, "adapters", "one")
        about = {"config": one.manifest.config, "trunk": one.manifest.trunk}
        store_folder = tmp_path / "imported"
        store.save(store_folder, store.Draft("adapters", "one", one.params, **about))
    config = fusion(("one",))
    source = dataclasses.replace(config.sources[0], task=dataclasses.replace(config.sources[0].task, metric="matthews"))
    config = dataclasses.replace(config, sources=(source,))
    shared = {"workdir": tmp_path / "fusion", "store_folder": store_folder}
    stored, _ = run_experiment(config, **shared)
    if is_imported:
        assert stored.main_metric == "matthews"
        assert np.isnan(stored.metrics["matthews"])
    else:
        assert stored.main_metric == "accuracy"
        assert stored.metrics == store.read_manifest(store_folder, "adapters", "one").metrics
    # The second call reads the recorded results.
    again, _ = run_experiment(config, **shared)
    assert again.main_metric == stored.main_metric


def test_stored_source_needs_no_rows_and_its_digest_is_recorded(
    fusion: MakeConfig, stored_one: tuple[Path, Path], tmp_path: Path, data: Path
) -> None:
    store_folder, nowhere = stored_one
    shared = {"workdir": tmp_path / "fusion", "store_folder": store_folder}
    config = without_data(fusion(("one",)), nowhere)
    results = run_experiment(config, **shared)
    assert summary(results) == [("one", "adapter (from the store)", "one"), ("two-fusion", "fusion", "two")]
    inputs = json.loads((tmp_path / "fusion" / "inputs.json").read_text())
    digest = store.read_manifest(store_folder, "adapters", "one").digest
    assert inputs["the adapter one"] == digest
    assert {name for name in inputs if name.endswith(" rows")} == {"task two's train rows", "task two's dev rows"}
    run = json.loads((tmp_path / "fusion" / "target" / "run.json").read_text())
    assert run["inputs"]["the adapter one"] == digest

    # The run may be resumed with or without the source's rows, but not with another adapter.
    before = contents(tmp_path)
    assert run_experiment(config, **shared) == results
    assert run_experiment(fusion(("one",)), **shared) == results
    assert contents(tmp_path) == before
    other = dataclasses.replace(config, seed=1)
    assert "seed: 0 recorded, 1 given" in refusal(other, tmp_path, **shared)
    renamed = dataclasses.replace(config.sources[0], task=dataclasses.replace(config.sources[0].task, name="three"))
    assert "three" in refusal(dataclasses.replace(config, sources=(renamed,)), tmp_path, **shared)
    manifest, tree = store.read_manifest(store_folder, "adapters", "one"), load_adapter(store_folder, "one")[1]
    changed = jax.tree.map(lambda leaf: leaf + 1, tree)
    draft = store.Draft("adapters", "one", changed, config=manifest.config, trunk=manifest.trunk)
    store.save(store_folder, draft, overwrite=True)
    assert has_facts(refusal(config, tmp_path, **shared), "adapter one ", "changed")
    shutil.rmtree(store_folder / "adapters" / "one")
    assert has_facts(refusal(config, tmp_path, **shared), "missing", "(one)")
    # The run is also refused if it was killed before the fusion started.
    shutil.rmtree(tmp_path / "fusion" / "target")
    assert has_facts(refusal(config, tmp_path, **shared), "missing", "(one)")


def test_fusion_started_by_an_earlier_version_still_checks_source_rows(
    fusion: MakeConfig, stored_one: tuple[Path, Path], tmp_path: Path, data: Path
) -> None:
    store_folder, nowhere = stored_one
    shared = {"workdir": tmp_path / "fusion", "store_folder": store_folder}
    results = run_experiment(fusion(("one",)), **shared)
    # Earlier versions recorded digests of every source's rows, but no digests of adapters.
    path = tmp_path / "fusion" / "inputs.json"
    inputs = json.loads(path.read_text())
    del inputs["the adapter one"]
    rows = {f"source one's {split} rows": inputs[f"task two's {split} rows"] for split in ("train", "dev")}
    path.write_text(json.dumps({**inputs, **rows}))
    assert run_experiment(fusion(("one",)), **shared) == results
    assert "sources.0.task.source" in refusal(without_data(fusion(("one",)), nowhere), tmp_path, **shared)
    path.write_text(json.dumps({**inputs, **rows, "source one's train rows": "0" * 64}))
    assert has_facts(refusal(fusion(("one",)), tmp_path, **shared), "source one's train rows ", "changed")
    path.write_text(json.dumps(inputs))
    assert "damaged" in refusal(fusion(("one",)), tmp_path, **shared)


def test_source_without_rows_or_adapter_is_refused_with_a_suggestion(
    fusion: MakeConfig, stored_one: tuple[Path, Path], tmp_path: Path
) -> None:
    store_folder, nowhere = stored_one
    config = without_data(fusion(("onee", "two")), nowhere)
    message = refusal(config, tmp_path, store_folder=store_folder)
    assert str(nowhere) in message
    assert 'Did you mean "one"?' in message


# Tests of multitask and sequential experiments.


PAL = PalConfig(size=4, num_heads=2)


@pytest.fixture
def two_tasks(data: Path, settings: TrainConfig, tiny_trunk_folder: Path) -> MakeConfig:
    """Returns a function that makes the config of an experiment on two tasks."""

    def make(**kwargs: Any) -> ExperimentConfig:
        values = {
            "recipe": "multitask",
            "trunk": str(tiny_trunk_folder),
            "tasks": tuple(TaskConfig(name=name, source=str(data)) for name in ("one", "two")),
            "partition": "adapter+trunk",
            "adapter": PAL,
            "train": settings,
        }
        return ExperimentConfig(**{**values, **kwargs})

    return make


def test_jointly_trained_adapters_are_fused_on_their_trunk(
    two_tasks: MakeConfig, fusion: MakeConfig, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    results = run_experiment(two_tasks(), workdir=tmp_path / "mt", store_folder=tmp_path / "store")
    assert summary(results) == [("one", "adapter+trunk, multitask", "one"), ("two", "adapter+trunk, multitask", "two")]
    trunk = load_trunk(str(tmp_path / "mt" / "trunk"))
    for kind in ("adapters", "heads"):
        assert store.names(tmp_path / "store", kind) == ["one", "two"]
        identities = [store.read_manifest(tmp_path / "store", kind, name).trunk for name in ("one", "two")]
        assert {(identity["name"], identity["sha256"]) for identity in identities} == {(trunk.name, trunk.sha256)}
    before = contents(tmp_path)
    assert run_experiment(two_tasks(), workdir=tmp_path / "mt", store_folder=tmp_path / "store") == results
    assert contents(tmp_path) == before

    # The adapters were trained together with the trunk, so fusing them on the original trunk is refused.
    shared = {"store_folder": tmp_path / "store"}
    assert has_facts(refusal(fusion(adapter=PAL), tmp_path, **shared), 'adapter "one"', "trunk", "differs")
    fused = run_experiment(fusion(trunk=trunk.name), workdir=tmp_path / "fusion", **shared)
    assert summary(fused) == [
        ("one", "adapter (from the store)", "one"),
        ("two", "adapter (from the store)", "two"),
        ("two-fusion", "fusion", "two"),
    ]
    manifest = store.read_manifest(tmp_path / "store", "fusion", "two-fusion")
    assert [member["name"] for member in manifest.adapters] == ["one", "two"]
    assert store.verify(tmp_path / "store") == []


def test_multitask_experiments_with_different_names_share_a_store(two_tasks: MakeConfig, tmp_path: Path) -> None:
    shared = {"store_folder": tmp_path / "store"}
    run_experiment(two_tasks(name="pals"), workdir=tmp_path / "pals", **shared)
    results = run_experiment(two_tasks(name="shared", partition="full"), workdir=tmp_path / "shared", **shared)
    assert summary(results) == [("shared-one", "full, multitask", "one"), ("shared-two", "full, multitask", "two")]
    assert store.names(tmp_path / "store", "heads") == ["pals-one", "pals-two", "shared-one", "shared-two"]
    assert store.names(tmp_path / "store", "adapters") == ["pals-one", "pals-two"]
    assert '"pals-one" in adapters and heads' in refusal(two_tasks(name="pals", seed=1), tmp_path, **shared)


def test_forgetting_curve_is_written(two_tasks: MakeConfig, tmp_path: Path) -> None:
    config = two_tasks(recipe="sequential", partition="full")
    results = run_experiment(config, workdir=tmp_path / "run")
    assert summary(results) == [("one", "after one", "one"), ("one", "after two", "one"), ("two", "after two", "two")]
    lines = (tmp_path / "run" / "forgetting.csv").read_text().splitlines()
    scores = [f"{result.metrics['accuracy']:.4f}" for result in results]
    assert lines == ["after,one (accuracy),two (accuracy)", f"one,{scores[0]},", f"two,{scores[1]},{scores[2]}"]
    trunk = load_trunk(str(tmp_path / "run" / "trunk"))
    assert {
        store.read_manifest(tmp_path / "run" / "store", "heads", name).trunk["sha256"] for name in ("one", "two")
    } == {trunk.sha256}
    before = contents(tmp_path)
    assert run_experiment(config, workdir=tmp_path / "run") == results
    assert contents(tmp_path) == before


def test_invalid_multitask_data_is_refused(
    two_tasks: MakeConfig, data: Path, settings: TrainConfig, tmp_path: Path
) -> None:
    tasks = two_tasks().tasks
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "train.jsonl").write_text("")
    (tmp_path / "empty" / "dev.jsonl").write_text((data / "dev.jsonl").read_text())
    empty = TaskConfig(name="empty", source=str(tmp_path / "empty"))
    assert "has no rows" in refusal(two_tasks(tasks=(*tasks, empty)), tmp_path)
    scored = dataclasses.replace(tasks[1], metric="pearson")
    assert has_facts(refusal(two_tasks(tasks=(tasks[0], scored)), tmp_path), '"pearson"', "accuracy")
    for recipe in ("multitask", "sequential"):
        deep = two_tasks(recipe=recipe, adapter=PalConfig(size=4, num_heads=2, layers=(0, 2)))
        assert has_facts(refusal(deep, tmp_path), "adapter.layers ", "layer 2", "layers 0 to 1")
        top = two_tasks(recipe=recipe, partition="top_k", top_k=3)
        assert has_facts(refusal(top, tmp_path), "top_k is 3", "2 layers")
        long = dataclasses.replace(settings, max_length=129, buckets=())
        assert "max_length is 129; the trunk" in refusal(two_tasks(recipe=recipe, train=long), tmp_path)


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"tasks": ()}, ("config.tasks is missing", "multitask")),
        ({"task": TaskConfig(name="one")}, ("config.task is set", "multitask", "config.tasks")),
        ({"tasks": (TaskConfig(name="one"),) * 2}, ("config.tasks ", "two tasks", "one;")),
        ({"partition": "fusion"}, ('partition="fusion"', "fusion recipe")),
        ({"adapter": AdapterConfig(layer_norms=True)}, ("adapter.layer_norms=False",)),
        ({"recipe": "single"}, ("config.task is missing", "single")),
        ({"seed": -1}, ("seed is -1",)),
        ({"sources": (SourceConfig(task=TaskConfig(name="x")),)}, ("config.sources ", "multitask")),
    ],
)
def test_invalid_multitask_configs_are_refused(
    two_tasks: MakeConfig, changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as raised:
        two_tasks(**changes)
    assert has_facts(str(raised.value), *facts)


def test_trunk_pooler_is_refused_if_the_trunk_has_no_pooler(
    single: MakeConfig, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_trunk_folder, tmp_path / "trunk")
    tensors = load_file(tmp_path / "trunk" / "model.safetensors")
    save_file(
        {name: part for name, part in tensors.items() if "pooler" not in name}, tmp_path / "trunk" / "model.safetensors"
    )
    config = single(trunk=str(tmp_path / "trunk"), head=HeadConfig(pooler="trunk"))
    assert has_facts(refusal(config, tmp_path), "trunk", "no pooler", "head.pooler")


# Tests of damaged or untrusted workdirs, and of settings that cannot be trained.

DAMAGED = ["null", '"x"', "{", "[" * 5000, '{"a":' * 200 + "1" + "}" * 200]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[(name, text) for name in ("config.json", "inputs.json", "store.json") for text in (*DAMAGED, "[]")],
        *[("target/result.json", text) for text in (*DAMAGED, "[{}]", "[1]", "{}")],
        ("target/result.json", '[{"name": 1, "kind": "", "task": "", "metrics": {}, "main_metric": ""}]'),
    ],
)
def test_damaged_workdir_file_is_refused_by_name(
    single: MakeConfig, tmp_path: Path, finished: Path, name: str, text: str
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    assert Path(name).name in refusal(single(), tmp_path, workdir=tmp_path / "run")


def test_workdir_cannot_redirect_a_run_to_a_folder_that_is_not_a_store(
    single: MakeConfig, tmp_path: Path, finished: Path
) -> None:
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "passwords").write_text("secret")
    path = tmp_path / "run" / "store.json"
    for named in ("../private", str(tmp_path / "private"), "../private/passwords"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "store": named}))
        assert str(tmp_path / "private") in refusal(single(), tmp_path, workdir=tmp_path / "run")
    # The folder is accepted if the user names it as the store.
    path.write_text(json.dumps({**json.loads(path.read_text()), "store": "../private"}))
    run_experiment(single(), workdir=tmp_path / "run", store_folder=tmp_path / "private")
    assert store.names(tmp_path / "private", "adapters") == ["one"]


def test_adapter_too_large_for_memory_is_refused_before_the_workdir_is_claimed(
    single: MakeConfig, tmp_path: Path
) -> None:
    message = refusal(single(adapter=AdapterConfig(size=2_000_000_000)), tmp_path)
    assert "adapter.size" in message
    assert not (tmp_path / "refused").exists()


def test_empty_workdir_is_refused(single: MakeConfig) -> None:
    with pytest.raises(UserError):
        run_experiment(single(), workdir="")  # type: ignore[arg-type]


def test_experiments_in_one_process_load_tokenizer_and_rows_once(
    single: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, tokenizer = list[str](), Trunk.tokenizer

    def counted_tokenizer(self: Trunk) -> Any:
        loaded.append("tokenizer")
        return tokenizer(self)

    def counted_rows(task: TaskConfig) -> Any:
        loaded.append("rows")
        return load_task(task)

    monkeypatch.setattr(Trunk, "tokenizer", counted_tokenizer)
    monkeypatch.setattr(experiment, "load_task", counted_rows)
    shared = Shared()
    for seed in (0, 1):
        run_alone(experiment_training(single(seed=seed), workdir=open_path(tmp_path / str(seed)), shared=shared))
    in_turn = loaded.copy()
    # The trunk's digests need a tokenizer too.
    assert sorted(in_turn) == ["rows", "tokenizer", "tokenizer"]
    own = run_experiment(single(seed=1), workdir=tmp_path / "own")
    assert json.loads((tmp_path / "1/target/result.json").read_text())[0]["metrics"] == own[0].metrics
