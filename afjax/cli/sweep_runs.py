"""Trains a sweep's runs in this process, in workers, or in one process per run."""

import contextlib
import dataclasses
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from etils import epath

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.experiments import load_experiment
from afjax.cli.explain import explain
from afjax.cli.sweep_plan import Run, Sweep, part_of, run_folder
from afjax.cli.sweep_progress import SweepProgress
from afjax.cli.sweep_results import Outcome, finished_outcome, write_tables
from afjax.cli.sweep_training import begin_run, train_runs
from afjax.cli.sweep_workers import WORKER_GRACE, train_in_workers
from afjax.config.experiment import ExperimentConfig
from afjax.config.values import TRAINS_LAYERS
from afjax.display.terminal import print_line
from afjax.display.words import counted
from afjax.distributed import hosts
from afjax.distributed.parts import find_devices
from afjax.distributed.preemption import stopping_between_runs
from afjax.distributed.sharding import make_mesh
from afjax.errors import UserError
from afjax.storage.locking import only_holder, wait_until_free
from afjax.storage.paths import error_text
from afjax.storage.writing import write_json
from afjax.train.checks import check_batches
from afjax.train.sweep_files import RUN_LOG, SWEEP_RECORD, last_log_line

# The module that runs a command in a separate process.
ISOLATED_RUN = "afjax.cli.isolated_run"


def run_sweep(
    sweep: Sweep,
    workdir: Path,
    *,
    host: int = 0,
    num_hosts: int = 1,
    slots: int = 1,
    processes: int = 1,
    isolate: bool = False,
) -> dict[str, Outcome]:
    """Trains this host's unfinished runs, and reports each one on stderr.

    If a run fails, its failure is reported and the sweep continues. Both CSV files are updated after every run.

    Args:
      sweep: The sweep.
      workdir: The sweep's folder.
      host: This host's number, from 0. Each host trains a part of the runs, and hosts do not communicate.
      num_hosts: The number of hosts.
      slots: The number of runs to train at a time in one process; see :func:`afjax.train_many`.
      processes: The number of training processes. With 1, this process trains.
      isolate: Whether to train each run in a separate process, so that a crash does not end the sweep.

    Returns:
      ``{run's name: outcome}`` for every run of this host, and for other finished runs in this workdir.

    Raises:
      UserError: The workdir cannot be written, another process trains this host's runs, a run's result cannot be read,
        or JAX spans several hosts.
      PreemptionError: SIGTERM was received. All active runs have saved their state.
    """
    own = part_of(sweep.runs, host, num_hosts)
    outcomes = _finished(sweep, workdir)
    with contextlib.ExitStack() as stack:
        waiting = [run for run in own if run.name not in outcomes]
        if waiting and (isolate or num_hosts > 1):
            # Do not initialize jax.distributed, because each host trains its own runs on its own devices, and with
            # isolate, only the runs' processes use JAX.
            stack.enter_context(stopping_between_runs())
        elif waiting:
            job = stack.enter_context(hosts.Job(explain=explain))
            stack.enter_context(stopping_between_runs(job.leave))
            # This check must not initialize JAX's backend, which would reserve all devices and leave none to workers.
            if job.is_one_of_several:
                raise UserError(
                    "JAX spans several hosts, but each host of a sweep trains its own runs; use --hosts=N --host=I."
                )
        try:
            (workdir / "runs").mkdir(parents=True, exist_ok=True)
            same = f" as host {host}" if num_hosts > 1 else ""
            message = f"Another sweep is running in {workdir}{same}; wait until it ends, or choose another --workdir."
            stack.enter_context(only_holder(workdir / f".lock-{host}", message))
            # Another process may have finished runs before it released the lock.
            outcomes = _finished(sweep, workdir)
            waiting = [run for run in own if run.name not in outcomes]
            part = f"host {host} of {num_hosts} trains {len(own)}, " if num_hosts > 1 else ""
            logs = workdir / "runs" / "*" / RUN_LOG
            print_line(f"{counted(len(sweep.runs), 'run')}, {part}{len(waiting)} to do; logs are {logs}")
            _wait_for_earlier_processes(workdir, waiting)
            write_json(workdir / SWEEP_RECORD, dataclasses.asdict(sweep))
            write_tables(sweep, outcomes, workdir)
            progress = stack.enter_context(
                contextlib.closing(SweepProgress(sweep, own, workdir, outcomes, slots * processes))
            )
            if isolate:
                _run_isolated(sweep, workdir, waiting, progress)
            elif waiting:
                # On TPU hosts, even a single process is a worker, because this process would claim the chips of all
                # hosts, while a worker has one chip.
                in_workers = processes > 1 or (num_hosts > 1 and bool(find_devices().tpu_chips))
                _run_in_groups(sweep, workdir, waiting, progress, slots, processes if in_workers else 0)
        except BrokenPipeError:  # The program that reads the output has exited. The workdir is fine.
            raise
        except OSError as error:
            raise UserError(
                f"The sweep in the workdir {workdir} stopped ({error_text(error)}). If the workdir cannot be written, "
                "free up space or choose another --workdir."
            ) from None
    return progress.outcomes


def _wait_for_earlier_processes(workdir: Path, runs: Sequence[Run]) -> None:
    """Waits until no process trains one of the runs.

    If a sweep was killed, its processes still save their runs for up to ``WORKER_GRACE`` seconds.
    """
    folders = [run_folder(workdir, run) for run in runs]
    locks = [lock for folder in folders for depth in ("*", "*/*") for lock in folder.glob(f"{depth}/.lock")]
    if not wait_until_free(locks, seconds=0.0):
        print_line(f"Other processes still train some of these runs; waiting up to {WORKER_GRACE + 5:.0f} s ...")
        wait_until_free(locks, seconds=WORKER_GRACE + 5)


def _finished(sweep: Sweep, workdir: Path) -> dict[str, Outcome]:
    return {run.name: outcome for run in sweep.runs if (outcome := finished_outcome(workdir, run))}


# Several runs per process


def _run_in_groups(
    sweep: Sweep, workdir: Path, runs: Sequence[Run], progress: SweepProgress, slots: int, workers: int
) -> None:
    """Trains runs in groups that share a trunk. With 0 workers, this process trains."""
    use_compilation_cache()
    find_adapters = (lambda: sweep.adapters) if sweep.adapters else None
    experiments = [
        load_experiment(sweep.config, [*sweep.overrides, *run.overrides], find_store=find_adapters) for run in runs
    ]
    # Runs with the same trunk, dtype and mesh can share a frozen trunk on the devices.
    groups: dict[Any, list[Run]] = {}
    for run, experiment in zip(runs, experiments, strict=True):
        groups.setdefault((experiment.trunk, experiment.trunk_dtype, experiment.mesh), []).append(run)
    if len(groups) > 1:
        print_line(
            f"The runs form {len(groups)} groups, because they differ in trunk, trunk_dtype or mesh. Runs of a group "
            "share the trunk and compiled programs."
        )
    if slots > 1 and any(map(_computes_its_steps, experiments)):
        print_line(
            "Runs with several tasks, with trained trunk layers or with prng=rbg compute their steps separately. They "
            f"train faster without --slots={slots}."
        )
    if workers:
        ordered = [run for group in groups.values() for run in group]
        train_in_workers(sweep, workdir, ordered, progress, slots, workers)
        return
    # A worker checks this itself, because only it knows its devices.
    for experiment in experiments:
        check_batches(experiment, make_mesh(experiment.mesh))
    for group in groups.values():
        train_runs(sweep, workdir, group, progress, slots)


def _computes_its_steps(experiment: ExperimentConfig) -> bool:
    """Checks whether a run's steps must be computed separately.

    With ``--slots``, the steps of other runs are stacked and computed as one.
    """
    return (
        experiment.recipe in ("multitask", "sequential")
        or (experiment.recipe == "single" and experiment.partition in TRAINS_LAYERS)
        or experiment.train.prng == "rbg"
    )


# One process per run


def _run_isolated(sweep: Sweep, workdir: Path, runs: Sequence[Run], progress: SweepProgress) -> None:
    for run in runs:
        progress.started(run)
        folder = run_folder(workdir, run)
        try:
            arguments = begin_run(sweep, run, folder)
        except UserError as error:
            progress.ended(run, Outcome(), f"failed: {error}")
            continue
        code = run_command([sys.executable, "-m", ISOLATED_RUN, *arguments], folder / RUN_LOG)
        outcome = finished_outcome(workdir, run)
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
        failure = "" if outcome else f"failed {how}: {last_log_line(epath.Path(folder / RUN_LOG))}"
        progress.ended(run, outcome or Outcome(), failure)


def run_command(command: Sequence[str], log: Path) -> int:
    """Runs a command and appends its output to a file.

    On SIGTERM or Ctrl-C, this function sends SIGTERM to the command and waits for it to end, so that a run can save its
    state. The command's standard input is a pipe that closes when this process ends, so that the command can end too;
    see :mod:`afjax.cli.isolated_run`.

    Returns:
      The exit code, or the negated number of the signal that ended the command.
    """
    # Ctrl-C reaches all processes of a terminal. In its own group, the command only receives SIGTERM.
    with (
        log.open("a", encoding="utf-8") as file,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, process_group=0
        ) as process,
    ):
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
