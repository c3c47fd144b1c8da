"""Trains runs of ``afjax sweep`` in one process: the command itself or a worker."""

import functools
import shlex
import shutil
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from afjax.cli.experiments import load_experiment
from afjax.cli.explain import explain, explained_memory_error
from afjax.cli.result_lines import result_lines
from afjax.cli.run_output import RunOutput
from afjax.cli.sweep_plan import Run, Sweep, run_folder
from afjax.cli.sweep_results import Outcome, finished_outcome, train_arguments
from afjax.display.terminal import print_line
from afjax.errors import PreemptionError, UserError
from afjax.storage.paths import cache_folder, open_path
from afjax.train.experiment import experiment_training
from afjax.train.loop import StepRequest, Training
from afjax.train.shared import Shared
from afjax.train.sweep_files import RUN_LOG
from afjax.train.together import run_together
from afjax.train.workdir import find_store


class Progress(Protocol):
    """Receives each run's start, steps and end; see ``SweepProgress``."""

    def started(self, run: Run) -> None: ...

    def trained(self, run: Run, done: int, num_steps: int) -> None: ...

    def ended(self, run: Run, outcome: Outcome, failure: str) -> None: ...


def train_runs(sweep: Sweep, workdir: Path, runs: Iterable[Run], progress: Progress, slots: int) -> None:
    """Trains runs that can share the frozen trunk and compiled programs.

    If a run fails, its failure is reported and the other runs continue.

    Args:
      sweep: The sweep.
      workdir: The sweep's folder.
      runs: The runs. Each is taken from the iterable when it starts.
      progress: Receives each run's start, steps and end.
      slots: The number of runs to train at a time.

    Raises:
      PreemptionError: SIGTERM was received. All active runs have saved their state.
    """
    shared, output, taken = Shared(), RunOutput(), list[Run]()

    def trainings() -> Iterator[Training[Outcome]]:
        for run in runs:
            taken.append(run)
            yield _training(sweep, workdir, run, progress, shared)

    def requested(number: int, request: StepRequest) -> None:
        progress.trained(taken[number], request.done, request.run.num_steps)

    def ended(number: int, outcome: Outcome | Exception) -> None:
        if isinstance(outcome, Exception):
            progress.ended(taken[number], Outcome(), f"failed: {_message(outcome)}")
        else:
            progress.ended(taken[number], outcome, "")

    run_together(
        trainings(),
        slots=slots,
        shared=shared,
        within=lambda number: output.to(run_folder(workdir, taken[number]) / RUN_LOG),
        requested=requested,
        ended=ended,
    )


def _training(sweep: Sweep, workdir: Path, run: Run, progress: Progress, shared: Shared) -> Training[Outcome]:
    """Trains a run like ``afjax train``.

    This generator yields the run's steps for the caller to compute. The caller also redirects the output.
    """
    progress.started(run)
    local = run_folder(workdir, run)
    folder = open_path(local)
    try:
        begin_run(sweep, run, local)
        config = load_experiment(
            sweep.config, [*sweep.overrides, *run.overrides], find_store=functools.partial(find_store, folder)
        )
        with explained_memory_error():
            results = yield from experiment_training(
                config, workdir=folder, cache_dir=cache_folder() / "tokenized", shared=shared
            )
        print("\n".join(result_lines(config, results, find_store(folder))))
        outcome = finished_outcome(workdir, run)
        assert outcome is not None, "the experiment has written its result"
        return outcome
    except (Exception, PreemptionError) as error:
        explained = explain(error)
        print_line(f"afjax: {explained[1]}" if explained else traceback.format_exc())
        raise


def _message(error: Exception) -> str:
    explained = explain(error)
    return explained[1] if explained else f"{type(error).__name__}: {error}".partition("\n")[0]


def begin_run(sweep: Sweep, run: Run, folder: Path) -> list[str]:
    """Creates a run's folder, with its log and a copy of the sweep's adapters.

    Returns:
      The ``afjax`` arguments that train the run.

    Raises:
      UserError: The sweep's adapters cannot be copied.
      OSError: The folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    arguments = train_arguments(sweep, folder, run.overrides)
    if sweep.adapters and not (folder / "store").exists():
        part = folder / "store.part"
        shutil.rmtree(part, ignore_errors=True)
        try:
            shutil.copytree(Path(sweep.adapters) / "adapters", part / "adapters")
        except shutil.Error as error:
            source, _, reason = error.args[0][0]
            raise UserError(
                f"--adapters={sweep.adapters} cannot be copied to {folder} ({source}: {reason}); repair the store, or "
                "free up space."
            ) from None
        part.rename(folder / "store")
    # Append, so that the log keeps the output of earlier attempts.
    with (folder / RUN_LOG).open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(['afjax', *arguments])}\n")
    return arguments
