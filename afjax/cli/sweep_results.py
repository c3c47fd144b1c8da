"""Results of ``afjax sweep``: run outcomes, means over seeds, best settings.

A sweep's folder contains ``sweep.json`` (the sweep), ``runs`` (one folder per run), ``sweep.csv`` (one line per run)
and ``summary.csv`` (one line per combination of settings).
"""

import dataclasses
import shlex
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.cli.sweep_plan import Run, Sweep, run_folder
from afjax.display.tables import table_lines
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.storage.writing import csv_text, write_text
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
    """One combination of settings, aggregated over seeds.

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


def summaries(sweep: Sweep, outcomes: Mapping[str, Outcome]) -> list[Summary]:
    """Aggregates every combination of settings over seeds, best first.

    Combinations with a failed seed follow all complete ones, regardless of their mean.
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
    """Formats the scores, the failed runs, and the command for the best setting."""
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
    missing = sum(run.name not in outcomes for run in sweep.runs)
    if missing:
        lines += ["", f"Other hosts train the other {counted(missing, 'run')}."]
    failed = [run for run in sweep.runs if run.name in outcomes and outcomes[run.name].score is None]
    if failed:
        lines += ["", "Failed (to retry, run the same command again):"]
        lines += [f"  {run.title}: {run_folder(workdir, run) / LOG}" for run in failed]
    if table[0].best and sweep.grid and not missing:
        settings = [f"{setting}={value}" for setting, value in table[0].settings.items()]
        arguments = train_arguments(sweep, workdir / "best", settings)
        lines += ["", "To train only the best setting:", f"  {shlex.join(['afjax', *arguments])}"]
    return lines


def train_arguments(sweep: Sweep, folder: Path, overrides: Sequence[str]) -> list[str]:
    """Returns the ``afjax`` arguments that train one run."""
    settings = [f"--config.{override}" for override in (*sweep.overrides, *overrides)]
    return ["train", f"--config={sweep.config}", f"--workdir={folder}", *settings]


def finished_outcome(workdir: Path, run: Run) -> Outcome | None:
    """Reads the outcome of a run, or returns None if it is not finished.

    If a task has several results, as in sequential training, the last one counts.

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
        raise UserError(f"{folder / RESULT} is damaged (a result has no score); delete the run's folder to retrain it.")
    return Outcome(statistics.fmean(scores), "+".join(dict.fromkeys(result.main_metric for result in last)))


# Tables


def write_tables(sweep: Sweep, outcomes: Mapping[str, Outcome], workdir: Path) -> None:
    """Writes the CSV files for the runs that have ended so far."""
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


def score_text(outcome: Outcome) -> str:
    return f"{outcome.metric} {outcome.score:.4f}"


def _cell(summary: Summary) -> str:
    if summary.mean is None:
        return "-"
    return f"{summary.mean:.4f}" + ("" if summary.std is None else f" ± {summary.std:.4f}")
