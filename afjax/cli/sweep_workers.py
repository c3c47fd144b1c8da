"""Trains the runs of ``afjax sweep`` in workers, each on its part of the machine.

On a machine with several TPU chips or GPUs, each worker has its own, so no step waits for another chip. Short runs also
spend much of their time on single-threaded work (loading, tokenization, tracing, compilation), which several workers
distribute over several cores.
"""

import contextlib
import dataclasses
import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.sweep_plan import Run, Sweep, part_of
from afjax.cli.sweep_results import Outcome, finished_outcome
from afjax.cli.sweep_training import Progress, train_runs
from afjax.display.terminal import warnings_in_one_line
from afjax.distributed.parts import use_part
from afjax.distributed.preemption import stopping_between_runs
from afjax.errors import PREEMPTED, PreemptionError, UserError
from afjax.storage.paths import error_text

# Seconds that a worker has to save its state and exit after its parent was killed.
WORKER_GRACE = 20.0


@dataclasses.dataclass(eq=False)
class _Worker:
    """A worker process.

    Attributes:
      process: The process.
      connection: The parent's end of the pipe to the process.
      number: The worker's number, from 0.
      planned: The worker's own queue of runs. Once it is empty, the worker takes runs from others.
      active: The runs that the worker has started but not ended.
      has_begun: Whether the worker has started a run.
      is_done: Whether the worker was notified that no runs are left.
    """

    process: BaseProcess
    connection: Connection
    number: int
    planned: deque[Run]
    active: list[Run] = dataclasses.field(default_factory=list)
    has_begun: bool = False
    is_done: bool = False


def train_in_workers(
    sweep: Sweep, workdir: Path, runs: Sequence[Run], progress: Progress, slots: int, processes: int
) -> None:
    """Trains runs in several processes.

    Each worker gets consecutive runs, because these often share compiled programs. An idle worker takes a run from the
    worker with the most runs left. If a worker dies, its active runs are reported as failed, unless they had written
    their results, and a new worker trains the rest of its runs. If the worker died before starting any run, another
    worker trains its runs instead; if there is no other worker, they are reported as failed.

    Args:
      sweep: The sweep.
      workdir: The sweep's folder.
      runs: The runs, in order.
      progress: Receives each run's start, steps and end.
      slots: The number of runs that each worker trains at a time.
      processes: The number of workers.

    Raises:
      UserError: A process cannot be started.
      PreemptionError: This process or a worker received SIGTERM. All active runs have saved their state.
    """
    workers, processes = list[_Worker](), min(processes, len(runs))
    start = functools.partial(_start, sweep, workdir, slots, processes)
    try:
        for number in range(processes):
            workers.append(start(number, deque(part_of(runs, number, processes))))
        while workers:
            ready = wait([worker.connection for worker in workers])
            for worker in [worker for worker in workers if worker.connection in ready]:
                try:
                    message, *values = worker.connection.recv()
                except (EOFError, OSError):  # The process has exited.
                    workers.remove(worker)
                    how = _report_end(worker, workdir, progress)
                    if worker.planned and worker.has_begun:
                        workers.append(start(worker.number, worker.planned))
                    elif others := [other for other in workers if not other.is_done]:
                        others[0].planned.extend(worker.planned)
                    else:
                        # No worker is left, and this one died before starting a run, as a new one probably would.
                        for run in worker.planned:
                            progress.ended(run, Outcome(), f"failed: the process that it waited for ended {how}")
                else:
                    _answer(worker, message, values, workers, progress)
    finally:
        # Stop the workers. Closing its connection unblocks a worker that waits for its next run: recv raises EOFError.
        for worker in workers:
            worker.process.terminate()
            worker.connection.close()
        for worker in workers:
            worker.process.join()


def _start(sweep: Sweep, workdir: Path, slots: int, processes: int, number: int, planned: deque[Run]) -> _Worker:
    # Spawn the process, because JAX does not work reliably in a forked one.
    context = multiprocessing.get_context("spawn")
    own_end, worker_end = context.Pipe()
    process = context.Process(target=_work, args=(worker_end, sweep, workdir, slots, number, processes))
    # Ctrl-C reaches all processes of a terminal. Workers ignore it, because this process stops them with SIGTERM, so
    # that they save their state.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    except OSError as error:
        raise UserError(
            f"{processes} processes cannot be started ({error_text(error)}); reduce --processes."
        ) from error
    finally:
        signal.signal(signal.SIGINT, previous)
    worker_end.close()
    return _Worker(process, own_end, number, planned)


def _answer(
    worker: _Worker, message: str, values: Sequence[Any], workers: Sequence[_Worker], progress: Progress
) -> None:
    """Handles a worker's message."""
    match message, values:
        case "next", []:
            # If the worker has no planned runs left, take the last run of the worker with the most planned runs.
            longest = max(workers, key=lambda other: len(other.planned)).planned
            run = worker.planned.popleft() if worker.planned else longest.pop() if longest else None
            if run is None:
                worker.is_done = True
            else:
                worker.active.append(run)
                worker.has_begun = True
            # If the worker has exited meanwhile, the next recv from its connection reports it.
            with contextlib.suppress(OSError):
                worker.connection.send(run)
        case "started", [run]:
            progress.started(run)
        case "trained", [run, done, num_steps]:
            progress.trained(run, done, num_steps)
        case "ended", [run, outcome, failure]:
            worker.active.remove(run)
            progress.ended(run, outcome, failure)
        case _:
            raise AssertionError(f"unknown message {message}")


def _report_end(worker: _Worker, workdir: Path, progress: Progress) -> str:
    """Waits for a worker's process to exit, and reports the runs that ended with it.

    Returns:
      The process's exit code or signal as text, such as "with exit code 1".

    Raises:
      PreemptionError: The worker received SIGTERM.
    """
    worker.process.join()
    code = worker.process.exitcode or 0
    if code in (PREEMPTED, -signal.SIGTERM):
        raise PreemptionError("A process of the sweep received SIGTERM; run the same command again to resume.")
    how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
    for run in worker.active:
        # The process may have exited after the run wrote its result.
        outcome = finished_outcome(workdir, run)
        progress.ended(run, outcome or Outcome(), "" if outcome else f"failed: its process ended {how}")
    return how


# In a worker


class _Reports:
    """A :class:`Progress` that sends each call from a worker to its parent."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def started(self, run: Run) -> None:
        _send(self._connection, "started", run)

    def trained(self, run: Run, done: int, num_steps: int) -> None:
        _send(self._connection, "trained", run, done, num_steps)

    def ended(self, run: Run, outcome: Outcome, failure: str) -> None:
        _send(self._connection, "ended", run, outcome, failure)


def _work(connection: Connection, sweep: Sweep, workdir: Path, slots: int, number: int, processes: int) -> None:
    """The worker's main function: trains the runs that the parent sends."""
    threading.Thread(target=end_with_parent, args=(WORKER_GRACE,), daemon=True).start()
    use_part(number, processes)
    try:
        with stopping_between_runs(), warnings_in_one_line():
            use_compilation_cache()
            train_runs(sweep, workdir, _taken(connection), _Reports(connection), slots)
    except PreemptionError:
        sys.exit(PREEMPTED)


def end_with_parent(grace: float) -> None:
    """Stops this process when its parent exits.

    Active runs save their state at their next step. A process that does not exit in time, for example because it
    compiles a program, is ended without saving, to release the runs' folders for a restarted sweep.

    Args:
      grace: Seconds to wait for this process to exit.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are child processes"
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os._exit(PREEMPTED)


def _taken(connection: Connection) -> Iterator[Run]:
    """Yields the runs that the parent sends, one per request, until there are no more.

    If the parent has exited, this worker stops; see :func:`_stop`.
    """
    while True:
        _send(connection, "next")
        try:
            run = connection.recv()
        except (EOFError, OSError):
            _stop()
            return
        if run is None:
            return
        yield run


def _send(connection: Connection, *message: Any) -> None:
    try:
        connection.send(message)
    except OSError:
        _stop()


def _stop() -> None:
    """Stops this worker. Active runs save their state at their next step."""
    signal.raise_signal(signal.SIGTERM)
