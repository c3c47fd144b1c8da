"""A run prints a summary when it starts, and one line per evaluation."""

import dataclasses
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

from afjax.config.methods import Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import SamplingConfig, TrainConfig
from afjax.data.splits import Rows
from afjax.display.tables import table_lines
from afjax.display.terminal import progress_bar
from afjax.train import logs
from afjax.train.multitask import train_multitask
from afjax.train.single import train_single
from afjax.train.single_run import SingleRun
from afjax.trees import count
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow


def test_run_prints_a_summary_and_one_line_per_evaluation(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train() -> list[str]:
        train_single(tiny_trunk, task, rows, workdir=tmp_path, config=tiny, method=Method(partition="head"))
        return capsys.readouterr().err.splitlines()

    evaluate, metrics = SingleRun.evaluate, []

    def interrupted(self: SingleRun, trained: Any) -> dict[str, float]:
        metrics.append(evaluate(self, trained))
        if len(metrics) == 2:
            raise KeyboardInterrupt
        return metrics[-1]

    with monkeypatch.context() as patch:
        patch.setattr(SingleRun, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train()
    lines = capsys.readouterr().err.splitlines()
    # The output is not a terminal, so no progress bar is printed.
    assert not any("%|" in line or "\r" in line for line in lines)
    start = next(line for line in lines if "parameters are trained" in line)
    head = 32 * 32 + 32 + 2 * 32 + 2
    assert f"{head:,} of {head + count(tiny_trunk.params):,}" in start
    assert any(has_facts(line, "partition head", tiny_trunk.name, "1 device (cpu)") for line in lines)
    assert any("16 steps, 8 dev rows" in line for line in lines)
    assert any("24 train rows" in line and "padded to 8 tokens" in line for line in lines)
    evaluations = [line for line in lines if re.search(r"step \d+ of 16", line)]
    assert len(evaluations) == 1
    assert f"accuracy {metrics[0]['accuracy']:.4f}" in evaluations[0]
    assert any(has_facts(line, "estimated time", "2 s", "including 2 s") for line in lines)
    assert not any("finished" in line for line in lines)
    # Without a progress bar, each line has the elapsed time and the remaining time.
    assert re.search(r" elapsed, about \d+ .* left$", evaluations[0])

    resumed = train()
    assert any(has_facts(line, "resumes", "step 8 of 16") for line in resumed)
    assert sum(has_facts(line, "step 16 of 16", "dev accuracy") for line in resumed) == 1
    assert not any("step 8 of 16, dev" in line for line in resumed)
    assert not any(" left" in line for line in resumed if "step 16 of 16" in line)

    assert sum(has_facts(line, "finished in", "since it was resumed") for line in resumed) == 1

    again = train()
    assert any("finished" in line and str(tmp_path) in line for line in again)
    assert not any("dev accuracy" in line for line in again)


def test_early_stopping_is_reported(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = dataclasses.replace(tiny, learning_rate=0.0, eval_every=1, patience=2)
    # Without a progress bar, a line with the step is printed if nothing was printed for QUIET_SECONDS.
    monkeypatch.setattr(logs, "QUIET_SECONDS", -1.0)
    train_single(tiny_trunk, task, rows, workdir=tmp_path, config=config, method=Method(partition="head"))
    lines = capsys.readouterr().err.splitlines()
    assert sum("dev accuracy" in line for line in lines) == 3
    assert sum("at step 1)" in line for line in lines) == 2
    assert any("stops early: 2 evaluations" in line for line in lines)
    assert sum("loss" in line for line in lines) == 3
    assert sum(bool(re.search(r"finished in \d+ s, including \d+ s", line)) for line in lines) == 1
    # After the last step, there is nothing left to stop.
    config = dataclasses.replace(config, max_steps=3)
    train_single(tiny_trunk, task, rows, workdir=tmp_path / "b", config=config, method=Method(partition="head"))
    assert not any("stops early" in line for line in capsys.readouterr().err.splitlines())


def test_multitask_run_prints_the_main_metric_of_each_task(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = dataclasses.replace(tiny, max_steps=2, eval_every=2)
    models = train_multitask(
        tiny_trunk,
        (task, TaskConfig(name="other")),
        {"quantity": rows, "other": rows},
        workdir=tmp_path,
        config=config,
        method=MultitaskMethod(partition="head", sampling=SamplingConfig(steps_per_epoch=2)),
    )
    lines = capsys.readouterr().err.splitlines()
    (line,) = (line for line in lines if "step 2 of 2" in line)
    for name, model in models.items():
        assert f"{name}/accuracy {model.metrics['accuracy']:.4f}" in line
    trained = sum(count(model.params["heads"]) for model in models.values())
    assert any(f"{trained:,} of {trained + count(tiny_trunk.params):,} parameters" in line for line in lines)


def test_progress_bars_are_only_shown_in_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bar() -> str:
        with progress_bar("rows", 3, unit="row") as shown:
            shown.update(3)
        return capsys.readouterr().err

    assert bar() == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "rows" in bar()


def test_tables_align_texts_left_and_numbers_right() -> None:
    lines = table_lines([("right", "yes", "no"), ("yes", "10", "2"), ("no", "3", "400")])
    assert lines == ["right  yes   no", "yes     10    2", "no       3  400"]
    # Wide characters take two columns in a terminal.
    assert table_lines([("\u65e5\u672c", "1"), ("abc", "22")]) == ["\u65e5\u672c   1", "abc   22"]
