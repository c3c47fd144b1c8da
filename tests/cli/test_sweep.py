"""``afjax sweep`` starts and skips runs, chooses the best setting, writes tables, and refuses invalid flags.

The tests in the first section train. The others use ``--isolate`` and replace each run's process with a stand-in.
"""

import csv
import errno
import fcntl
import functools
import itertools
import json
import logging
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from etils import epath
from facts import has_facts
from fork_server import fork_server

from afjax import store
from afjax.analysis.unfinished import UnfinishedRun, find_unfinished
from afjax.analysis.workdirs import find_experiments
from afjax.cli import sweep_grid, sweep_plan, sweep_progress, sweep_results, sweep_runs, sweep_training, sweep_workers
from afjax.cli.experiments import load_experiment
from afjax.cli.main import main
from afjax.display.terminal import duration
from afjax.distributed import parts
from afjax.store import checkpoint as store_checkpoint
from afjax.train.defaults import choose_defaults
from afjax.train.workdir import claim_workdir

pytestmark = pytest.mark.slow

Refused = Callable[..., str]
Capsys = pytest.CaptureFixture[str]

CONFIG = """
def get_config(task="rte"):
    train = {"max_steps": 2, "batch_size": 8, "max_length": 16, "buckets": (16,)}
    return {"task": {"name": task, "source": "data"}, "trunk": TRUNK, "train": train}
"""
SWEEP = """
def get_sweep():
    return {"train.learning_rate": [1e-3, 1e-4], "adapter.position": ("ffn", "both")}
"""
# An epoch has one step, so a run of many steps would otherwise evaluate, and write a checkpoint, after each step.
LONG = ("--config.train.eval_every=300",)
RATES = "--grid.train.learning_rate=1e-3,3e-4"


def write_config(path: Path, more: str = "", *, trunk: Path | str = "minilm") -> Path:
    path.write_text(f"TRUNK = {str(trunk)!r}\n{CONFIG}{more}")
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Writes a config file with a nonexistent trunk and nonexistent data."""
    return write_config(tmp_path / "rte.py")


@pytest.fixture
def words(config: Path, tmp_path: Path) -> list[str]:
    """Returns a sweep command without swept settings."""
    return ["sweep", f"--config={config}", f"--workdir={tmp_path / 'sweep'}", "--isolate"]


class StandIn:
    """Replaces the ``afjax train`` processes.

    Attributes:
      titles: The settings and seeds of the runs, in order.
      commands: The commands.
      score: Maps a run's ``{setting: value}`` to its score, or None if the run fails.
      metric: Maps a run's ``{setting: value}`` to the name of its main metric.
    """

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.commands: list[list[str]] = []
        self.score: Callable[[dict[str, str]], float | None] = lambda settings: 0.5
        self.metric: Callable[[dict[str, str]], str] = lambda settings: "accuracy"

    def __call__(self, command: Sequence[str], log: Path) -> int:
        given = dict(word.split("=", 1) for word in command if word.startswith("--"))
        settings = {name.removeprefix("--config."): value for name, value in given.items() if "--config." in name}
        self.commands.append(list(command))
        self.titles.append(", ".join(f"{name}={value}" for name, value in settings.items()))
        score = self.score(settings)
        with log.open("a") as file:
            file.write("half of a bar\rthe bar\n" + ("" if score is not None else "afjax: It broke.\n\n"))
        if score is None:
            return 2
        metric = self.metric(settings)
        result = {"name": "rte", "kind": "adapter", "task": "rte", "main_metric": metric}
        write_result(Path(given["--workdir"]), [{**result, "metrics": {"accuracy": 0.0, "f1": 0.0, metric: score}}])
        return 0


def write_result(folder: Path, results: Any) -> None:
    (folder / "target").mkdir(parents=True, exist_ok=True)
    (folder / "target" / "result.json").write_text(json.dumps(results))


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setattr(sweep_runs, "run_command", stand_in)
    return stand_in


def scores(**by_title: float | None) -> Callable[[dict[str, str]], float | None]:
    """Returns a function that maps a run's settings to its score, for example ``scores(**{"0.001 0": 0.5})``."""
    return lambda settings: by_title[" ".join(settings.values())]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# Tests that train.


@pytest.fixture
def real(
    config: Path, words: list[str], tiny_trunk_folder: Path, write_rows: Callable[..., Path], tmp_path: Path
) -> list[str]:
    """Returns a sweep command with a real trunk and real data. All runs train in this process."""
    for split in ("train", "dev"):
        write_rows(tmp_path / "data" / f"{split}.jsonl")
    write_config(config, trunk=tiny_trunk_folder)
    return [*words[:-1], f"--config.task.source={tmp_path / 'data'}"]


def written(sweep: Path) -> dict[str, Any]:
    """Reads a sweep's files, without paths and times."""
    found: dict[str, Any] = {"table": rows(sweep / "sweep.csv"), "summary": rows(sweep / "summary.csv")}
    for run in sorted((sweep / "runs").iterdir()):
        store_folder = run / "store"
        found[run.name] = {
            "files": [str(path.relative_to(run)) for path in sorted(run.glob("target/*"))],
            "digests": [store.read_manifest(store_folder, kind, "rte").digest for kind in ("adapters", "heads")],
            "result": (run / "target" / "result.json").read_text(),
            "metrics": (run / "target" / "metrics.jsonl").read_text(),
            "config": (run / "config.json").read_text(),
        }
    return found


def test_runs_in_one_process_write_what_separate_processes_write(real: list[str], tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    seeds = "--seeds=0,1"
    assert main([*real, seeds, f"--workdir={first}"]) == 0
    assert main([*real, seeds, f"--workdir={second}", "--isolate"]) == 0
    assert written(first) == written(second)
    assert len(written(first)["seed=1"]["digests"]) == 2
    logs = [(folder / "runs" / "seed=1" / "log.txt").read_text() for folder in (first, second)]
    # Paths and times differ, so they are removed. So are the lines about compilation, because in one process only the
    # first run compiles.
    lines = [
        re.sub(r"first|second|; .* elapsed.*|finished in .*|.* compiling for .*\n", "", log).splitlines()
        for log in logs
    ]
    assert lines[0] == lines[1]
    assert lines[0][0].startswith("$ afjax train --config=")
    assert lines[0][-1].startswith("Store: ")


@pytest.mark.parametrize("isolate", [[], ["--isolate"]])
def test_failed_run_does_not_affect_the_others(
    real: list[str], isolate: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    data = tmp_path / "data"
    # Missing data is only detected when a run starts. The first run fails, but the second must still run.
    assert main([*real[:-1], *isolate, f"--grid.task.source=nothing,{data}"]) == 1
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert len(lines) == 3
    assert has_facts(lines[1], "[1/2] task.source=nothing, seed=0: ", "failed", "no folder ")
    assert re.fullmatch(
        rf"\[2/2\] task.source={re.escape(str(data))}, seed=0: accuracy [01]\.\d{{4}} \(.* s\)", lines[2]
    )
    [folder] = (tmp_path / "sweep" / "runs").glob("task.source=_*")
    result = json.loads((folder / "target" / "result.json").read_text())[0]
    assert f"{result['metrics']['accuracy']:.4f}" in out
    assert [path.name for path in (folder / "store" / "adapters").iterdir() if path.is_dir()] == ["rte"]
    assert [row["status"] for row in rows(tmp_path / "sweep" / "sweep.csv")] == ["failed", "done"]
    [failed] = (tmp_path / "sweep" / "runs").glob("task.source=nothing*")
    last_line = (failed / "log.txt").read_text().splitlines()[-1]
    assert last_line.startswith("afjax: ")
    sweep = epath.Path(tmp_path / "sweep")
    assert find_unfinished(sweep, find_experiments(sweep)) == [UnfinishedRun(f"runs/{failed.name}", True, last_line)]


def test_unexpected_error_is_in_the_log_of_its_run(
    real: list[str], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = sweep_training.experiment_training

    def broken(config: Any, **given: Any) -> Any:
        if config.seed == 0:
            raise RuntimeError("the first line\nthe second line")
        return train(config, **given)

    monkeypatch.setattr(sweep_training, "experiment_training", broken)
    assert main([*real, "--seeds=0,1"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert has_facts(lines[1], "[1/2] seed=0: ", "failed: RuntimeError: the first line (")
    assert "[2/2] seed=1: accuracy " in lines[2]
    log = (tmp_path / "sweep" / "runs" / "seed=0" / "log.txt").read_text()
    assert "Traceback " in log
    assert log.rstrip().endswith("RuntimeError: the first line\nthe second line")


def test_log_that_cannot_be_opened_fails_its_run(real: list[str], tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "sweep" / "runs" / "seed=0" / "log.txt").mkdir(parents=True)
    assert main([*real, "--seeds=0,1"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert has_facts(lines[1], "[1/2] seed=0: ", "failed", "log.txt")
    assert "[2/2] seed=1: accuracy " in lines[2]


def test_log_handlers_write_to_the_log_of_their_own_run(
    real: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, logger, handlers = sweep_training.experiment_training, logging.getLogger("library"), []

    def with_library(config: Any, **given: Any) -> Any:
        if not handlers:  # The first run imports the library.
            handlers.append(logging.StreamHandler())
            logger.addHandler(handlers[0])
        logger.warning("seed %d", config.seed)
        return train(config, **given)

    monkeypatch.setattr(sweep_training, "experiment_training", with_library)
    try:
        assert main([*real, "--seeds=0,1"]) == 0
    finally:
        logger.removeHandler(handlers[0])
    for seed in (0, 1):
        lines = (tmp_path / "sweep" / "runs" / f"seed={seed}" / "log.txt").read_text().splitlines()
        assert [line for line in lines if line.startswith("seed ")] == [f"seed {seed}"]


def test_interrupted_runs_resume(
    real: list[str], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*real, "--seeds=0,1", f"--workdir={tmp_path / 'undisturbed'}"]) == 0
    shown = sweep_progress.SweepProgress.trained

    def interrupted(self: Any, run: Any, done: int, num_steps: int) -> None:
        shown(self, run, done, num_steps)
        if run.seed == 1 and done == 1:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sweep_progress.SweepProgress, "trained", interrupted)
        assert main([*real, "--seeds=0,1"]) == 130
    # An interrupted run can be resumed in a separate process.
    assert main([*real, "--seeds=0,1", "--isolate"]) == 0
    assert written(tmp_path / "sweep") == written(tmp_path / "undisturbed")


def test_sweep_of_a_fusion_trains_its_adapters_first(
    real: list[str], config: Path, tmp_path: Path, capsys: Capsys
) -> None:
    text = config.read_text().replace('{"task": ', '{"recipe": "fusion", "sources": SOURCES, "task": ')
    source = '{"task": {"name": NAME, "source": "data"}, "train": {"max_steps": 3, "batch_size": 8, "max_length": 16}}'
    sources = ", ".join(source.replace("NAME", f'"{name}"') for name in ("one", "two"))
    config.write_text(f"SOURCES = [{sources}]\n{text}".replace('"data"', repr(str(tmp_path / "data"))))
    assert main([*real[:-1], "--seeds=0,1", "--slots=2"]) == 0
    stores = [tmp_path / "sweep" / "runs" / f"seed={seed}" / "store" for seed in (0, 1)]
    assert [store.names(each, "adapters") for each in stores] == [["one", "two"]] * 2
    assert [store.names(each, "fusion") for each in stores] == [["rte-fusion"]] * 2
    # --adapters copies these adapters to a second sweep's runs, which do not retrain them.
    copied = [*real[:-1], "--seeds=2,3", f"--adapters={stores[0]}", f"--workdir={tmp_path / 'copied'}"]
    assert main(copied) == 0
    again = tmp_path / "copied" / "runs" / "seed=2" / "store"
    assert (
        store.read_manifest(again, "adapters", "one").digest == store.read_manifest(stores[0], "adapters", "one").digest
    )


def test_several_tasks_train_in_one_process(real: list[str], config: Path, tmp_path: Path, capsys: Capsys) -> None:
    tasks = [{"name": name, "source": str(tmp_path / "data")} for name in ("one", "two")]
    text = config.read_text().replace(
        '"task": {"name": task, "source": "data"}', f'"recipe": "sequential", "tasks": {tasks}'
    )
    config.write_text(text)
    assert main([*real[:-1], "--seeds=0,1", "--slots=2"]) == 0
    err = capsys.readouterr().err
    assert has_facts(err, "several tasks", "separately", "--slots=2")
    assert {row["status"] for row in rows(tmp_path / "sweep" / "sweep.csv")} == {"done"}


def test_joined_hosts_are_refused(real: list[str], refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_runs.hosts.Job, "is_one_of_several", True)
    assert has_facts(refused(*real, "--seeds=0,1"), "--hosts=N --host=I")


def test_each_host_trains_its_share_of_the_runs(real: list[str], tmp_path: Path, capsys: Capsys) -> None:
    words = [*real, "--seeds=0,1,2"]
    assert main([*words, f"--workdir={tmp_path / 'one'}"]) == 0
    capsys.readouterr()
    for host, number in (("0", 1), ("1", 2)):
        assert main([*words, "--hosts=2", f"--host={host}"]) == 0
        printed = capsys.readouterr()
        assert has_facts(printed.err.splitlines()[0], "3 runs", f"host {host} of 2 trains {number}", f"{number} to do")
        assert f"other {3 - number} run" in printed.out
        folder = tmp_path / "sweep" / f"host-{host}-of-2"
        assert len(rows(folder / "sweep.csv")) == number
        shutil.copytree(folder / "runs", tmp_path / "all" / "runs", dirs_exist_ok=True)
    # Without --hosts, the command writes the tables for all runs from the copied folders.
    assert main([*words, f"--workdir={tmp_path / 'all'}"]) == 0
    assert "0 to do" in capsys.readouterr().err
    assert written(tmp_path / "all") == written(tmp_path / "one")


def test_host_without_runs_exits(real: list[str], tmp_path: Path, capsys: Capsys) -> None:
    assert main([*real, "--seeds=0,1", "--hosts=3", "--host=0"]) == 0
    printed = capsys.readouterr()
    assert has_facts(printed.err.splitlines()[0], "2 runs", "host 0 of 3 trains 0", "0 to do")
    assert "other 2 runs" in printed.out
    assert not any((tmp_path / "sweep" / "host-0-of-3" / "runs").iterdir())


def test_single_host_trains_all_runs(real: list[str], tmp_path: Path) -> None:
    assert main([*real, "--seeds=0,1", "--hosts=1", "--host=0"]) == 0
    assert len(rows(tmp_path / "sweep" / "sweep.csv")) == 2


@pytest.mark.parametrize("num_runs", [1, 3, 8, 13])
@pytest.mark.parametrize("hosts", [1, 3, 8])
def test_hosts_share_all_runs(num_runs: int, hosts: int) -> None:
    runs = sweep_plan.Sweep("single", (), {}, tuple(range(num_runs))).runs
    parts_of_hosts = [sweep_plan.part_of(runs, host, hosts) for host in range(hosts)]
    assert [run for part in parts_of_hosts for run in part] == runs
    assert max(map(len, parts_of_hosts)) - min(map(len, parts_of_hosts)) <= 1


def test_on_a_tpu_each_run_of_a_host_has_one_chip(real: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run gets its own chip, because a process that claims all chips would wait for all hosts."""
    monkeypatch.setattr(sweep_runs, "find_devices", lambda: parts.Devices(tpu_chips=("0", "1")))
    workers = list[int]()
    monkeypatch.setattr(sweep_runs, "train_in_workers", lambda *arguments: workers.append(arguments[-1]))
    main([*real, "--seeds=0,1,2", "--hosts=2", "--host=1"])
    main([*real, "--seeds=0,1,2", "--hosts=2", "--host=1", "--processes=2"])
    assert workers == [1, 2]


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        (["--hosts=0"], ("--hosts is 0",)),
        (["--hosts=2"], ("--hosts is 2", "--host is missing")),
        (["--host=0"], ("--host=0 ", "--hosts")),
        (["--hosts=1", "--host=1"], ("--hosts is 1", "--host is 1")),
        (["--hosts=2", "--host=2"], ("--hosts is 2", "--host is 2")),
        (["--hosts=2", "--host=-1"], ("--hosts is 2", "--host is -1")),
    ],
)
def test_invalid_hosts_are_refused(real: list[str], refused: Refused, given: list[str], facts: tuple[str, ...]):
    assert has_facts(refused(*real, "--seeds=0,1", *given), *facts)


def test_isolated_runs_of_several_tpu_hosts_are_refused(
    real: list[str], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "find_devices", lambda: parts.Devices(tpu_chips=("0",)))
    assert has_facts(refused(*real, "--seeds=0,1", "--isolate", "--hosts=2", "--host=0"), "--isolate", "--hosts")


@pytest.mark.parametrize("slots", [1, 2])
def test_stopped_sweep_resumes_every_run(
    real: list[str], slots: int, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*real, "--seeds=0,1,2", f"--slots={slots}"]
    assert main([*words, f"--workdir={tmp_path / 'undisturbed'}"]) == 0
    shown = sweep_progress.SweepProgress.trained

    def stopped(self: Any, run: Any, done: int, num_steps: int) -> None:
        shown(self, run, done, num_steps)
        if run.seed == 1 and done == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(sweep_progress.SweepProgress, "trained", stopped)
        capsys.readouterr()
        assert main(words) == 75
    stopped_log = (tmp_path / "sweep" / "runs" / "seed=1" / "log.txt").read_text()
    assert has_facts(stopped_log.splitlines()[-1], "afjax: ", "step 2 of 2", "resume")
    assert main(words) == 0
    assert written(tmp_path / "sweep") == written(tmp_path / "undisturbed")


def test_sweep_that_gets_sigterm_while_it_saves_an_adapter_stops(
    real: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*args: Any, **options: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(store_checkpoint, "_checkpointer", stopped)
        assert main([*real, "--seeds=0,1"]) == 75
    assert not (tmp_path / "sweep" / "runs" / "seed=1" / "checkpoints").exists()
    assert main([*real, "--seeds=0,1"]) == 0


def test_mesh_that_does_not_fit_the_devices_is_refused_before_the_first_run(
    real: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    assert main([*real, "--grid.mesh.data=1,2"]) == 2
    assert has_facts(capsys.readouterr().err.splitlines()[-1], "afjax: ", "data=2", "1 device")
    assert not list((tmp_path / "sweep").glob("runs/*/checkpoints"))


def test_runs_in_several_processes_write_what_one_process_writes(
    real: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    words = [*real, "--seeds=0,1,2,3"]
    assert main([*words, f"--workdir={tmp_path / 'one'}"]) == 0
    capsys.readouterr()
    assert main([*words, f"--workdir={tmp_path / 'several'}", "--processes=3"]) == 0
    assert written(tmp_path / "several") == written(tmp_path / "one")
    lines = capsys.readouterr().err.splitlines()
    assert sorted(line[:5] for line in lines if "accuracy" in line) == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]


def once(action: Callable[[], None]) -> Any:
    """Returns a replacement for ``SweepProgress.trained`` that calls ``action`` once, after a run's first step."""
    shown, done = sweep_progress.SweepProgress.trained, list[Any]()

    def trained(self: Any, run: Any, steps: int, num_steps: int) -> None:
        shown(self, run, steps, num_steps)
        if steps and not done:
            done.append(run)
            action()

    return trained


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forks a sweep's processes from the fork server. Spawned ones would import everything again."""
    stand_in = types.SimpleNamespace(**vars(multiprocessing))
    stand_in.get_context = lambda method: fork_server()
    monkeypatch.setattr(sweep_workers, "multiprocessing", stand_in)


@pytest.mark.usefixtures("forked")
def test_killed_process_fails_its_runs_and_is_replaced(
    real: list[str], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill_all() -> None:
        for process in multiprocessing.active_children():
            process.kill()

    one_process = [*real, "--seeds=0,1,2,3"]
    assert main([*one_process, f"--workdir={tmp_path / 'undisturbed'}"]) == 0
    words = [*one_process, "--processes=2"]
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(sweep_progress.SweepProgress, "trained", once(kill_all))
        assert main(words) == 1
    lines = capsys.readouterr().err.splitlines()
    failed = [line for line in lines if has_facts(line, "seed=", "failed", "signal 9", "Killed")]
    assert 1 <= len(failed) <= 2
    statuses = [row["status"] for row in rows(tmp_path / "sweep" / "sweep.csv")]
    assert sorted(statuses) == ["done"] * (4 - len(failed)) + ["failed"] * len(failed)
    assert main(words) == 0
    assert written(tmp_path / "sweep") == written(tmp_path / "undisturbed")


@pytest.mark.usefixtures("forked")
def test_stopped_processes_save_and_resume(
    real: list[str], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_process = [*real, "--seeds=0,1,2", *LONG, "--config.train.max_steps=600"]
    assert main([*one_process, f"--workdir={tmp_path / 'undisturbed'}"]) == 0
    words = [*one_process, "--processes=2"]
    with monkeypatch.context() as patch:
        stop = functools.partial(os.kill, os.getpid(), signal.SIGTERM)
        patch.setattr(sweep_progress.SweepProgress, "trained", once(stop))
        assert main(words) == 75
    assert not multiprocessing.active_children()
    assert main(words) == 0
    assert written(tmp_path / "sweep") == written(tmp_path / "undisturbed")
    assert any("resumes after step " in log.read_text() for log in (tmp_path / "sweep" / "runs").glob("*/log.txt"))


def test_stopped_isolated_run_saves_and_resumes(real: list[str], tmp_path: Path) -> None:
    words = [*real, "--isolate", *LONG, "--grid.train.max_steps=1000,1"]
    run = tmp_path / "sweep" / "runs" / "train.max_steps=1000,seed=0"

    def stop_after_the_first_step() -> None:
        scalars = run / "target" / "metrics.jsonl"
        while not (scalars.exists() and scalars.read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=stop_after_the_first_step, daemon=True)
    thread.start()
    assert main(words) == 75
    assert has_facts((run / "log.txt").read_text().splitlines()[-1], "saved", "of 1,000")
    assert main(words) == 0
    assert "resumes after step " in (run / "log.txt").read_text()


def test_isolated_run_ends_if_the_sweep_is_killed(real: list[str], tmp_path: Path) -> None:
    # Uninterrupted, the run would train for minutes.
    words = [*real, "--isolate", "--grid.train.max_steps=100000"]
    target = tmp_path / "sweep" / "runs" / "train.max_steps=100000,seed=0" / "target"
    sweep = subprocess.Popen([sys.executable, "-m", "afjax", *words])
    try:
        while not ((target / "metrics.jsonl").exists() and (target / "metrics.jsonl").read_text()):
            assert sweep.poll() is None
            time.sleep(0.01)
    finally:
        sweep.kill()
        sweep.wait()
    # The run's process holds this lock until it ends.
    with (target / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert not (target / "result.json").exists()


def test_sweep_waits_for_processes_of_a_killed_sweep(
    real: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "sweep" / "runs" / "seed=0" / "target"
    target.mkdir(parents=True)
    with (target / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        printed: list[str] = []

        def release(line: str) -> None:
            printed.append(line)
            if "waiting" in line:
                threading.Timer(0.5, fcntl.flock, (lock, fcntl.LOCK_UN)).start()

        monkeypatch.setattr(sweep_runs, "print_line", release)
        assert main([*real, "--seeds=0,1"]) == 0
    assert any("waiting up to 25 s" in line for line in printed)


def test_process_that_cannot_save_ends_if_the_command_is_killed() -> None:
    """A process handles signals between steps, so one that compiles a program does not save its state in time."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.busy_worker"], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    with process:
        try:
            assert process.stdout.readline() == b"started\n"
        finally:
            process.kill()
        # The worker holds the other end of this pipe until it exits.
        assert process.stdout.read() == b"SIGTERM\n"


@pytest.mark.usefixtures("forked")
def test_processes_save_and_end_if_the_command_fails(
    real: list[str], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests a full disk. With two slots, a process can wait for its next run while another run trains."""

    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    words = [*real, "--seeds=0,1,2,3", "--processes=2", "--slots=2", *LONG, "--grid.train.max_steps=1,200"]
    with monkeypatch.context() as patch:
        patch.setattr(sweep_progress, "write_tables", full)
        assert main(words) == 2
    assert has_facts(capsys.readouterr().err.splitlines()[-1], "sweep", "No space left", "cannot be written")
    assert not multiprocessing.active_children()
    assert main(words) == 0
    assert {row["status"] for row in rows(tmp_path / "sweep" / "sweep.csv")} == {"done"}


def test_processes_that_cannot_start_fail_all_runs(
    real: list[str], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Replace each process's function with len, which raises TypeError for these arguments.
    monkeypatch.setattr(sweep_workers, "_work", len)
    assert main([*real, "--seeds=0,1,2", "--processes=2"]) == 1
    assert [row["status"] for row in rows(tmp_path / "sweep" / "sweep.csv")] == ["failed"] * 3
    assert "exit code 1" in capsys.readouterr().err


def test_more_processes_than_tpu_chips_are_refused(
    real: list[str], refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "find_devices", lambda: parts.Devices(tpu_chips=("0", "1", "2", "3")))
    assert has_facts(refused(*real, "--processes=5"), "5 processes", "4 TPU chips", "--processes=4", "--slots")


def test_command_leaves_the_devices_to_its_processes(real: list[str], tmp_path: Path) -> None:
    """Checks that the command starts no JAX backend.

    JAX reserves every TPU chip, and most of a GPU's memory, for the first process that uses its backend.
    """
    program = (
        "import sys\n"
        "from afjax.cli.main import main\n"
        "from jax._src import xla_bridge\n"
        "assert main(sys.argv[1:]) == 0\n"
        "assert not xla_bridge.backends_are_initialized()\n"
    )
    subprocess.run([sys.executable, "-c", program, *real, "--seeds=0,1", "--processes=2"], check=True)
    assert {row["status"] for row in rows(tmp_path / "sweep" / "sweep.csv")} == {"done"}


def test_steps_of_the_active_runs_are_printed(real: list[str], capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_progress, "QUIET_SECONDS", 0.0)
    assert main([*real, "--seeds=0,1", "--slots=2"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert "[1/2] seed=0: step 1 of 2" in lines
    assert "[2/2] seed=1: step 1 of 2" in lines


def test_runs_with_different_trunks_are_groups(
    real: list[str], tiny_trunk_folder: Path, tmp_path: Path, capsys: Capsys
) -> None:
    shutil.copytree(tiny_trunk_folder, tmp_path / "other")
    trunks = f"--grid.trunk={tiny_trunk_folder},{tmp_path / 'other'}"
    assert main([*real, trunks]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert has_facts(lines[1], "2 groups", "trunk")
    assert [line.partition("]")[0] for line in lines[2:]] == ["[1/2", "[2/2"]


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        (["--slots=0"], ("--slots is 0",)),
        (["--slots=2", "--isolate"], ("--isolate ", "--slots=2")),
        (["--processes=0"], ("--processes is 0",)),
        (["--processes=2", "--isolate"], ("--isolate ", "--processes=2")),
    ],
)
def test_invalid_slots_are_refused(real: list[str], refused: Refused, given: list[str], facts: tuple[str, ...]):
    assert has_facts(refused(*real, "--seeds=0,1", *given), *facts)


# Starting processes.


def test_killed_command_returns_its_signal(tmp_path: Path) -> None:
    code = "import os, sys; print('out', flush=True); print('err', file=sys.stderr); os.kill(os.getpid(), 9)"
    (tmp_path / "log").write_text("before\n")
    assert sweep_runs.run_command([sys.executable, "-c", code], tmp_path / "log") == -9
    assert (tmp_path / "log").read_text() == "before\nout\nerr\n"


def test_interrupt_of_a_terminal_reaches_the_command_as_sigterm(tmp_path: Path) -> None:
    command = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('saved'))\n"
        "print('ready', flush=True); time.sleep(60)\n"
    )
    code = (
        "import signal, sys; from pathlib import Path; from afjax.cli.sweep_runs import run_command\n"
        # The test runner's processes ignore SIGINT.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"run_command([sys.executable, '-c', {command!r}], Path({str(tmp_path / 'log')!r}))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stderr=subprocess.DEVNULL)
    log = tmp_path / "log"
    while not (log.exists() and log.read_text() == "ready\n"):
        assert parent.poll() is None
        time.sleep(0.05)
    os.killpg(parent.pid, signal.SIGINT)
    parent.wait()
    assert log.read_text() == "ready\nsaved\n"


def test_failed_runs_stay_in_the_table_until_they_are_retried(tmp_path: Path) -> None:
    sweep = sweep_plan.Sweep(config="single:task=entail", overrides=(), grid={}, seeds=(0, 1, 2), adapters="")
    first, second, _ = sweep.runs
    failed, done = sweep_results.Outcome(), sweep_results.Outcome(0.5, "accuracy")
    sweep_results.write_tables(sweep, {first.name: failed, second.name: failed}, tmp_path)
    sweep_results.write_tables(sweep, {first.name: done}, tmp_path)
    assert [(row["seed"], row["status"]) for row in rows(tmp_path / "sweep.csv")] == [("0", "done"), ("1", "failed")]


def test_killed_run_is_reported_with_its_signal(
    words: list[str], capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_runs, "run_command", lambda command, log: -9)
    assert main([*words, "--grid.train.epochs=1"]) == 1
    assert has_facts(capsys.readouterr().err, "seed=0: ", "signal 9", "Killed", "$ afjax train ")


def test_run_command_has_overrides_and_its_own_workdir(
    words: list[str], config: Path, train: StandIn, tmp_path: Path
) -> None:
    assert main([*words, "--config.head.dropout=0.5", "--grid.trunk='a,b',c", "--grid.adapter.layers=(0,1)"]) == 0
    folders = sorted((tmp_path / "sweep" / "runs").iterdir())
    assert len(folders) == 2
    assert train.commands[0][:5] == [sys.executable, "-m", "afjax.cli.isolated_run", "train", f"--config={config}"]
    assert Path(train.commands[0][5].removeprefix("--workdir=")) in folders
    given = ["head.dropout=0.5", "trunk=a,b", "adapter.layers=(0, 1)", "seed=0"]
    assert train.commands[0][6:] == [f"--config.{override}" for override in given]


# Swept settings.


def test_every_combination_runs_with_every_seed(words: list[str], train: StandIn, tmp_path: Path) -> None:
    assert main([*words, RATES, "--grid.train.epochs=1,2", "--seeds=0, 7"]) == 0
    assert train.titles == [
        f"train.learning_rate={rate}, train.epochs={epochs}, seed={seed}"
        for rate, epochs, seed in itertools.product(("0.001", "0.0003"), (1, 2), (0, 7))
    ]
    names = {title.replace(", ", ",") for title in train.titles}
    assert {path.name for path in (tmp_path / "sweep" / "runs").iterdir()} == names


def test_config_file_can_define_the_sweep(words: list[str], config: Path, train: StandIn) -> None:
    write_config(config, SWEEP)
    assert main(words) == 0
    assert train.titles == [
        f"train.learning_rate={rate}, adapter.position={position}, seed=0"
        for rate, position in itertools.product(("0.001", "0.0001"), ("ffn", "both"))
    ]


def test_path_of_the_config_can_contain_a_colon(words: list[str], train: StandIn, refused: Refused, tmp_path: Path):
    (tmp_path / "exp:1").mkdir()
    config = write_config(tmp_path / "exp:1" / "rte.py", SWEEP)
    assert main([words[0], f"--config={config}:task=entail", *words[2:]]) == 0
    assert len(train.commands) == 4
    write_config(config)
    assert str(config) in refused(words[0], f"--config={config}:task=entail", *words[2:])


def test_grid_flags_replace_and_extend_the_sweep_of_the_file(words: list[str], config: Path, train: StandIn) -> None:
    write_config(config, SWEEP)
    assert main([*words, "--grid.adapter.position=attention", "--grid.train.epochs=3"]) == 0
    assert train.titles == [
        f"train.learning_rate={rate}, adapter.position=attention, train.epochs=3, seed=0"
        for rate in ("0.001", "0.0001")
    ]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-4,3E-4", ("0.0001", "0.0003")),
        ("(0,1),[2, 3],{'a': (1,)}", ("(0, 1)", "[2, 3]", "{'a': (1,)}")),
        ("a, b c,None,True", ("a", "b c", "None", "True")),
        ("'a,b',\"(\",'3'", ("a,b", "(", "'3'")),
        ("1,'1','a'", ("1", "'1'", "a")),
    ],
)
def test_values_are_parsed_and_written_as_overrides(text: str, values: tuple[str, ...]) -> None:
    assert sweep_grid.parse_grid(__file__, (), [f"x={text}"]) == {"x": values}


def test_run_names_are_readable_valid_and_unique() -> None:
    settings = [
        {"train.learning_rate": "0.0001", "train.epochs": "3"},
        *({"trunk": trunk} for trunk in ("a/b", "a:b", "a_b", "a b", "..", "a" * 300, "a" * 301, "ä", "'3'", "3")),
        {"a": "1", "b": "2,b=3"},
        {"a": "1,b=2", "b": "3"},
        {"a": "1", "b": "2", "b=3": "4"},
    ]
    names = [sweep_plan.Run(each, seed).name for each in settings for seed in (0, 1)]
    assert names[0] == "train.learning_rate=0.0001,train.epochs=3,seed=0"
    assert len(set(names)) == len(names)
    for name in names:
        assert re.fullmatch(r"[\w.+=,~-]{1,210}", name, flags=re.ASCII)
    assert sweep_plan.Run({"trunk": "a/b"}, 0).name.startswith("trunk=a_b,seed=0~")


# Resuming a sweep.


def test_only_failed_runs_are_repeated(words: list[str], train: StandIn, capsys: Capsys) -> None:
    words = [*words, RATES, "--seeds=0,1"]
    train.score = scores(**{"0.001 0": 0.5, "0.001 1": None, "0.0003 0": 0.25, "0.0003 1": 0.75})
    assert main(words) == 1
    first = capsys.readouterr()
    assert has_facts(first.err, "[2/4] train.learning_rate=0.001, seed=1: ", "exit code 2: afjax: It broke. (")
    train.titles.clear()
    train.score = lambda settings: 1.0
    assert main(words) == 0
    assert train.titles == ["train.learning_rate=0.001, seed=1"]
    out, err = capsys.readouterr()
    assert "4 runs, 1 to do" in err
    assert has_facts(err, "[1/4] train.learning_rate=0.001, seed=0: ", "accuracy 0.5000", "before")
    assert "Failed" not in out
    assert main(words) == 0
    assert len(train.titles) == 1
    assert capsys.readouterr().out == out


def test_interrupted_sweep_resumes(words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys) -> None:
    def interrupted(settings: dict[str, str]) -> float:
        if settings["seed"] == "1":
            raise KeyboardInterrupt
        return 0.5

    train.score = interrupted
    assert main([*words, RATES, "--seeds=0,1"]) == 130
    assert has_facts(capsys.readouterr().err, "afjax: ", "interrupted", "resume")
    assert [(row["seed"], row["status"]) for row in rows(tmp_path / "sweep" / "sweep.csv")] == [("0", "done")]
    train.score = lambda settings: 0.5
    assert main([*words, RATES, "--seeds=0,1"]) == 0
    assert len(train.titles) == 1 + 1 + 3
    assert len(rows(tmp_path / "sweep" / "sweep.csv")) == 4


def test_values_and_seeds_can_be_added(words: list[str], train: StandIn, tmp_path: Path) -> None:
    assert main([*words, RATES, "--grid.train.epochs=1"]) == 0
    train.titles.clear()
    # The order of flags and values does not matter, because it does not affect run names.
    more = ["--grid.train.epochs=1", "--grid.train.learning_rate=1e-2,3e-4,1e-3", "--seeds=1,0"]
    assert main([*words, *more]) == 0
    assert sorted(train.titles) == [
        "train.learning_rate=0.0003, train.epochs=1, seed=1",
        "train.learning_rate=0.001, train.epochs=1, seed=1",
        "train.learning_rate=0.01, train.epochs=1, seed=0",
        "train.learning_rate=0.01, train.epochs=1, seed=1",
    ]
    record = json.loads((tmp_path / "sweep" / "sweep.json").read_text())
    assert record["grid"] == {"train.learning_rate": ["0.01", "0.0003", "0.001"], "train.epochs": ["1"]}
    assert record["seeds"] == [1, 0]


@pytest.mark.parametrize(
    ("others", "facts"),
    [
        ([RATES, "--grid.train.epochs=1"], ("train.epochs: swept ", "now")),
        (["--grid.train.epochs=1"], ("train.learning_rate: swept ", "recorded")),
        ([RATES, "--config.train.epochs=4"], ("train.epochs: recorded 3,", " 4")),
        ([RATES, "--config.train.epochs=3", "--config.top_k=0"], ("top_k: recorded not set,", " 0")),
    ],
)
def test_resuming_a_different_sweep_is_refused(
    words: list[str], train: StandIn, tmp_path: Path, refused: Refused, others: list[str], facts: tuple[str, ...]
) -> None:
    same = ["--seeds=0,1", "--config.train.epochs=3"]
    assert main([*words, RATES, *same]) == 0
    # Flags missing from a case keep their values from the first command.
    given = [word for word in same if not any(other.startswith(word.split("=")[0] + "=") for other in others)]
    if "--grid.train.epochs=1" in others:
        given.remove("--config.train.epochs=3")
    found = refused(*words, *given, *others)
    assert has_facts(
        found, f"workdir {tmp_path / 'sweep'} ", "another sweep (", *facts, "values and seeds", "--workdir"
    )
    assert len(train.titles) == 4


def test_resuming_with_a_different_config_is_refused(words: list[str], config: Path, train: StandIn, refused: Refused):
    assert main([*words, RATES]) == 0
    found = refused(words[0], f"{words[1]}:task=cb", words[2], RATES)
    assert f"config: recorded {config}, given {config}:task=cb" in found


def test_resuming_after_the_config_file_changed_is_refused(
    words: list[str], config: Path, train: StandIn, tmp_path: Path, refused: Refused
) -> None:
    assert main([*words, RATES]) == 0
    folder = tmp_path / "sweep" / "runs" / "train.learning_rate=0.0003,seed=0"
    experiment = choose_defaults(load_experiment(str(config), ["train.learning_rate=3e-4"]), lambda: "mean", {})
    claim_workdir(folder, experiment, {}, folder / "store")
    assert main([*words, RATES]) == 0
    config.write_text(config.read_text().replace('"batch_size": 8', '"batch_size": 16'))
    found = refused(*words, RATES)
    assert has_facts(found, f"{folder} ", "a different config", "train.batch_size: 8 ", " 16 ")


@pytest.mark.parametrize(
    ("fewer", "fact", "num_new"),
    [
        (["--grid.train.learning_rate=1e-3,1e-2", "--seeds=0,1"], "train.learning_rate: 0.0003 ", 2),
        ([RATES, "--seeds=0"], "seed: 1 ", 0),
    ],
)
def test_finished_runs_can_be_skipped_in_a_different_folder(
    words: list[str], train: StandIn, tmp_path: Path, refused: Refused, fewer: list[str], fact: str, num_new: int
) -> None:
    assert main([*words, RATES, "--seeds=0,1"]) == 0
    runs = tmp_path / "sweep" / "runs"
    assert has_facts(refused(*words, *fewer), f"workdir {tmp_path / 'sweep'} ", fact, f"copy {runs} ", "--workdir")
    shutil.copytree(runs, tmp_path / "fewer" / "runs")
    assert main([*words, f"--workdir={tmp_path / 'fewer'}", *fewer]) == 0
    assert len(train.titles) == 4 + num_new
    assert len(rows(tmp_path / "fewer" / "sweep.csv")) == 2 + num_new


def test_values_of_which_no_run_has_begun_can_be_removed(words: list[str], train: StandIn, tmp_path: Path) -> None:
    train.score = scores(**{"0.001 0": 0.5, "0.0003 0": None})
    assert main([*words, RATES]) == 1
    train.score = lambda settings: 0.75
    assert main([*words, "--grid.train.learning_rate=1e-3,1e-2"]) == 0
    assert train.titles[2:] == ["train.learning_rate=0.01, seed=0"]
    table = rows(tmp_path / "sweep" / "sweep.csv")
    assert [row["train.learning_rate"] for row in table] == ["0.001", "0.01"]


# Choosing the best setting, and writing the tables.


def test_seeds_of_one_setting(words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys) -> None:
    train.score = scores(**{"0": 0.5, "1": 0.7})
    assert main([*words, "--seeds=0,1"]) == 0
    assert train.titles == ["seed=0", "seed=1"]
    lines = capsys.readouterr().out.splitlines()
    # There is only one setting, so none is called the best.
    assert [re.split(r"  +", line.strip()) for line in lines[1:]] == [
        ["dev accuracy", "seeds"],
        ["0.6000 ± 0.1414", "2/2"],
    ]
    (summary,) = rows(tmp_path / "sweep" / "summary.csv")
    assert (float(summary["mean"]), summary["finished"], summary["seeds"]) == (pytest.approx(0.6), "2", "2")
    # Seeds can be added later.
    train.score = lambda settings: 0.6
    assert main([*words, "--seeds=0,1,2"]) == 0
    assert train.titles == ["seed=0", "seed=1", "seed=2"]


def test_best_mean_over_seeds_is_chosen(words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys) -> None:
    # 0.001 has the best single seed, but not the best mean.
    by_title = {"0.001 0": 0.9, "0.001 1": 0.2, "0.001 2": 0.4, "0.01 0": 0.6, "0.01 1": 0.7, "0.01 2": 0.8}
    train.score = scores(**by_title)
    assert main([*words, "--grid.train.learning_rate=1e-3,1e-2", "--seeds=0,1,2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    table = [re.split(r"  +", line) for line in lines[1:4]]
    assert table == [
        ["train.learning_rate", "dev accuracy", "seeds"],
        ["0.01", "0.7000 ± 0.1000", "3/3", "best"],
        ["0.001", "0.5000 ± 0.3606", "3/3"],
    ]
    assert [list(row.values()) for row in rows(tmp_path / "sweep" / "sweep.csv")] == [
        [rate, seed, "done", str(score), "accuracy", f"runs/train.learning_rate={rate},seed={seed}"]
        for (rate, seed), score in ((title.split(), score) for title, score in by_title.items())
    ]
    summary = rows(tmp_path / "sweep" / "summary.csv")
    assert list(summary[0]) == ["train.learning_rate", "mean", "std", "finished", "seeds", "metric", "best"]
    assert [float(row["mean"]) for row in summary] == pytest.approx([0.7, 0.5])
    assert [float(row["std"]) for row in summary] == pytest.approx([0.1, 0.13**0.5])
    assert [(row["train.learning_rate"], row["best"]) for row in summary] == [("0.01", "best"), ("0.001", "")]
    assert sorted(path.name for path in (tmp_path / "sweep").iterdir()) == [
        ".lock-0",
        "runs",
        "summary.csv",
        "sweep.csv",
        "sweep.json",
    ]


def test_printed_command_trains_the_best_setting(
    words: list[str], config: Path, train: StandIn, tmp_path: Path, capsys: Capsys
) -> None:
    train.score = lambda settings: float(settings["train.epochs"]) / 10
    assert main([*words, "--config.head.dropout=0.5", "--grid.trunk='a b'", "--grid.train.epochs=1,3,2"]) == 0
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command == [
        "afjax",
        "train",
        f"--config={config}",
        f"--workdir={tmp_path / 'sweep' / 'best'}",
        "--config.head.dropout=0.5",
        "--config.trunk=a b",
        "--config.train.epochs=3",
    ]


def test_each_task_has_its_own_best_setting(
    words: list[str], config: Path, train: StandIn, tmp_path: Path, capsys: Capsys
) -> None:
    by_title = {"a 0.001 0": 0.9, "a 0.0003 0": 0.8, "b 0.001 0": 0.2, "b 0.0003 0": 0.4}
    train.score = scores(**by_title)
    train.metric = lambda settings: {"a": "accuracy", "b": "f1"}[settings["task.name"]]
    assert main([*words, "--grid.task.name=a,b", RATES]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(r"  +", line.strip()) for line in lines[1:6]] == [
        ["task.name", "train.learning_rate", "metric", "dev score", "seeds"],
        ["a", "0.001", "accuracy", "0.9000", "1/1", "best"],
        ["a", "0.0003", "accuracy", "0.8000", "1/1"],
        ["b", "0.0003", "f1", "0.4000", "1/1", "best"],
        ["b", "0.001", "f1", "0.2000", "1/1"],
    ]
    assert [shlex.split(line)[2:] for line in lines[-2:]] == [
        [
            f"--config={config}",
            f"--workdir={tmp_path / 'sweep' / 'best' / f'task.name={task}'}",
            f"--config.task.name={task}",
            f"--config.train.learning_rate={rate}",
        ]
        for task, rate in (("a", "0.001"), ("b", "0.0003"))
    ]
    summary = rows(tmp_path / "sweep" / "summary.csv")
    assert [(row["task.name"], row["metric"], row["best"]) for row in summary] == [
        ("a", "accuracy", "best"),
        ("a", "accuracy", ""),
        ("b", "f1", "best"),
        ("b", "f1", ""),
    ]


def test_no_setting_is_best_if_only_the_task_varies(words: list[str], train: StandIn, capsys: Capsys) -> None:
    assert main([*words, "--grid.task.name=a,b"]) == 0
    assert "best" not in capsys.readouterr().out


def test_rows_that_changed_between_runs_are_reported(
    words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys
) -> None:
    def write_inputs(*digests: str) -> None:
        for folder, digest in zip(sorted((tmp_path / "sweep" / "runs").iterdir()), digests, strict=True):
            inputs = {"the trunk": "0", "task rte's train rows": "1", "task rte's dev rows": digest}
            (folder / "inputs.json").write_text(json.dumps(inputs))

    swept = [*words, "--seeds=0,1,2"]
    assert main(swept) == 0
    write_inputs("2", "2", "2")
    assert main(swept) == 0
    assert "Warning" not in capsys.readouterr().out
    write_inputs("2", "3", "2")
    assert main(swept) == 0
    out = capsys.readouterr().out
    assert out.count("task rte's dev rows") == 1
    assert "train rows" not in out
    assert out.splitlines()[-2:] == ["  seed=0; seed=2", "  seed=1"]
    assert main([*words, "--seeds=0,1,2,3"]) == 0
    assert "task rte's dev rows" in capsys.readouterr().out


def test_trunks_and_adapters_that_changed_between_runs_are_reported(
    words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "there" / "adapters" / "one").mkdir(parents=True)
    (tmp_path / "there" / "adapters" / "one" / "manifest.json").write_text("{}")
    swept = [*words, "--grid.trunk=a,b", "--seeds=0,1", f"--adapters={tmp_path / 'there'}"]
    assert main(swept) == 0
    folders = sorted((tmp_path / "sweep" / "runs").iterdir())

    def write_inputs(trunks: str, adapters: str) -> None:
        for folder, trunk, adapter in zip(folders, trunks, adapters, strict=True):
            inputs = {"the trunk": trunk, "the adapter one": adapter, "the adapter of this run": folder.name}
            (folder / "inputs.json").write_text(json.dumps(inputs))

    write_inputs("1122", "3344")
    assert main(swept) == 0
    assert "Warning" not in capsys.readouterr().out
    write_inputs("1322", "3345")
    assert main(swept) == 0
    out = capsys.readouterr().out
    assert "Warning: the trunk, the adapter one changed" in out
    groups = "".join(f"  trunk={trunk}, seed={seed}\n" for trunk in "ab" for seed in "01")
    assert f"Runs with equal inputs:\n{groups}" in out


def test_second_sweep_in_a_workdir_is_refused(
    words: list[str], train: StandIn, tmp_path: Path, refused: Refused
) -> None:
    sentences = []

    def run_twice(settings: dict[str, str]) -> float:
        sentences.append(refused(*words, RATES))
        return 0.5

    train.score = run_twice
    assert main([*words, RATES]) == 0
    assert len(sentences) == 2
    assert all(f"Another sweep is running in {tmp_path / 'sweep'};" in sentence for sentence in sentences)
    assert len(train.commands) == 2


def test_adapters_that_cannot_be_copied_fail_the_runs(
    words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys
) -> None:
    there = tmp_path / "there"
    (there / "adapters" / "one").mkdir(parents=True)
    (there / "adapters" / "one" / "manifest.json").symlink_to("missing")
    assert main([*words, RATES, f"--adapters={there}"]) == 1
    assert capsys.readouterr().err.count(f"failed: --adapters={there} cannot be copied") == 2
    assert train.commands == []


def test_config_argument_of_a_swept_setting_is_refused(
    config: Path, words: list[str], train: StandIn, refused: Refused
) -> None:
    config.write_text(
        config.read_text()
        .replace('task="rte"', 'task="rte", rate=1e-2, seed=0')
        .replace('"trunk": TRUNK', '"trunk": TRUNK, "seed": seed')
        .replace("train = {", 'train = {"learning_rate": rate, ')
    )
    given = [words[0], f"{words[1]}:rate=1e-3", *words[2:]]
    assert has_facts(refused(*given, RATES), '"train.learning_rate"', "config argument rate=1e-3")
    assert has_facts(refused(words[0], f"{words[1]}:seed=4", *words[2:], RATES), '"seed"', "--seeds=0,1,2")
    assert train.commands == []
    # An argument that is not a swept setting, and one that has its default value.
    assert main([words[0], f"{words[1]}:task=cb,rate=1e-2", *words[2:], RATES]) == 0


def test_different_tasks_have_different_rows(words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys) -> None:
    swept = [*words, "--grid.task.source=a,b", RATES]
    assert main(swept) == 0
    for folder in (tmp_path / "sweep" / "runs").iterdir():
        source = folder.name.partition(",")[0]
        (folder / "inputs.json").write_text(json.dumps({"task rte's dev rows": source}))
    assert main(swept) == 0
    assert "Warning" not in capsys.readouterr().out


def test_setting_with_a_failed_seed_is_not_the_best(
    words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys
) -> None:
    by_title = {"0.001 0": 0.9, "0.001 1": None, "0.01 0": 0.1, "0.01 1": 0.3, "0.1 0": None, "0.1 1": None}
    train.score = scores(**by_title)
    assert main([*words, "--grid.train.learning_rate=1e-1,1e-3,1e-2", "--seeds=0,1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(r"  +", line) for line in lines[2:5]] == [
        ["0.01", "0.2000 ± 0.1414", "2/2", "best"],
        ["0.001", "0.9000", "1/2"],
        ["0.1", "-", "0/2"],
    ]
    failed = tmp_path / "sweep" / "runs" / "train.learning_rate=0.001,seed=1" / "log.txt"
    assert f"  train.learning_rate=0.001, seed=1: {failed}" in lines
    found = [(row["status"], row["score"], row["metric"]) for row in rows(tmp_path / "sweep" / "sweep.csv")]
    assert found[:3] == [("failed", "", ""), ("failed", "", ""), ("done", "0.9", "accuracy")]


def test_best_mean_is_chosen_if_every_setting_has_a_failed_seed(
    words: list[str], train: StandIn, capsys: Capsys
) -> None:
    train.score = scores(**{"0.001 0": 0.3, "0.001 1": None, "0.0003 0": None, "0.0003 1": 0.4})
    assert main([*words, RATES, "--seeds=0,1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split() == ["0.0003", "0.4000", "1/2", "best"]
    assert "--config.train.learning_rate=0.0003" in lines[-1]


def test_nothing_is_chosen_if_every_run_failed(words: list[str], train: StandIn, capsys: Capsys) -> None:
    train.score = lambda settings: None
    assert main([*words, RATES]) == 1
    out = capsys.readouterr().out
    assert re.search(r"train.learning_rate +score +seeds\n0.001 +- +0/1\n0.0003 +- +0/1\n", out)
    assert "best" not in out


def test_ties_keep_the_order_of_the_grid(words: list[str], train: StandIn, capsys: Capsys) -> None:
    assert main([*words, "--grid.train.epochs=3,1,2"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:5]] == ["3", "1", "2"]


def test_last_result_of_each_task_counts(
    words: list[str], tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [("rte", "accuracy", 0.1), ("rte", "accuracy", 0.5), ("stsb", "pearson", 0.9), ("cb", "accuracy", 0.4)]

    def run(command: Sequence[str], log: Path) -> int:
        shared = {"name": "x", "kind": "adapter"}
        rows = [
            {**shared, "task": task, "metrics": {name: score}, "main_metric": name} for task, name, score in results
        ]
        write_result(log.parent, rows)
        return 0

    monkeypatch.setattr(sweep_runs, "run_command", run)
    assert main([*words, "--grid.train.epochs=1"]) == 0
    assert "seed=0: accuracy+pearson 0.6000 (" in capsys.readouterr().err
    [row] = rows(tmp_path / "sweep" / "sweep.csv")
    assert (float(row["score"]), row["metric"]) == (pytest.approx(0.6), "accuracy+pearson")


def test_remaining_time_is_estimated(
    words: list[str], train: StandIn, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Start and end times of the runs. The first run fails after one second.
    clock = iter([0, 1, 10, 82, 100, 148, 200, 204])
    monkeypatch.setattr(sweep_progress.time, "monotonic", lambda: next(clock))
    train.score = lambda settings: None if settings["seed"] == "0" else 0.5
    assert main([*words, "--grid.train.epochs=1", "--seeds=0,1,2,3"]) == 1
    ends = [line.rpartition(" (")[2] for line in capsys.readouterr().err.splitlines()[1:]]
    assert ends == ["1 s)", "1 min 12 s; about 2 min 24 s left)", "48 s; about 1 min 0 s left)", "4 s)"]
    assert [duration(seconds) for seconds in (59.6, 3599.6, 7500)] == ["1 min 0 s", "1 h 0 min", "2 h 5 min"]


# Sweeps that are refused before anything is written or run.


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ([], ("rte", "get_sweep", "--grid.SETTING", "--seeds=0 ", "--seeds=0,1,2")),
        (["--seeds=3"], ("--grid.SETTING", "--seeds=3 ")),
        (["--grid.train.learning_rat=1,2"], ("config.train.learning_rat ", 'Did you mean "learning_r')),
        (["--grid.task.presett=rte,cb"], ("config.task.presett ", 'Did you mean "preset"?')),
        (["--grid.train.epochs=1,many"], ("config.train.epochs is 'many'", "float")),
        (["--grid.train.batch_size=8,0"], ("train.batch_size is 0", "at least 1")),
        ([RATES, "--config.train.epoch=3"], ("config.train.epoch ", 'Did you mean "epochs"?')),
        (["--grid.train.epochs="], ("--grid.train.epochs ", "no values")),
        (["--grid.train.epochs"], ("--grid.train.epochs ", "no values")),
        (["--grid.train.epochs=1,,2"], ("--grid.train.epochs=1,,2 ", "empty value")),
        (["--grid.train.epochs=1,1"], ("--grid.train.epochs ", "value 1 ", "twice")),
        (["--grid.train.epochs=1e-3,0.001"], ("--grid.train.epochs ", "value 0.001 ", "twice")),
        (["--grid.train.epochs=1,1.0"], ("train.epochs=1, seed=0 ", "train.epochs=1.0, seed=0 ", "same")),
        (["--grid.train.epochs=1e999"], ("--grid.train.epochs ", "value inf", "Python literal")),
        (["--grid.adapter.layers=(0,1"], ("--grid.adapter.layers=(0,1 ", "unmatched")),
        (["--grid.adapter.layers=0),(1"], ("--grid.adapter.layers=0),(1 ", "unmatched")),
        (["--grid.trunk='a"], ("--grid.trunk='a ", "unmatched")),
        ([RATES, "--grid.train.learning_rate=1"], ("--grid.train.learning_rate ", "given twice")),
        (
            [RATES, "--config.train.learning_rate=1"],
            ('"train.learning_rate"', "--config.train.learning_rate", "--grid.train.learning_rate=VALUE"),
        ),
        ([RATES, "--grid.train={'epochs': 3.0}"], ('"train.learning_rate"', 'swept "train"')),
        (["--grid.seed=0,1"], ('"seed"', "--seeds=0,1,2")),
        ([RATES, "--config.seed=1"], ('"seed"', "--seeds=0,1,2")),
        ([RATES, "--config.fusion.temperature=5"], ("--config.fusion.temperature ", "recipe=single")),
        (["--grid.fusion.temperature=1.0,5.0"], ('"fusion.temperature"', "recipe=single", "temperature=VALUE")),
        (
            ["--grid.adapter.reduction_factor=8,16", "--config.partition=head"],
            ('"adapter.reduction_factor"', "partition=head"),
        ),
        (["--grid.adapter.reduction_factor=8,16", "--config.adapter.size=4"], ('"adapter.reduction_factor"',)),
        ([RATES, "--seeds=a"], ('--seeds is "a"', "integers")),
        ([RATES, "--seeds="], ("--seeds is empty",)),
        ([RATES, "--seeds=1,2,1"], ('--seeds is "1,2,1"', "once")),
    ],
)
def test_invalid_sweep_is_refused(
    words: list[str], train: StandIn, refused: Refused, given: list[str], facts: tuple[str, ...]
) -> None:
    assert has_facts(refused(*words, *given), *facts)
    assert train.commands == []


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("def get_sweep():\n    return {'train.epochs': []}\n", ("train.epochs in get_sweep", "CONFIG ", "no values")),
        ("def get_sweep():\n    return {'train.epochs': 3}\n", ("get_sweep", "CONFIG ", "{'train.epochs': 3}; ")),
        ("def get_sweep():\n    return [1]\n", ("get_sweep", "CONFIG ", "[1]; ")),
        ("def get_sweep():\n    return {}\n", ("get_sweep", "--grid.SETTING")),
        ("def get_sweep():\n    raise KeyError('x')\n", ("get_sweep", "CONFIG ", "KeyError: 'x'")),
        ("def get_sweep():\n    return {'train.epoch': [1]}\n", ("config.train.epoch ", "known")),
        ("def get_sweep():\n    return {'trunk': [{1: object}]}\n", ("trunk", "Python literal", "finite numbers")),
        (
            "import numpy as np\ndef get_sweep():\n    return {'train.epochs': list(np.ones(1))}\n",
            ("value np.float64(1.0)", "Python literal", "finite numbers"),
        ),
        ("def get_sweep(:\n", ("config", "CONFIG ", "line ")),
    ],
)
def test_invalid_get_sweep_is_refused(
    words: list[str], config: Path, train: StandIn, refused: Refused, text: str, facts: tuple[str, ...]
) -> None:
    write_config(config, text)
    assert has_facts(refused(*words), *(fact.replace("CONFIG", str(config)) for fact in facts))
    assert train.commands == []


def test_missing_config_is_refused(words: list[str], config: Path, refused: Refused) -> None:
    sentence = refused(words[0], f"--config={config.with_name('rt.py')}", words[2], RATES)
    assert str(config.with_name("rt.py")) in sentence
    assert f'Did you mean "{config}"?' in sentence


def test_damaged_workdir_is_refused(words: list[str], train: StandIn, tmp_path: Path, refused: Refused) -> None:
    assert main([*words, RATES]) == 0
    result = tmp_path / "sweep" / "runs" / "train.learning_rate=0.001,seed=0" / "target" / "result.json"
    for text in ("[", "[{}]", "3", "{", "[" * 100 + "]" * 100):
        result.write_text(text)
        assert str(result) in refused(*words, RATES)
    record = tmp_path / "sweep" / "sweep.json"
    sound = json.loads(record.read_text())
    changes: list[dict[str, Any]] = [{"grid": 3}, {"grid": {"x": "3"}}, {"seeds": ["0"]}, {"overrides": "a=1"}]
    for text in ("{", "{}", "[]", *(json.dumps({**sound, **change}) for change in changes)):
        record.write_text(text)
        assert str(record) in refused(*words, RATES)


def test_file_in_place_of_the_workdir_is_refused(words: list[str], tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "sweep").write_text("kept")
    assert f"{tmp_path / 'sweep'}" in refused(*words, RATES)
    (tmp_path / "sweep").unlink()
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "runs").write_text("kept")
    assert "Not a directory" in refused(*words, RATES)


def test_full_disk_is_reported(
    words: list[str], train: StandIn, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(sweep_results, "write_text", full_disk)
        assert main([*words, RATES]) == 2
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert has_facts(sentence, "afjax: ", f"workdir {tmp_path / 'sweep'} ", "No space left on device", "--workdir")
    assert main([*words, RATES]) == 0


@pytest.mark.parametrize(
    "given", [["--help"], ["--grid.train.epochs=1", "--confg.seed=1"], ["--store=x", "--grid.train.epochs=1"]]
)
def test_help_and_unknown_flags(words: list[str], capsys: Capsys, given: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main([*words, *given])
    out, err = capsys.readouterr()
    if given == ["--help"]:
        assert raised.value.code == 0
        assert "\n  afjax sweep --config=" in out
    else:
        assert raised.value.code == 2
        assert "error: unknown arguments: " in err


def test_setting_without_an_equals_sign_gets_advice(capsys: Capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--config=x.py", "--config.train.epochs", "3", "--workdir=x"])
    assert has_facts(capsys.readouterr().err, "3", "--config.train.epochs=3")


def test_only_sweep_accepts_grid_flags(capsys: Capsys) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--config=x.py", "--workdir=x", "--grid.train.epochs=1"])
    assert has_facts(capsys.readouterr().err, "unknown", "--grid.train.epochs=1")


def test_runs_start_with_a_copy_of_the_given_adapters(
    words: list[str], train: StandIn, tmp_path: Path, refused: Refused, capsys: Capsys
) -> None:
    there = tmp_path / "there"
    (there / "adapters" / "one").mkdir(parents=True)
    (there / "adapters" / "one" / "manifest.json").write_text("{}")
    assert has_facts(refused(*words, RATES, f"--adapters={tmp_path / 'nowhere'}"), f"={tmp_path / 'nowhere'} ", "store")
    given = [*words, RATES, f"--adapters={there}"]
    assert main(given) == 0
    for folder in (tmp_path / "sweep" / "runs").iterdir():
        assert (folder / "store" / "adapters" / "one" / "manifest.json").read_text() == "{}"
    assert len(train.titles) == 2
    command = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command[:2] == ["afjax", "train"]
    assert f"--store={there}" in command
    sentence = refused(*words, RATES)
    assert "has another sweep" in sentence
    assert has_facts(sentence, f"adapters: recorded {there},", "none")
