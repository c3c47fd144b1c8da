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

from etils import epath

from afjax import store
from afjax.analysis.unfinished import failed_names
from afjax.cli.sweep_plan import INPUT_SETTINGS, TASK_SETTINGS, Run, Sweep, folder_name, run_folder, select_settings
from afjax.display.tables import table_lines
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.storage.writing import csv_text, write_text
from afjax.train.record import adapter_input
from afjax.train.results import read_results
from afjax.train.sweep_files import RUN_LOG, RUNS_TABLE
from afjax.train.workdir import TARGET, read_inputs

SUMMARY_TABLE = "summary.csv"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
      score: The mean of the tasks' main dev metrics, or None if the run failed.
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
      best: Whether this combination is the best of its task.
    """

    settings: Mapping[str, str]
    mean: float | None
    std: float | None
    finished: int
    metric: str
    best: bool = False


def summaries(sweep: Sweep, outcomes: Mapping[str, Outcome]) -> list[Summary]:
    """Aggregates every combination of settings over seeds.

    If the sweep varies the task, the combinations of each task are consecutive, with the best one first. Combinations
    with a failed seed follow all complete ones, regardless of their mean.
    """
    by_task: dict[tuple[str, ...], list[Summary]] = {}
    for settings in sweep.settings:
        ended = [outcomes.get(Run(settings, seed).name, Outcome()) for seed in sweep.seeds]
        done = [(outcome.score, outcome.metric) for outcome in ended if outcome.score is not None]
        scores = [score for score, _ in done]
        mean = statistics.fmean(scores) if scores else None
        std = statistics.stdev(scores) if len(scores) > 1 else None
        summary = Summary(settings, mean, std, len(done), done[0][1] if done else "")
        by_task.setdefault(tuple(select_settings(settings, TASK_SETTINGS).values()), []).append(summary)
    return [summary for task_summaries in by_task.values() for summary in _best_first(task_summaries, sweep)]


def _best_first(task_summaries: Sequence[Summary], sweep: Sweep) -> list[Summary]:
    scored = [summary for summary in task_summaries if summary.mean is not None]
    scored.sort(key=lambda summary: (summary.finished == len(sweep.seeds), summary.mean), reverse=True)
    best = [dataclasses.replace(summary, best=True) for summary in scored[:1]]
    return best + scored[1:] + [summary for summary in task_summaries if summary.mean is None]


def report_lines(sweep: Sweep, outcomes: Mapping[str, Outcome], workdir: Path) -> list[str]:
    """Formats the scores, changed inputs, failed runs, and the best setting's command.

    If the sweep varies the task, there is one best setting and one command per task.
    """
    table = summaries(sweep, outcomes)
    metrics = dict.fromkeys(summary.metric for summary in table if summary.metric)
    # If tasks have different metrics, each row names its own.
    several = len(metrics) > 1
    score_name = f"dev {next(iter(metrics))}" if len(metrics) == 1 else "dev score" if several else "score"
    rows = [[*sweep.grid, *(["metric"] if several else []), score_name, "seeds", ""]]
    for summary in table:
        cells = [
            *([summary.metric or "-"] if several else []),
            _cell(summary),
            f"{summary.finished}/{len(sweep.seeds)}",
            "best" if summary.best and sweep.varies_method else "",
        ]
        rows.append([*summary.settings.values(), *cells])
    lines = table_lines(rows, num_texts=len(rows[0]))
    missing = sum(run.name not in outcomes for run in sweep.runs)
    if missing:
        lines += ["", f"Other hosts train the other {counted(missing, 'run')}."]
    lines += _mixed_input_lines(sweep, outcomes, workdir)
    failed = [run for run in sweep.runs if run.name in outcomes and outcomes[run.name].score is None]
    if failed:
        lines += ["", "Failed (to retry, run the same command again):"]
        lines += [f"  {run.title}: {run_folder(workdir, run) / RUN_LOG}" for run in failed]
    best = [summary for summary in table if summary.best and sweep.varies_method and not missing]
    if best:
        per_task = " of each task" if sweep.varies_task else ""
        lines += ["", f"To train only the best setting{per_task}:"]
        lines += [f"  {shlex.join(_best_command(sweep, summary, workdir))}" for summary in best]
    return lines


def _best_command(sweep: Sweep, summary: Summary, workdir: Path) -> list[str]:
    """Returns the command that trains the best setting of a task."""
    folder = workdir / "best"
    if sweep.varies_task:
        folder /= folder_name(select_settings(summary.settings, TASK_SETTINGS))
    settings = [f"{setting}={value}" for setting, value in summary.settings.items()]
    store = [f"--store={sweep.adapters}"] if sweep.adapters else []
    return ["afjax", *train_arguments(sweep, folder, settings), *store]


def _mixed_input_lines(sweep: Sweep, outcomes: Mapping[str, Outcome], workdir: Path) -> list[str]:
    """Warns about rows, trunks and adapters that changed between finished runs.

    Only runs whose settings select the same rows or trunk are compared. Adapters are compared if the sweep copies them
    to its runs, because otherwise each run trains its own.
    """
    copied = store.names(sweep.adapters, "adapters") if sweep.adapters else ()
    origins = {"the trunk": ("trunk",)} | {adapter_input(name): ("trunk", "adapter") for name in copied}
    runs: dict[tuple[tuple[str, ...], str], dict[str, list[Run]]] = {}
    for run in sweep.runs:
        if run.name not in outcomes or outcomes[run.name].score is None:
            continue
        for name, digest in (read_inputs(epath.Path(run_folder(workdir, run))) or {}).items():
            roots = INPUT_SETTINGS if name.endswith(" rows") else origins.get(name)
            if roots is not None:
                origin = tuple(select_settings(run.settings, roots).values())
                runs.setdefault((origin, name), {}).setdefault(digest, []).append(run)
    mixed = {key: groups for key, groups in runs.items() if len(groups) > 1}
    if not mixed:
        return []
    names = dict.fromkeys(name for _, name in mixed)
    lines = [
        "",
        f"Warning: {', '.join(names)} changed between the runs, so their scores are not comparable. To retrain "
        "runs, delete their folders. Runs with equal inputs:",
    ]
    equal = [group for groups in mixed.values() for group in groups.values()]
    return [*lines, *dict.fromkeys(f"  {'; '.join(run.title for run in group)}" for group in equal)]


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
    last = {result.task: result for result in read_results(run_folder(workdir, run) / TARGET)}.values()
    if not last:
        return None
    score = statistics.fmean(result.metrics[result.main_metric] for result in last)
    return Outcome(score, "+".join(dict.fromkeys(result.main_metric for result in last)))


# Tables


def write_tables(sweep: Sweep, outcomes: Mapping[str, Outcome], workdir: Path) -> None:
    """Writes the CSV files for the runs that have ended so far. Earlier failures stay until their run has ended."""
    failed = _failed_earlier(workdir)
    rows: list[list[Any]] = [[*sweep.grid, "seed", "status", "score", "metric", "folder"]]
    for run in sweep.runs:
        outcome = outcomes.get(run.name, Outcome() if f"runs/{run.name}" in failed else None)
        if outcome is not None:
            status = "failed" if outcome.score is None else "done"
            cells = [run.seed, status, outcome.score, outcome.metric, f"runs/{run.name}"]
            rows.append([*run.settings.values(), *cells])
    write_text(workdir / RUNS_TABLE, csv_text(rows))
    rows = [[*sweep.grid, "mean", "std", "finished", "seeds", "metric", "best"]]
    for summary in summaries(sweep, outcomes):
        cells = [summary.mean, summary.std, summary.finished, len(sweep.seeds), summary.metric]
        rows.append([*summary.settings.values(), *cells, "best" if summary.best else ""])
    write_text(workdir / SUMMARY_TABLE, csv_text(rows))


def _failed_earlier(workdir: Path) -> list[str]:
    try:
        return failed_names(epath.Path(workdir))
    except UserError:  # There is no table yet, or the damaged table is written again.
        return []


def score_text(outcome: Outcome) -> str:
    return f"{outcome.metric} {outcome.score:.4f}"


def _cell(summary: Summary) -> str:
    if summary.mean is None:
        return "-"
    return f"{summary.mean:.4f}" + ("" if summary.std is None else f" ± {summary.std:.4f}")
