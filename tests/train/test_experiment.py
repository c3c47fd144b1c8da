"""Whole experiments: what is trained, what is reused, what is refused before anything is written."""

import dataclasses
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from afjax import store
from afjax.architecture import AdapterConfig
from afjax.config import ExperimentConfig, SourceConfig, TaskConfig, TrainConfig
from afjax.errors import UserError
from afjax.train.experiment import Result, run_experiment
from afjax.trunk import load_trunk

pytestmark = pytest.mark.usefixtures("training")


@pytest.fixture
def settings(tiny: TrainConfig) -> TrainConfig:
    return dataclasses.replace(tiny, max_steps=2, eval_every=2)


MakeConfig = Callable[..., ExperimentConfig]


@pytest.fixture
def fusion(data: Path, settings: TrainConfig, tiny_trunk_folder: Path) -> MakeConfig:
    """The config of a fusion of the sources one and two (and perhaps others) for the task two."""

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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def summary(results: list[Result]) -> list[tuple[str, str, str]]:
    return [(result.name, result.kind, result.task) for result in results]


def refusal(config: ExperimentConfig, tmp_path: Path, **kwargs: Any) -> str:
    """The sentence with which an experiment is refused; nothing may have been written."""
    before = contents(tmp_path)
    with pytest.raises(UserError) as raised:
        run_experiment(config, **{"workdir": tmp_path / "refused", **kwargs})
    assert contents(tmp_path) == before
    return str(raised.value)


def test_missing_sources_are_trained_and_stored_ones_reused(
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
    assert 'The store has the adapter "one"; it is used as it is.' in capsys.readouterr().err
    assert all(0 <= result.metrics["accuracy"] <= 1 for result in results)
    assert store.read_manifest(tmp_path / "store", "adapters", "one") == stored
    assert store.names(tmp_path / "store", "adapters") == ["one", "two"]
    assert store.names(tmp_path / "store", "heads") == ["one", "two", "two-fusion"]
    members = store.read_manifest(tmp_path / "store", "fusion", "two-fusion").adapters
    assert [member["name"] for member in members] == ["one", "two"]
    assert store.verify(tmp_path / "store") == []

    # The same again changes nothing, wherever it looks.
    before = contents(tmp_path)
    assert run_experiment(fusion(), workdir=tmp_path / "fusion", **shared) == results
    assert contents(tmp_path) == before


def test_only_what_fused_names_is_fused(fusion: MakeConfig, tmp_path: Path) -> None:
    results = run_experiment(fusion(fused=("one",), name="mixed"), workdir=tmp_path / "run")
    assert [result.name for result in results] == ["one", "two", "mixed"]
    members = store.read_manifest(tmp_path / "run" / "store", "fusion", "mixed").adapters
    assert [member["name"] for member in members] == ["one"]


def test_a_trained_trunk_is_saved_beside_its_head(single: MakeConfig, tiny_trunk_folder: Path, tmp_path: Path) -> None:
    results = run_experiment(single(partition="layernorm"), workdir=tmp_path / "run")
    assert summary(results) == [("one", "layernorm", "one")]
    identity = store.read_manifest(tmp_path / "run" / "store", "heads", "one").trunk
    trunk = load_trunk(str(tmp_path / "run" / "trunk"))
    assert (identity["name"], identity["sha256"]) == (trunk.name, trunk.sha256)
    assert trunk.sha256 != load_trunk(str(tiny_trunk_folder)).sha256
    assert store.names(tmp_path / "run" / "store", "adapters") == []


def test_a_workdir_with_another_config_is_refused_with_the_difference(single: MakeConfig, tmp_path: Path) -> None:
    config = single()
    run_experiment(config, workdir=tmp_path / "run")
    other = dataclasses.replace(config, seed=5, train=dataclasses.replace(config.train, batch_size=4))
    sentence = refusal(other, tmp_path, workdir=tmp_path / "run")
    assert "holds a run with another config (seed: 0 there, 5 given; train.batch_size: 8 there, 4 given)" in sentence


def test_a_workdir_whose_data_changed_since_is_refused(single: MakeConfig, data: Path, tmp_path: Path) -> None:
    results = run_experiment(single(), workdir=tmp_path / "run")
    lines = (data / "train.jsonl").read_text()
    (data / "train.jsonl").write_text(lines.replace("all of the two", "all of the six"))
    sentence = refusal(single(), tmp_path, workdir=tmp_path / "run")
    assert "began with other data: task one's train rows changed since" in sentence
    first = lines.splitlines()[0]
    other = first.replace("many", "few") if "many" in first else first.replace("few", "many")
    (data / "train.jsonl").write_text(lines.replace(first, other))
    assert "train rows changed since" in refusal(single(), tmp_path, workdir=tmp_path / "run")
    # The same rows in another file are the same data.
    (data / "train.jsonl").unlink()
    with gzip.open(data / "train.jsonl.gz", "wt") as file:
        file.write(lines)
    assert run_experiment(single(), workdir=tmp_path / "run") == results
    (tmp_path / "run" / "inputs.json").write_text('{"the trunk"')
    assert "inputs.json is damaged" in refusal(single(), tmp_path, workdir=tmp_path / "run")


def test_a_name_that_the_store_has_is_refused(single: MakeConfig, fusion: MakeConfig, tmp_path: Path) -> None:
    shared = {"store_folder": tmp_path / "store"}
    run_experiment(single("one"), workdir=tmp_path / "one", **shared)
    assert 'already has "one" in adapters and heads; give this run another name' in refusal(
        single("one", seed=1), tmp_path, **shared
    )
    assert 'already has "one" in heads' in refusal(single("one", partition="head"), tmp_path, **shared)
    # The refused workdir is free for the config with another name.
    run_experiment(single("one", partition="head", name="two"), workdir=tmp_path / "refused", **shared)
    # Training the source two would replace that head.
    assert 'already has "two" in heads' in refusal(fusion(), tmp_path, workdir=tmp_path / "fusion", **shared)
    assert '"two" would have one name' in refusal(fusion(name="two"), tmp_path, workdir=tmp_path / "fusion")


def test_what_does_not_fit_is_refused_before_anything_is_written(
    single: MakeConfig, fusion: MakeConfig, settings: TrainConfig, tmp_path: Path
) -> None:
    long = dataclasses.replace(settings, max_length=129, buckets=())
    assert "max_length is 129; the trunk" in refusal(single(train=long), tmp_path)
    source = dataclasses.replace(fusion().sources[1], train=long)
    assert "max_length is 129" in refusal(dataclasses.replace(fusion(), sources=(source,)), tmp_path)
    task = dataclasses.replace(single().task, metric="pearson")
    assert 'The metric "pearson" does not fit' in refusal(single(task=task), tmp_path)
    assert "names layer 2, but the trunk has layers 0 to 1" in refusal(
        single(adapter=AdapterConfig(layers=(2,))), tmp_path
    )
    assert "top_k is 3, but the trunk has 2 layers" in refusal(single(partition="top_k", top_k=3), tmp_path)
    assert "carries LayerNorms of its own" in refusal(fusion(adapter=AdapterConfig(layer_norms=True)), tmp_path)
    (tmp_path / "file").write_text("")
    assert f"as {tmp_path / 'file'} is not a folder" in refusal(single(), tmp_path, store_folder=tmp_path / "file")
    assert f"The workdir {tmp_path / 'file'} cannot be " in refusal(single(), tmp_path, workdir=tmp_path / "file")


def test_a_stored_adapter_of_another_slot_is_refused_before_training(
    single: MakeConfig, fusion: MakeConfig, tmp_path: Path
) -> None:
    shared = {"store_folder": tmp_path / "store"}
    adapter = AdapterConfig(position="attention")
    run_experiment(single("one", adapter=adapter), workdir=tmp_path / "one", **shared)
    sentence = refusal(fusion(), tmp_path, **shared)
    assert 'Adapters "one" and "two" sit in different slots (position "attention" and "ffn")' in sentence
