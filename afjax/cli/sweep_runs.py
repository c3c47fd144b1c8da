"""Runs the runs of ``afjax sweep``, in this process or each in a process of its own."""

import contextlib
import dataclasses
import functools
import shlex
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from afjax.cli.configs import load_experiment
from afjax.cli.explain import explain, explained_memory_error
from afjax.cli.result_lines import result_lines
from afjax.cli.run_output import RunOutput
from afjax.cli.stored_model import set_up_libraries
from afjax.cli.sweep_plan import RECORD, Run, Sweep, run_folder
from afjax.cli.sweep_progress import SweepProgress
from afjax.cli.sweep_results import LOG, Outcome, finished_outcome, train_arguments, write_tables
from afjax.config.experiment import ExperimentConfig
from afjax.config.values import TRAINS_LAYERS
from afjax.display.terminal import print_line
from afjax.display.words import counted
from afjax.distributed import hosts
from afjax.distributed.preemption import stopping_between_runs
from afjax.errors import UserError
from afjax.storage.paths import cache_folder, open_path
from afjax.storage.writing import write_json
from afjax.train.experiment import experiment_training
from afjax.train.loop import StepRequest, Training
from afjax.train.shared import Shared
from afjax.train.together import run_together
from afjax.train.workdir import find_store


def run_sweep(sweep: Sweep, workdir: Path, *, slots: int = 1, isolate: bool = False) -> dict[str, Outcome]:
    """Runs the unfinished runs, and reports each on stderr.

    If a run fails, the failure is reported and the sweep continues. The two CSV files are written after every run.

    Args:
      sweep: The sweep.
      workdir: The sweep's folder.
      slots: The number of runs that train at a time; see :func:`afjax.train_many`.
      isolate: Whether to train each run in a separate process, so that a crash does not end the sweep.

    Returns:
      ``{run's name: outcome}`` for every run.

    Raises:
      UserError: The workdir cannot be written, a run's result cannot be read, or there are several hosts.
      PreemptionError: SIGTERM was received. All runs that were training in this process have saved their state.
    """
    outcomes = {run.name: outcome for run in sweep.runs if (outcome := finished_outcome(workdir, run))}
    waiting = [run for run in sweep.runs if run.name not in outcomes]
    with contextlib.ExitStack() as stack:
        if waiting and not isolate:
            job = stack.enter_context(hosts.Job(explain=explain))
            stack.enter_context(stopping_between_runs(job.leave))
            if hosts.several_hosts():
                raise UserError(
                    "A sweep trains on one host; give --isolate, or run afjax train for each run on all hosts."
                )
        print_line(f"{counted(len(sweep.runs), 'run')}, {len(waiting)} to do; logs are {workdir / 'runs' / '*' / LOG}")
        try:
            (workdir / "runs").mkdir(parents=True, exist_ok=True)
            write_json(workdir / RECORD, dataclasses.asdict(sweep))
            write_tables(sweep, outcomes, workdir)
            progress = stack.enter_context(SweepProgress(sweep, workdir, outcomes, slots))
            if isolate:
                _run_isolated(sweep, workdir, waiting, progress)
            elif waiting:
                _run_in_this_process(sweep, workdir, waiting, progress, slots)
        except OSError as error:
            raise UserError(
                f"The workdir {workdir} cannot be written ({error.strerror or error}); make room or give another "
                "--workdir."
            ) from None
    return progress.outcomes


def _begin(sweep: Sweep, run: Run, folder: Path) -> list[str]:
    """Makes a run's folder with the adapters that it starts with, and begins its log.

    Returns:
      The arguments of ``afjax`` that train the run.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arguments = train_arguments(sweep, folder, run.overrides)
    if sweep.adapters and not (folder / "store").exists():
        part = folder / "store.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(Path(sweep.adapters) / "adapters", part / "adapters")
        part.rename(folder / "store")
    # Append, so that the log keeps the output of earlier attempts.
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(['afjax', *arguments])}\n")
    return arguments


# One process for all runs


def _run_in_this_process(sweep: Sweep, workdir: Path, runs: Sequence[Run], progress: SweepProgress, slots: int) -> None:
    set_up_libraries()
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
            f"The runs are in {len(groups)} groups, because they differ in trunk, trunk_dtype or mesh. The runs of a "
            "group share the trunk and compiled programs."
        )
    if slots > 1 and any(map(_computes_its_steps, experiments)):
        print_line(
            "Runs with several tasks, runs that train layers of the trunk, and runs with prng=rbg compute their steps "
            f"separately. They train faster without --slots={slots}."
        )
    for group in groups.values():
        _run_group(sweep, workdir, group, progress, slots)


def _computes_its_steps(experiment: ExperimentConfig) -> bool:
    """Whether a run cannot share its steps with other runs."""
    return (
        experiment.recipe in ("multitask", "sequential")
        or (experiment.recipe == "single" and experiment.partition in TRAINS_LAYERS)
        or experiment.train.prng == "rbg"
    )


def _run_group(sweep: Sweep, workdir: Path, runs: Sequence[Run], progress: SweepProgress, slots: int) -> None:
    shared, output = Shared(), RunOutput()

    def requested(number: int, request: StepRequest) -> None:
        progress.trained(runs[number], request.done, request.run.num_steps)

    def ended(number: int, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, Exception):
            progress.ended(runs[number], Outcome(), f"failed: {_message(outcome)}")
        else:
            progress.ended(runs[number], outcome, "")

    run_together(
        [_training(sweep, workdir, run, progress, shared) for run in runs],
        slots=slots,
        shared=shared,
        within=lambda number: output.to(run_folder(workdir, runs[number]) / LOG),
        requested=requested,
        ended=ended,
    )


def _training(sweep: Sweep, workdir: Path, run: Run, progress: SweepProgress, shared: Shared) -> Training[Outcome]:
    """Does what ``afjax train`` does, for a caller that computes the steps and redirects the output."""
    progress.started(run)
    local = run_folder(workdir, run)
    folder = open_path(local)
    try:
        _begin(sweep, run, local)
        config = load_experiment(
            sweep.config, [*sweep.overrides, *run.overrides], find_store=functools.partial(find_store, folder)
        )
        with explained_memory_error():
            results = yield from experiment_training(
                config, workdir=folder, cache_dir=cache_folder() / "tokenised", shared=shared
            )
        print("\n".join(result_lines(config, results, find_store(folder))))
        outcome = finished_outcome(workdir, run)
        assert outcome is not None, "the experiment has written its result"
        return outcome
    except Exception as error:
        explained = explain(error)
        print_line(f"afjax: {explained[1]}" if explained else traceback.format_exc())
        raise


def _message(error: Exception) -> str:
    explained = explain(error)
    return explained[1] if explained else f"{type(error).__name__}: {error}".partition("\n")[0]


# One process per run


def _run_isolated(sweep: Sweep, workdir: Path, runs: Sequence[Run], progress: SweepProgress) -> None:
    for run in runs:
        progress.started(run)
        folder = run_folder(workdir, run)
        arguments = _begin(sweep, run, folder)
        code = run_command([sys.executable, "-m", "afjax", *arguments], folder / LOG)
        outcome = finished_outcome(workdir, run)
        how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
        failure = "" if outcome else f"failed {how}: {_last_line(folder / LOG)}"
        progress.ended(run, outcome or Outcome(), failure)


def run_command(command: Sequence[str], log: Path) -> int:
    """Runs a command and appends its output to a file.

    Returns:
      The exit code, or minus the number of the signal that ended the command.
    """
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False)
    return done.returncode


def _last_line(log: Path) -> str:
    # splitlines also splits at the carriage returns of progress bars.
    lines = (line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in lines if line][-1]
