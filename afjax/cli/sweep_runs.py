"""``afjax sweep``: runs a config over a grid of settings and seeds.

The best combination of settings is chosen by its mean score on dev. Every run is a separate process (``afjax train``).
If a run crashes or runs out of memory, the others are not affected, and the sweep's own process never holds an
accelerator. A sweep's folder has ``sweep.json`` (the sweep), ``runs`` (one folder per run), ``sweep.csv`` (one line per
run) and ``summary.csv`` (one line per combination of settings).
"""

import dataclasses
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.cli.sweep_plan import RECORD, Run, Sweep, run_folder
from afjax.display.tables import table_lines
from afjax.display.terminal import duration, print_line, progress_bar
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.storage.writing import csv_text, write_json, write_text
from afjax.train.experiment import read_results
from afjax.train.workdir import RESULT, TARGET

RUNS_TABLE = "sweep.csv"
SUMMARY_TABLE = "summary.csv"
LOG = "log.txt"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
      score: The mean of its tasks' main dev metrics, or None if the run failed.
      metric: The names of these metrics, joined with ``+``.
    """

    score: float | None = None
    metric: str = ""


@dataclasses.dataclass(frozen=True)
class Summary:
    """One combination of settings, aggregated over its seeds.

    Attributes:
      settings: ``{setting: value}``.
      mean: Mean score of the finished runs, or None if no run finished.
      std: Sample standard deviation of the scores, or None for fewer than two finished runs.
      finished: Number of finished runs.
      metric: Name of the score.
      best: Whether this combination is the best.
    """

    settings: Mapping[str, str]
    mean: float | None
    std: float | None
    finished: int
    metric: str
    best: bool = False


def run_sweep(sweep: Sweep, workdir: Path) -> dict[str, Outcome]:
    """Runs the unfinished runs one after another, and reports each on stderr.

    If a run fails, the failure is reported and the sweep continues. The two CSV files are written after every run.

    Returns:
      ``{run's name: outcome}`` for every run.

    Raises:
      UserError: The workdir cannot be written, or a run's result cannot be read.
    """
    runs = sweep.runs
    outcomes = {run.name: outcome for run in runs if (outcome := _finished(workdir, run))}
    print_line(
        f"{counted(len(runs), 'run')}, {len(runs) - len(outcomes)} to do; logs are {workdir / 'runs' / '*' / LOG}"
    )
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        write_json(workdir / RECORD, dataclasses.asdict(sweep))
        _write_tables(sweep, outcomes, workdir)
        with progress_bar("sweep", len(runs), unit="run", done=len(outcomes), leave=False) as bar:
            _run_all(sweep, workdir, outcomes, bar)
    except OSError as error:
        raise UserError(
            f"The workdir {workdir} cannot be written ({error.strerror or error}); make room or give another --workdir."
        ) from None
    return outcomes


def _run_all(sweep: Sweep, workdir: Path, outcomes: dict[str, Outcome], bar: Any) -> None:
    """Runs the runs that have no outcome, and adds their outcomes."""
    runs = sweep.runs
    waiting = len(runs) - len(outcomes)
    seconds: list[float] = []
    for number, run in enumerate(runs, start=1):
        place = f"[{number}/{len(runs)}] {run.title}"
        if run.name in outcomes:
            print_line(f"{place}: {_score(outcomes[run.name])} (done before)")
            continue
        # The bar shows which run is being trained. A run's own progress is in its log.
        bar.set_description(place)
        begin = time.monotonic()
        outcome, failure = _train(sweep, run, workdir)
        elapsed, waiting = time.monotonic() - begin, waiting - 1
        # Failed runs may end early, so they are not used to estimate the remaining time.
        seconds += [] if failure else [elapsed]
        remaining = f"; about {duration(statistics.mean(seconds) * waiting)} left" if seconds and waiting else ""
        print_line(f"{place}: {failure or _score(outcome)} ({duration(elapsed)}{remaining})")
        outcomes[run.name] = outcome
        _write_tables(sweep, outcomes, workdir)
        bar.update()


def run_command(command: Sequence[str], log: Path) -> int:
    """Runs a command and appends its output to a file.

    Returns:
      The exit code, or minus the number of the signal that ended the command.
    """
    with log.open("a", encoding="utf-8") as file:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, check=False)
    return done.returncode


def summaries(sweep: Sweep, outcomes: Mapping[str, Outcome]) -> list[Summary]:
    """Aggregates every combination of settings over its seeds, best first.

    Combinations with a failed seed come after all complete ones, whatever their mean.
    """
    all_summaries = []
    for settings in sweep.settings:
        ended = [outcomes.get(Run(settings, seed).name, Outcome()) for seed in sweep.seeds]
        done = [(outcome.score, outcome.metric) for outcome in ended if outcome.score is not None]
        scores = [score for score, _ in done]
        mean = statistics.fmean(scores) if scores else None
        std = statistics.stdev(scores) if len(scores) > 1 else None
        all_summaries.append(Summary(settings, mean, std, len(done), done[0][1] if done else ""))
    scored = [summary for summary in all_summaries if summary.mean is not None]
    scored.sort(key=lambda summary: (summary.finished == len(sweep.seeds), summary.mean), reverse=True)
    best = [dataclasses.replace(summary, best=True) for summary in scored[:1]]
    return best + scored[1:] + [summary for summary in all_summaries if summary.mean is None]


def report_lines(sweep: Sweep, outcomes: Mapping[str, Outcome], workdir: Path) -> list[str]:
    """The table of settings, the failed runs, and the command that trains only the best of several combinations."""
    table = summaries(sweep, outcomes)
    metrics = dict.fromkeys(summary.metric for summary in table if summary.metric)
    rows = [[*sweep.grid, f"dev {' or '.join(metrics)}" if metrics else "score", "seeds", ""]]
    for summary in table:
        cells = [
            _cell(summary),
            f"{summary.finished}/{len(sweep.seeds)}",
            "best" if summary.best and sweep.grid else "",
        ]
        rows.append([*summary.settings.values(), *cells])
    lines = table_lines(rows, num_texts=len(rows[0]))
    failed = [run for run in sweep.runs if outcomes[run.name].score is None]
    if failed:
        lines += ["", "Failed; the same command tries these again:"]
        lines += [f"  {run.title}: {run_folder(workdir, run) / LOG}" for run in failed]
    if table[0].best and sweep.grid:
        settings = [f"{setting}={value}" for setting, value in table[0].settings.items()]
        lines += ["", "The best setting on its own:", f"  {_command(sweep, workdir / 'best', settings)}"]
    return lines


# Runs


def _train(sweep: Sweep, run: Run, workdir: Path) -> tuple[Outcome, str]:
    """Trains one run in a separate process.

    Returns:
      The outcome, and a description of the failure (empty if the run finished).
    """
    folder = run_folder(workdir, run)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / LOG
    arguments = _arguments(sweep, folder, run.overrides)
    if sweep.adapters and not (folder / "store").exists():
        part = folder / "store.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(Path(sweep.adapters) / "adapters", part / "adapters")
        part.rename(folder / "store")
    # Append, so that the log keeps the output of earlier attempts.
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(['afjax', *arguments])}\n")
    code = run_command([sys.executable, "-m", "afjax", *arguments], log)
    outcome = _finished(workdir, run)
    if outcome:
        return outcome, ""
    how = f"by signal {-code} ({signal.strsignal(-code)})" if code < 0 else f"with exit code {code}"
    return Outcome(), f"failed {how}: {_last_line(log)}"


def _arguments(sweep: Sweep, folder: Path, overrides: Sequence[str]) -> list[str]:
    settings = [f"--config.{override}" for override in (*sweep.overrides, *overrides)]
    return ["train", f"--config={sweep.config}", f"--workdir={folder}", *settings]


def _command(sweep: Sweep, folder: Path, overrides: Sequence[str]) -> str:
    return shlex.join(["afjax", *_arguments(sweep, folder, overrides)])


def _last_line(log: Path) -> str:
    # splitlines also splits at the carriage returns of progress bars.
    lines = (line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines())
    return [line for line in lines if line][-1]


def _finished(workdir: Path, run: Run) -> Outcome | None:
    """The outcome of a finished run, or None if it is not finished.

    If a task has several results (in a sequence of tasks, one after each task), the last one counts.

    Raises:
      UserError: The run's result is damaged.
    """
    folder = run_folder(workdir, run) / TARGET
    last = {result.task: result for result in read_results(folder)}.values()
    if not last:
        return None
    values = [result.metrics.get(result.main_metric) for result in last]
    scores = [score for score in values if isinstance(score, int | float)]
    if len(scores) < len(values):
        raise UserError(f"{folder / RESULT} is damaged (a result has no score); delete the run's folder to try again.")
    return Outcome(statistics.fmean(scores), "+".join(dict.fromkeys(result.main_metric for result in last)))


# Tables


def _write_tables(sweep: Sweep, outcomes: Mapping[str, Outcome], workdir: Path) -> None:
    """Writes the CSV files for the runs that have an outcome so far."""
    rows: list[list[Any]] = [[*sweep.grid, "seed", "status", "score", "metric", "folder"]]
    for run in sweep.runs:
        if run.name in outcomes:
            outcome = outcomes[run.name]
            status = "failed" if outcome.score is None else "done"
            cells = [run.seed, status, outcome.score, outcome.metric, f"runs/{run.name}"]
            rows.append([*run.settings.values(), *cells])
    write_text(workdir / RUNS_TABLE, csv_text(rows))
    rows = [[*sweep.grid, "mean", "std", "finished", "seeds", "metric", "best"]]
    for summary in summaries(sweep, outcomes):
        cells = [summary.mean, summary.std, summary.finished, len(sweep.seeds), summary.metric]
        rows.append([*summary.settings.values(), *cells, "best" if summary.best else ""])
    write_text(workdir / SUMMARY_TABLE, csv_text(rows))


def _score(outcome: Outcome) -> str:
    return f"{outcome.metric} {outcome.score:.4f}"


def _cell(summary: Summary) -> str:
    if summary.mean is None:
        return "-"
    return f"{summary.mean:.4f}" + ("" if summary.std is None else f" ± {summary.std:.4f}")
