"""Trains the runs of ``afjax sweep`` in several processes, the workers, each on its own part of the processor cores.

Much of a short run is work for one core: reading, tokenisation, tracing, compilation. With several workers, the other
cores have something to do meanwhile.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from afjax.cli.stored_model import set_up_libraries
from afjax.cli.sweep_plan import Run, Sweep
from afjax.cli.sweep_results import Outcome
from afjax.cli.sweep_training import Progress, train_runs
from afjax.distributed.preemption import stopping_between_runs
from afjax.errors import PREEMPTED, PreemptionError

# The share of a GPU's memory that all workers together allocate.
GPU_MEMORY = 0.9


@dataclasses.dataclass(eq=False)
class _Worker:
    """A worker process.

    Attributes:
      process: The process.
      connection: The parent's end of the pipe to the process.
      number: Its number, from 0.
      planned: The runs that it takes first.
      active: The runs that it has begun and not ended.
      has_begun: Whether it has begun a run.
    """

    process: BaseProcess
    connection: Connection
    number: int
    planned: deque[Run]
    active: list[Run] = dataclasses.field(default_factory=list)
    has_begun: bool = False


def train_in_workers(
    sweep: Sweep, workdir: Path, runs: Sequence[Run], progress: Progress, slots: int, processes: int
) -> None:
    """Trains runs in several processes.

    Each worker takes runs that follow each other, because these often share compiled programs. A worker without runs
    takes over another one's. If a worker dies, its active runs have failed, and a new worker takes its place.

    Args:
      sweep: The sweep.
      workdir: The sweep's folder.
      runs: The runs, in order.
      progress: Is told when a run starts, has finished a step, and ends.
      slots: The number of runs that each worker trains at a time.
      processes: The number of workers.

    Raises:
      PreemptionError: This process or a worker received SIGTERM. All runs that were training have saved their state.
    """
    workers = list[_Worker]()
    try:
        processes = min(processes, len(runs))
        for number in range(processes):
            part = runs[number * len(runs) // processes : (number + 1) * len(runs) // processes]
            workers.append(_start(sweep, workdir, slots, number, processes, deque(part)))
        while workers:
            ready = wait([worker.connection for worker in workers])
            for worker in [worker for worker in workers if worker.connection in ready]:
                try:
                    message, *values = worker.connection.recv()
                except (EOFError, OSError):  # The process has ended.
                    workers.remove(worker)
                    if _buried(worker, progress) and worker.planned:
                        workers.append(_start(sweep, workdir, slots, worker.number, processes, worker.planned))
                else:
                    _answer(worker, message, values, workers, progress)
    finally:
        for worker in workers:
            worker.process.terminate()
        for worker in workers:
            worker.process.join()


def _start(sweep: Sweep, workdir: Path, slots: int, number: int, processes: int, planned: deque[Run]) -> _Worker:
    # A forked process cannot use JAX.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_work, args=(there, sweep, workdir, slots, number, processes))
    process.start()
    there.close()
    return _Worker(process, here, number, planned)


def _answer(
    worker: _Worker, message: str, values: Sequence[Any], workers: Sequence[_Worker], progress: Progress
) -> None:
    """Handles a worker's message."""
    match message, values:
        case "next", []:
            # Runs at the end of another worker's part are the last that it would begin.
            longest = max(workers, key=lambda other: len(other.planned)).planned
            run = worker.planned.popleft() if worker.planned else longest.pop() if longest else None
            if run is not None:
                worker.active.append(run)
                worker.has_begun = True
            # A process that has ended since is noticed at the next message.
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


def _buried(worker: _Worker, progress: Progress) -> bool:
    """Waits for the end of a worker's process, and reports the runs that ended with it.

    Returns:
      Whether a new worker can take its place. If it could not begin a run, another one could not either.

    Raises:
      PreemptionError: The worker received SIGTERM.
    """
    worker.process.join()
    code = worker.process.exitcode or 0
    if code == PREEMPTED:
        raise PreemptionError("A process of the sweep was told to stop; run the same command again to resume.")
    how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
    lost = list(worker.active)
    if not worker.has_begun and code:
        lost += worker.planned
    for run in lost:
        progress.ended(run, Outcome(), f"failed: its process ended {how}")
    return worker.has_begun


# In a worker


class _Reports:
    """Sends a worker's progress to the parent. Its methods are those of :class:`Progress`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def started(self, run: Run) -> None:
        self._connection.send(("started", run))

    def trained(self, run: Run, done: int, num_steps: int) -> None:
        self._connection.send(("trained", run, done, num_steps))

    def ended(self, run: Run, outcome: Outcome, failure: str) -> None:
        self._connection.send(("ended", run, outcome, failure))


def _work(connection: Connection, sweep: Sweep, workdir: Path, slots: int, number: int, processes: int) -> None:
    """Trains runs until the parent has no more."""
    # Ctrl-C reaches all processes of a terminal. The parent then stops the workers with SIGTERM, so that they save.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number % len(cores) :: processes])
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{GPU_MEMORY / processes:.3f}")
    try:
        with stopping_between_runs():
            set_up_libraries()
            train_runs(sweep, workdir, _taken(connection), _Reports(connection), slots)
    except PreemptionError:
        sys.exit(PREEMPTED)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        # The parent has died. The runs resume from their last checkpoints.
        sys.exit(1)


def _taken(connection: Connection) -> Iterator[Run]:
    """Yields the parent's next runs."""
    while True:
        connection.send(("next",))
        if (run := connection.recv()) is None:
            return
        yield run
