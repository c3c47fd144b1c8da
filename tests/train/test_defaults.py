"""Default settings depend on the method and the trunk.

A run that was started by an earlier version keeps the defaults of that version.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from earlier_version import without_record_digest
from etils import epath
from facts import has_facts

from afjax import store
from afjax.cli.experiments import load_experiment
from afjax.cli.sweep_plan import Sweep, plan
from afjax.config.adapters import AdapterConfig
from afjax.config.defaults import LEARNING_RATES
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.from_dict import to_dict
from afjax.config.heads import HeadConfig
from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.config.values import Partition, Pooling
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.interop.adapterhub import export_adapterhub
from afjax.model.loading import load_task_model
from afjax.train import defaults
from afjax.train.defaults import choose_defaults, choose_learning_rate, choose_pooling
from afjax.train.experiment import run_experiment
from afjax.train.fusion import train_fusion
from afjax.train.multitask import train_multitask
from afjax.train.options import RunOptions
from afjax.train.record import setting_differences
from afjax.train.single import train_single
from afjax.trunk.pretrained import Trunk, find_pooling, load_trunk
from afjax.trunk.sizes import size_pooling

ADAPTER = AdapterConfig(size=2)
# Configs that an earlier version recorded. tests/golden/make_workdir_configs.py wrote this file.
WORKDIR_CONFIGS = Path(__file__).parents[1] / "golden/workdir_configs.json"


def no_trunk() -> Pooling:
    raise AssertionError("the trunk's pooling must not be looked up")


@pytest.fixture(scope="module")
def mean_trunk(tiny_trunk_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Trunk:
    """Returns the tiny trunk as a sentence-transformers model with mean pooling."""
    folder = tmp_path_factory.mktemp("trunks") / "mean"
    shutil.copytree(tiny_trunk_folder, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return load_trunk(str(folder))


@pytest.fixture(scope="module")
def settings(tiny: TrainConfig) -> TrainConfig:
    return dataclasses.replace(tiny, max_steps=2, eval_every=1, checkpoint_every=1)


@pytest.mark.parametrize("trained", ["head", "adapter", "fusion", "layernorm"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_heads_on_a_frozen_trunk_use_the_pooling_of_the_trunk(trained: Partition, pooling: Pooling) -> None:
    assert choose_pooling(HeadConfig(), trained, lambda: pooling, {}).pooling == pooling


@pytest.mark.parametrize("trained", ["full", "top_k", "adapter+trunk"])
def test_heads_on_a_trained_trunk_read_the_first_token(trained: Partition) -> None:
    assert choose_pooling(HeadConfig(), trained, no_trunk, {}).pooling == "first"


def test_explicit_pooling_is_kept() -> None:
    given = HeadConfig(pooling="mean", dropout=0.5)
    assert choose_pooling(given, "full", no_trunk, {"head.pooling": "first"}) == given


def test_resumed_run_keeps_the_former_pooling() -> None:
    assert choose_pooling(HeadConfig(), "adapter", lambda: "mean", {"head.pooling": "first"}).pooling == "first"
    assert choose_pooling(HeadConfig(), "adapter", lambda: "mean", {"head.pooling": "mean"}).pooling == "mean"
    # "mean" was never the default for this trunk, so the recorded run set it explicitly. The current default is used.
    assert choose_pooling(HeadConfig(), "adapter", lambda: "first", {"head.pooling": "mean"}).pooling == "first"


def test_resumed_run_keeps_the_former_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "FORMER_LEARNING_RATE", 0.125)
    config = TrainConfig()
    assert choose_learning_rate(config, "adapter", {"train.learning_rate": 0.125}).learning_rate == 0.125
    for recorded in ({}, {"train.learning_rate": 0.5}):
        assert choose_learning_rate(config, "adapter", recorded).learning_rate == LEARNING_RATES["adapter"]
    given = TrainConfig(learning_rate=0.25)
    assert choose_learning_rate(given, "adapter", {"train.learning_rate": 0.125}) == given


def test_fusion_sources_use_the_default_learning_rate_of_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(defaults, "FORMER_LEARNING_RATE", 0.125)
    monkeypatch.setattr(defaults, "LEARNING_RATES", {"adapter": 0.25, "fusion": 0.75})
    sources = tuple(SourceConfig(task=TaskConfig(name=name)) for name in "ab")
    config = ExperimentConfig(recipe="fusion", task=TaskConfig(name="c"), sources=sources)
    new = choose_defaults(config, lambda: "mean", {})
    assert (new.head.pooling, new.train.learning_rate) == ("mean", 0.75)
    assert [source.train.learning_rate for source in new.sources] == [0.25, 0.25]
    resumed = choose_defaults(config, lambda: "mean", {"head.pooling": "first", "sources.1.train.learning_rate": 0.125})
    assert (resumed.head.pooling, resumed.train.learning_rate) == ("first", 0.75)
    assert [source.train.learning_rate for source in resumed.sources] == [0.25, 0.125]


def test_default_pooling_of_a_trunk(mean_trunk: Trunk, tiny_trunk: Trunk) -> None:
    for trunk, expected in ((mean_trunk, "mean"), (tiny_trunk, "first")):
        assert trunk.pooling == expected
        assert find_pooling(trunk.name) == expected
        assert size_pooling(trunk.name) == expected
    assert dataclasses.replace(mean_trunk, folder=None).pooling == "first"
    assert (size_pooling("minilm"), size_pooling("bert-base")) == ("mean", "first")
    assert find_pooling("minilm") == "mean"


def test_trunk_with_an_unsupported_pooling_needs_an_explicit_one(
    mean_trunk: Trunk, tmp_path: Path, task: TaskConfig, rows: Mapping[str, Rows], settings: TrainConfig
) -> None:
    assert mean_trunk.folder is not None
    shutil.copytree(mean_trunk.folder, tmp_path / "max")
    file = tmp_path / "max" / "1_Pooling" / "config.json"
    file.write_text('{"pooling_mode_max_tokens": true}')
    trunk = load_trunk(str(tmp_path / "max"))
    with pytest.raises(UserError) as refused:
        train_single(trunk, task, rows, workdir=tmp_path / "run", config=settings)
    assert str(file) in str(refused.value)
    assert "head.pooling" in str(refused.value)
    assert not (tmp_path / "run").exists()


# Tests of complete runs.


Train = Callable[..., Any]


@pytest.fixture
def train(
    mean_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], settings: TrainConfig, tmp_path: Path
) -> Train:
    def run(head: HeadConfig = HeadConfig(), partition: Partition = "adapter", **changes: Any) -> Any:
        method = Method(adapter=ADAPTER, head=head, partition=partition)
        options = RunOptions(**changes)
        folder = tmp_path / "run"
        return train_single(mean_trunk, task, rows, workdir=folder, config=settings, method=method, options=options)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("partition", "pooling"), [("adapter", "mean"), ("head", "mean"), ("full", "first")])
def test_run_and_store_record_the_default_pooling(
    train: Train, tmp_path: Path, partition: Partition, pooling: Pooling
) -> None:
    model = train(partition=partition)
    assert model.model.head.pooling == pooling
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["head"]["pooling"] == pooling
    model.save(tmp_path / "store")
    assert store.read_manifest(tmp_path / "store", "heads", "quantity").config["pooling"] == pooling


@pytest.mark.slow
def test_run_of_an_earlier_version_keeps_first_token_pooling(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = train(head=HeadConfig(pooling="first"))
    file = tmp_path / "run" / "run.json"
    record = json.loads(file.read_text())
    for lacks_setting in (False, True):
        if lacks_setting:
            del record["settings"]["head"]["pooling"]
            file.write_text(json.dumps(record))
            without_record_digest(tmp_path / "run")
        capsys.readouterr()
        again = train()
        assert "finished" in capsys.readouterr().err
        assert again.model.head.pooling == "first"
        np.testing.assert_array_equal(
            again.params["heads"]["quantity"]["output"]["kernel"], first.params["heads"]["quantity"]["output"]["kernel"]
        )
    with pytest.raises(UserError) as refused:
        train(head=HeadConfig(pooling="mean"))
    assert has_facts(str(refused.value), "head.pooling: 'first' ", "'mean' ")
    assert train(overwrite=True).model.head.pooling == "mean"


@pytest.mark.slow
def test_stored_head_without_a_pooling_reads_the_first_token(train: Train, tmp_path: Path, mean_trunk: Trunk) -> None:
    train(head=HeadConfig(pooling="first")).save(tmp_path / "store")
    folder = tmp_path / "store"
    manifest = store.read_manifest(folder, "heads", "quantity")
    loaded = store.load(folder, "heads", "quantity")
    config = {name: value for name, value in manifest.config.items() if name != "pooling"}
    facts = {name: getattr(manifest, name) for name in ("task", "labels", "metrics", "seed", "trunk", "trained_with")}
    store.save(folder, store.Draft("heads", "quantity", loaded.params, config=config, **facts), overwrite=True)
    assert "pooling" not in store.read_manifest(folder, "heads", "quantity").config
    model = load_task_model(folder, mean_trunk, adapter="quantity", head="quantity")
    assert model.model.head.pooling == "first"


@pytest.mark.slow
def test_head_with_the_default_pooling_of_a_mean_trunk_is_not_exported_to_adapterhub(
    train: Train, tmp_path: Path
) -> None:
    train().save(tmp_path / "store")
    with pytest.raises(UserError) as refused:
        export_adapterhub(tmp_path / "store", "quantity", tmp_path / "exported")
    assert 'head.pooling="first"' in str(refused.value)


@pytest.mark.slow
def test_fusion_and_multitask_recipes_choose_a_default_pooling(
    train: Train, mean_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], settings: TrainConfig, tmp_path: Path
) -> None:
    train().save(tmp_path / "store")
    fusion = FusionMethod(adapters=("quantity",), store=tmp_path / "store")
    fused = train_fusion(mean_trunk, task, rows, fusion, workdir=tmp_path / "fusion", config=settings)
    assert fused.model.head.pooling == "mean"
    expected: dict[Partition, Pooling] = {"adapter": "mean", "adapter+trunk": "first"}
    for partition, pooling in expected.items():
        method = MultitaskMethod(adapter=ADAPTER, partition=partition)
        folder = tmp_path / partition
        models = train_multitask(mean_trunk, [task], {task.name: rows}, workdir=folder, method=method, config=settings)
        assert models[task.name].model.head.pooling == pooling


@pytest.mark.slow
def test_experiment_records_its_defaults_and_keeps_recorded_ones(
    mean_trunk: Trunk, task: TaskConfig, settings: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ExperimentConfig(
        trunk=mean_trunk.name,
        task=TaskConfig(name="entail", source="builtin:entail", train_rows=16),
        adapter=ADAPTER,
        train=dataclasses.replace(settings, learning_rate=None),
    )
    workdir = epath.Path(tmp_path / "run")
    run_experiment(config, workdir=workdir)
    file = tmp_path / "run" / "config.json"
    recorded = json.loads(file.read_text())
    assert recorded["head"]["pooling"] == "mean"
    assert recorded["train"]["learning_rate"] == LEARNING_RATES["adapter"]
    # An earlier version recorded other defaults. A resumed run keeps the recorded defaults.
    monkeypatch.setattr(defaults, "FORMER_LEARNING_RATE", 0.125)
    old = dataclasses.replace(
        config, head=HeadConfig(pooling="first"), train=dataclasses.replace(config.train, learning_rate=0.125)
    )
    earlier = epath.Path(tmp_path / "old")
    results = run_experiment(old, workdir=earlier)
    record = json.loads((tmp_path / "old" / "config.json").read_text())
    del record["head"]["pooling"]
    (tmp_path / "old" / "config.json").write_text(json.dumps(record))
    assert run_experiment(config, workdir=earlier) == results
    with pytest.raises(UserError) as refused:
        run_experiment(dataclasses.replace(config, head=HeadConfig(pooling="mean")), workdir=earlier)
    assert has_facts(str(refused.value), "head.pooling: 'first' ", "'mean' ")


@pytest.mark.slow
def test_sweep_accepts_runs_with_former_defaults(mean_trunk: Trunk, tmp_path: Path) -> None:
    overrides = (f"trunk={mean_trunk.name}",)

    def plan_again() -> Sweep:
        return plan("single", overrides=overrides, grid=["train.epochs=1.0,2.0"], seeds="0", workdir=tmp_path)

    sweep = plan_again()
    folder = tmp_path / "runs" / sweep.runs[0].name
    folder.mkdir(parents=True)
    experiment = load_experiment("single", [*overrides, *sweep.runs[0].overrides])
    recorded = to_dict(choose_defaults(experiment, lambda: "mean", {"head.pooling": "first"}))
    (folder / "config.json").write_text(json.dumps(recorded))
    assert plan_again().runs == sweep.runs
    recorded["train"]["learning_rate"] = 0.3
    (folder / "config.json").write_text(json.dumps(recorded))
    with pytest.raises(UserError) as refused:
        plan_again()
    assert "train.learning_rate: 0.3 recorded" in str(refused.value)


@pytest.mark.parametrize("name", json.loads(WORKDIR_CONFIGS.read_text()))
def test_workdirs_of_an_earlier_version_have_the_same_config(name: str) -> None:
    """Checks that runs of an earlier version can be resumed.

    If this test fails because of a new setting, add the setting to ``FORMER_SETTINGS``.
    """
    recorded = json.loads(WORKDIR_CONFIGS.read_text())[name]
    assert setting_differences(recorded, to_dict(load_experiment(name, []))) == []
