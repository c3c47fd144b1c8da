"""Only one of several runs can save to a store under the same name."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

from afjax import store
from afjax.config.experiment import ExperimentConfig
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.errors import UserError
from afjax.train import experiment_runs
from afjax.train.experiment import run_experiment

pytestmark = pytest.mark.slow

SETTINGS = TrainConfig(learning_rate=1e-2, max_steps=2, batch_size=8, max_length=8, buckets=(8,), eval_every=2)
Start = Callable[..., Any]


@pytest.fixture
def start(data: Path, tiny_trunk_folder: Path, tmp_path: Path) -> Start:
    """Returns a function that runs an experiment in a workdir.

    All runs save to the same store, by default under the name ``quantity``.
    """

    def run(workdir: str, **changes: Any) -> Any:
        task = TaskConfig(name="quantity", source=str(data))
        config = ExperimentConfig(**{"trunk": str(tiny_trunk_folder), "task": task, "train": SETTINGS, **changes})
        return run_experiment(config, workdir=tmp_path / workdir, store_folder=tmp_path / "store")

    return run


@pytest.fixture
def unfinished(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a run in the workdir ``first`` that was killed during training."""

    class Killed(BaseException):
        pass

    def killed(*_: Any, **__: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(experiment_runs, "single_training", killed)
        with pytest.raises(Killed):
            start("first")


def workdirs(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if path.name not in ("data", "store"))


@pytest.mark.usefixtures("unfinished")
def test_second_run_is_refused_before_it_trains(start: Start, tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        start("second", seed=1)
    assert str(tmp_path / "first") in str(refused.value)
    assert "--config.name" in str(refused.value)
    assert workdirs(tmp_path) == ["first"]
    assert start("second", name="other")
    assert start("first")
    assert store.names(tmp_path / "store", "heads") == ["other", "quantity"]
    with pytest.raises(UserError):
        start("third", seed=1)


@pytest.mark.usefixtures("unfinished")
def test_deleting_a_workdir_frees_its_names(start: Start, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "first")
    assert start("second", seed=1)


@pytest.mark.usefixtures("unfinished")
def test_run_whose_names_were_taken_resumes_after_they_are_free(start: Start, tmp_path: Path) -> None:
    # The moved workdir no longer reserves the names.
    (tmp_path / "first").rename(tmp_path / "moved")
    start("second", seed=1)
    with pytest.raises(UserError) as refused:
        start("moved")
    assert has_facts(str(refused.value), '"quantity"', "adapters and heads", "move them out of the store")
    for kind in ("adapters", "heads"):
        (tmp_path / "store" / kind / "quantity").rename(tmp_path / kind)
    assert start("moved")
    assert store.verify(tmp_path / "store") == []


def test_repeated_run_only_overwrites_its_own_artifacts(start: Start, tmp_path: Path) -> None:
    results = start("first")
    shutil.copytree(tmp_path / "store", tmp_path / "before")
    # Deleting the result simulates a run that was killed after it saved its artifacts.
    (tmp_path / "first" / "target" / "result.json").unlink()
    assert start("first") == results
    shutil.rmtree(tmp_path / "store")
    start("second", seed=1)
    (tmp_path / "first" / "target" / "result.json").unlink()
    with pytest.raises(UserError) as refused:
        start("first")
    assert "another run" in str(refused.value)


CONFIG = """
import ml_collections

def get_config(seed=0):
    config = ml_collections.ConfigDict()
    config.trunk = {trunk!r}
    config.seed = seed
    config.task = {{"name": "quantity", "source": {data!r}}}
    config.train = {train!r}
    return config
"""


def test_one_of_two_concurrent_commands_saves_all_of_its_artifacts(
    data: Path, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    train = {"max_steps": 2, "batch_size": 8, "max_length": 8, "buckets": (8,), "eval_every": 2, "learning_rate": 1e-2}
    config = tmp_path / "config.py"
    config.write_text(CONFIG.format(trunk=str(tiny_trunk_folder), data=str(data), train=train))
    commands = [
        [sys.executable, "-m", "afjax", "train", f"--config={config}:seed={seed}", f"--workdir={tmp_path / str(seed)}"]
        for seed in (0, 1)
    ]
    processes = [
        subprocess.Popen([*command, f"--store={tmp_path / 'store'}"], stderr=subprocess.PIPE, text=True)
        for command in commands
    ]
    errors = [process.communicate(timeout=600)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert sorted(codes) == [0, 2], errors
    winner, loser = codes.index(0), codes.index(2)
    run = json.loads((tmp_path / str(winner) / "store.json").read_text())["run"]
    assert store.verify(tmp_path / "store") == []
    manifests = store.entries(tmp_path / "store")
    saved = [(manifest.kind, manifest.name, manifest.seed, manifest.run) for manifest in manifests]
    assert saved == [(kind, "quantity", winner, run) for kind in ("adapters", "heads")]
    assert has_facts(errors[loser].splitlines()[-1], "afjax: ", "quantity", "--store")
    assert not (tmp_path / str(loser) / "target").exists()
