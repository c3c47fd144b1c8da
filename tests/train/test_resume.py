"""Runs that are killed and resumed are bit-identical to uninterrupted runs."""

import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import pytest
from fork_server import fork_server

from afjax import store
from afjax.config.adapters import AdapterConfig
from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.train.options import RunOptions
from afjax.train.single import train_single
from afjax.trees import tree_digest
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

CONFIG = """
import ml_collections

def get_config():
    config = ml_collections.ConfigDict()
    config.trunk = {trunk!r}
    config.task = {{"name": "quantity", "source": {data!r}}}
    config.train = {{
        "max_steps": 60, "batch_size": 8, "max_length": 8, "buckets": (8,), "eval_every": 15, "checkpoint_every": 3,
        "learning_rate": 1e-2,
    }}
    return config
"""


def train_command(config: Path, workdir: Path) -> None:
    """Runs ``afjax train`` in a separate process."""
    from afjax.cli.main import main

    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        code = main(["train", f"--config={config}", f"--workdir={workdir}"])
    # Exit without the interpreter's shutdown, which would wait for threads.
    os._exit(code)


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    return fork_server()


@pytest.fixture
def config_file(tiny_trunk_folder: Path, data: Path, tmp_path: Path) -> Path:
    path = tmp_path / "config.py"
    path.write_text(CONFIG.format(trunk=str(tiny_trunk_folder), data=str(data)))
    return path


def steps_of(workdir: Path) -> list[int]:
    lines = (workdir / "target" / "metrics.jsonl").read_text().splitlines()
    return [line["step"] for line in map(json.loads, lines) if "loss" in line]


def evaluations_of(workdir: Path) -> list[dict]:
    lines = (workdir / "target" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "dev/accuracy" in line]


def digests(workdir: Path) -> dict[str, str]:
    return {
        f"{kind}/{name}": store.read_manifest(workdir / "store", kind, name).digest
        for kind, name in store.folders(workdir / "store")
    }


def test_run_killed_at_ten_random_moments_is_bit_identical(
    processes: multiprocessing.context.ForkServerContext, config_file: Path, tmp_path: Path
) -> None:
    uninterrupted, killed = tmp_path / "uninterrupted", tmp_path / "killed"

    def start(workdir: Path) -> multiprocessing.process.BaseProcess:
        process = processes.Process(target=train_command, args=(config_file, workdir))
        process.start()
        return process

    def lines(workdir: Path) -> int:
        path = workdir / "target" / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def wait_for_steps(process: multiprocessing.process.BaseProcess, workdir: Path, steps: int = 1) -> None:
        # A resumed run removes the lines after its last checkpoint, so the number of lines can decrease.
        last, deadline = lines(workdir), time.monotonic() + 600
        while process.is_alive() and steps > 0 and time.monotonic() < deadline:
            time.sleep(0.005)
            now = lines(workdir)
            steps, last = steps - max(now - last, 0), now

    process = start(uninterrupted)
    wait_for_steps(process, uninterrupted)
    begin = time.monotonic()
    process.join()
    duration = time.monotonic() - begin
    assert process.exitcode == 0

    draw, num_killed = random.Random(0), 0
    for attempt in range(10):
        process = start(killed)
        # Every third attempt is killed at a random moment after its start. The other attempts are killed after some
        # steps, so that steps, checkpoints and evaluations are interrupted.
        if attempt % 3 == 0:
            process.join(draw.uniform(0, 2))
        else:
            wait_for_steps(process, killed, draw.randint(1, 6))
            process.join(draw.uniform(0, duration / 60))
        num_killed += process.is_alive()
        process.kill()
        process.join()
        assert store.verify(killed / "store") == []
    assert num_killed >= 8
    process = start(killed)
    process.join()
    assert process.exitcode == 0

    assert digests(killed) == digests(uninterrupted)
    assert digests(uninterrupted).keys() == {"adapters/quantity", "heads/quantity"}
    assert steps_of(killed) == steps_of(uninterrupted) == list(range(1, 61))
    assert evaluations_of(killed) == evaluations_of(uninterrupted)
    assert len(evaluations_of(uninterrupted)) == 4
    assert store.verify(killed / "store") == []


def test_run_is_resumed_in_the_same_process(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from afjax.train.checkpoints import RunCheckpoints

    settings = dataclasses.replace(tiny, checkpoint_every=3, dropout=True)
    given: dict[str, Any] = {"config": settings, "method": Method(partition="full")}
    uninterrupted = train_single(tiny_trunk, task, rows, workdir=tmp_path / "uninterrupted", **given)

    save = RunCheckpoints.save

    def save_and_stop(self: RunCheckpoints, step: int, *args: object) -> None:
        if step == 9:
            raise KeyboardInterrupt
        save(self, step, *args)

    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpoints, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            train_single(tiny_trunk, task, rows, workdir=tmp_path / "stopped", **given)

    restore, in_use = RunCheckpoints.restore, list[int]()

    def restore_and_measure(self: RunCheckpoints, *shapes: Any) -> Any:
        in_use.append(sum(array.nbytes for array in jax.live_arrays()) - before)
        return restore(self, *shapes)

    monkeypatch.setattr(RunCheckpoints, "restore", restore_and_measure)
    before = sum(array.nbytes for array in jax.live_arrays())
    resumed = train_single(tiny_trunk, task, rows, workdir=tmp_path / "stopped", **given)
    # The initial state is dropped before a checkpoint is read.
    assert in_use[0] < sum(leaf.nbytes for leaf in jax.tree.leaves(tiny_trunk.params))
    assert tree_digest(resumed.params) == tree_digest(uninterrupted.params)
    assert resumed.metrics == uninterrupted.metrics
    log, expected = (tmp_path / name / "metrics.jsonl" for name in ("stopped", "uninterrupted"))
    assert log.read_text() == expected.read_text()


def test_checkpoint_of_another_run_is_refused(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tiny: TrainConfig, tmp_path: Path
) -> None:
    settings = dataclasses.replace(tiny, max_steps=3, eval_every=3, checkpoint_every=3)
    train_single(tiny_trunk, task, rows, workdir=tmp_path, config=settings)
    other = dataclasses.replace(tiny_trunk, sha256="0" * 64)
    fewer = {**rows, "train": rows["dev"]}
    size = {"method": Method(adapter=AdapterConfig(size=3))}
    changes: dict[str, tuple[Trunk, Mapping[str, Rows], dict[str, Any]]] = {
        "the trunk": (other, rows, {}),
        f"{task.name}'s train rows": (tiny_trunk, fewer, {}),
        "the seed": (tiny_trunk, rows, {"options": RunOptions(seed=1)}),
        "the arrays' shapes": (tiny_trunk, rows, size),
    }
    # Earlier versions did not write run.json, so only the checkpoint records the run's inputs.
    (tmp_path / "run.json").unlink()
    for change, (trunk, data, options) in changes.items():
        with pytest.raises(UserError, match=re.escape(change)):
            train_single(trunk, task, data, workdir=tmp_path, config=settings, **options)
    assert not (tmp_path / "run.json").exists()
    train_single(tiny_trunk, task, rows, workdir=tmp_path, config=settings)

    # A run.json that was copied from another run is refused, because it does not match the checkpoints.
    train_single(tiny_trunk, task, rows, workdir=tmp_path / "other", config=settings, options=RunOptions(seed=1))
    shutil.copy(tmp_path / "other" / "run.json", tmp_path)
    with pytest.raises(UserError, match=r"seed: 0 .* 1 "):
        train_single(tiny_trunk, task, rows, workdir=tmp_path, config=settings, options=RunOptions(seed=1))
