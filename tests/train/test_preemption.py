"""A process that gets SIGTERM saves its run and exits. The run can be resumed."""

import contextlib
import os
import signal
import sys
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import Batch
from afjax.data.splits import Rows
from afjax.distributed.preemption import delayed_interrupt, stopping_between_runs
from afjax.errors import PreemptionError, UserError
from afjax.model.task_model import TaskModel
from afjax.train.single import train_single
from afjax.train.single_run import SingleRun
from afjax.trees import flatten
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def uninterrupted(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> TaskModel:
    """Returns the result of an uninterrupted run."""
    return train_single(tiny_trunk, task, rows, workdir=tmp_path_factory.mktemp("uninterrupted"), config=tiny)


@pytest.mark.parametrize(("moment", "stops_at"), [(3, 5), (15, 16), (16, 16)])
def test_run_stopped_by_sigterm_saves_and_resumes_bit_identically(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tiny: TrainConfig,
    uninterrupted: TaskModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: int,
    stops_at: int,
) -> None:
    computed: list[int] = []

    def extra_metrics(run: SingleRun, batch: Batch) -> dict[str, float]:
        computed.append(1)
        if len(computed) == moment:
            os.kill(os.getpid(), signal.SIGTERM)
        return {}

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(SingleRun, "extra_metrics", extra_metrics)
    given: dict[str, Any] = {"workdir": tmp_path / "stopped", "config": tiny}
    with pytest.raises(PreemptionError, match=f"saved.*step {stops_at} of 16"):
        train_single(tiny_trunk, task, rows, **given)
    assert signal.getsignal(signal.SIGTERM) is before
    steps = [path.name for path in (tmp_path / "stopped" / "checkpoints").iterdir() if path.name.isdecimal()]
    assert str(stops_at) in steps
    found = train_single(tiny_trunk, task, rows, **given)
    # Each of the 16 steps was computed exactly once.
    assert len(computed) == 16
    for path, leaf in flatten(uninterrupted.params).items():
        assert np.array_equal(flatten(found.params)[path], leaf), path
    assert found.metrics == uninterrupted.metrics


def test_sigterm_between_runs_stops_the_command() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(PreemptionError, match=r"stop.*resume"), stopping_between_runs():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_code_that_catches_all_exceptions_does_not_hide_sigterm() -> None:
    def damaged() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception as error:
            raise UserError("The file is damaged.") from error

    with pytest.raises(PreemptionError), stopping_between_runs():
        damaged()


def test_ignored_exception_of_a_sigterm_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    class Value:
        pass

    hook, value = sys.unraisablehook, Value()
    with stopping_between_runs():
        reference = weakref.ref(value, lambda _: signal.raise_signal(signal.SIGTERM))
        del value
        assert reference() is None
    assert capsys.readouterr().err == ""
    assert sys.unraisablehook is hook


def test_run_stops_if_python_ignored_the_exception_of_an_earlier_sigterm(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tiny: TrainConfig, tmp_path: Path
) -> None:
    with stopping_between_runs():
        with contextlib.suppress(PreemptionError):
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(PreemptionError, match="saved"):
            train_single(tiny_trunk, task, rows, workdir=tmp_path, config=tiny)
    assert (tmp_path / "checkpoints").is_dir()
    assert not (tmp_path / "result.json").exists()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Makes SIGINT raise KeyboardInterrupt during the test.

    The test runner's worker processes ignore SIGINT by default.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(("interrupts", "reaches_the_end"), [(1, True), (2, False)])
def test_only_the_first_interrupt_is_delayed_to_the_end_of_the_block(interrupts: int, reaches_the_end: bool) -> None:
    reached = []

    def block() -> None:
        with delayed_interrupt():
            for _ in range(interrupts):
                signal.raise_signal(signal.SIGINT)
            reached.append("end")

    with pytest.raises(KeyboardInterrupt):
        block()
    assert bool(reached) == reaches_the_end


@pytest.mark.usefixtures("interruptible")
def test_block_without_an_interrupt_restores_the_handler() -> None:
    before = signal.getsignal(signal.SIGINT)
    with delayed_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
