"""Builds the tables of reports: the trained models and their scores."""

import csv
import dataclasses
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from afjax.analysis.dev_rows import DevEvaluation
from afjax.analysis.unfinished import UnfinishedRun
from afjax.analysis.workdirs import ExperimentRecord, by_tasks, differing_settings
from afjax.display.html import Content, Markup, join, table, tag
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.store import Manifest
from afjax.train.results import Result
from afjax.train.workdir import FORGETTING, TARGET

# Maximum number of settings columns, to keep tables readable.
_SETTINGS = 6


@dataclasses.dataclass(frozen=True)
class EvaluatedResult:
    """A result, with its model's size and evaluation if these are still available.

    Attributes:
      result: The result of the run.
      parameters: The numbers of trained and total parameters, or None if the model cannot be loaded.
      evaluation: The evaluation on the dev rows, or None if the model or the rows are missing.
      missing: The reason why ``evaluation`` is None, as a sentence; otherwise empty.
    """

    result: Result
    parameters: tuple[int, int] | None = None
    evaluation: DevEvaluation | None = None
    missing: str = ""


def trained_table(
    best: ExperimentRecord, evaluated_results: Sequence[EvaluatedResult], manifests: Sequence[Manifest]
) -> Markup:
    """Tabulates the best experiment's results, with parameter counts and kept steps."""
    sizes = {(manifest.kind, manifest.name): manifest.num_parameters for manifest in manifests}
    fused = {m.name: ", ".join(str(member["name"]) for member in m.adapters) for m in manifests if m.kind == "fusion"}
    parameters = {id(evaluated.result): evaluated.parameters for evaluated in evaluated_results}
    totals = [evaluated.parameters[1] for evaluated in evaluated_results if evaluated.parameters]
    rows: list[list[Content]] = []
    for run in best.runs:
        for result in run.results if run.title != TARGET else best.results.values():
            trained, total = parameters.get(id(result)) or (None, None)
            if trained is None and run.title != TARGET and ("heads", result.name) in sizes:
                # A source run trains only its adapter and its head.
                trained = sizes.get(("adapters", result.name), 0) + sizes["heads", result.name]
            share = f"{trained / total:.2%}" if trained and total else "–"
            task = _task(best.config, result.task)
            members = f" of {fused[result.name]}" if result.kind == "fusion" and result.name in fused else ""
            what: list[Content] = [result.name, f"{result.kind}{members}", result.task, str(task.get("source", ""))]
            rows.append([*what, _integer(trained), _integer(total), share, _integer(result.metrics.get("step"))])
    header = ["name", "kind", "task", "data", "trained parameters", "all parameters", "fraction", "kept from step"]
    results_table = table(header, rows, numbers=(4, 5, 6, 7))
    if totals:
        return results_table
    reason = tag("p", f"The total parameter count is unknown: {evaluated_results[0].missing}")
    return join(results_table, reason)


def score_tables(finished: Sequence[ExperimentRecord], evaluated_results: Sequence[EvaluatedResult]) -> list[Markup]:
    """Tabulates all runs' scores over seeds, and every metric of the reported run."""
    parts = []
    if len(finished) > 1:
        groups = by_tasks(finished)
        for tasks, group in groups.items():
            parts += [tag("h3", tasks)] if len(groups) > 1 else []
            parts += _settings_table(group)
    rows = []
    names = list(
        dict.fromkeys(name for evaluated in evaluated_results for name in evaluated.result.metrics if name != "step")
    )
    for evaluated in evaluated_results:
        result = evaluated.result
        rows.append([result.name, result.main_metric, *(score(result.metrics.get(name)) for name in names)])
        if evaluated.evaluation:
            scores = [score(evaluated.evaluation.scores.get(name)) for name in names]
            rows.append(
                [f"{result.name}, evaluated again", f"on {counted(evaluated.evaluation.num_rows, 'row')}", *scores]
            )
    caption = (
        "Dev metrics of the kept parameters, as computed during training and recomputed now with the stored model."
    )
    parts.append(table(["name", "main metric", *names], rows, numbers=tuple(range(2, len(names) + 2)), caption=caption))
    return parts


def forgetting_table(best: ExperimentRecord) -> list[Markup]:
    """Tabulates the scores after each task of a sequential run. Other runs have no such table.

    Raises:
      UserError: The file with the scores cannot be read.
    """
    path = best.workdir / FORGETTING
    try:
        header, *rows = csv.reader(io.StringIO(path.read_text()))
        if any(len(row) != len(header) for row in rows):
            raise ValueError("its rows have different lengths")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}); restore it, or delete it.") from None
    caption = "Main dev metric of each task (columns) after training on each task (rows)."
    return [table(header, rows, numbers=tuple(range(1, len(header))), caption=caption)]


def unfinished_table(runs: Sequence[UnfinishedRun]) -> list[Markup]:
    """Tabulates the runs without a result, with the last line of each log.

    If every run has a result, there is no table.
    """
    if not runs:
        return []
    rows: list[list[Content]] = [
        [run.title, "failed" if run.failed else "not finished", run.last_line or "–"] for run in runs
    ]
    caption = "Runs without a result. To retry or resume them, run the same command again."
    return [table(["run", "status", "last line of its log"], rows, caption=caption)]


def _settings_table(experiments: Sequence[ExperimentRecord]) -> list[Markup]:
    """Tabulates runs on the same tasks, with scores aggregated over seeds.

    There is one row per setting and task, with the best setting first. A note lists repeated runs, which are ignored.
    """
    sides = [experiment.conditions for experiment in experiments]
    varying = differing_settings(sides)

    def column_order(name: str) -> tuple[bool, bool, int]:
        """Returns a setting's sort key.

        Settings that all runs have come first, then top-level settings such as ``recipe``, then settings with many
        values.
        """
        return not all(name in side for side in sides), "." in name, -len(set(map(str, varying[name])))

    shown_settings = sorted(varying, key=column_order)[:_SETTINGS]
    by_seed: dict[tuple[str, ...], dict[int, ExperimentRecord]] = {}
    repeated = []
    for place, experiment in enumerate(experiments):
        same_conditions = by_seed.setdefault(tuple(str(values[place]) for values in varying.values()), {})
        if same_conditions.setdefault(experiment.config["seed"], experiment) is not experiment:
            repeated.append(experiment.title)
    groups = [list(group.values()) for group in by_seed.values()]
    best_first = sorted(groups, key=lambda group: -statistics.fmean(experiment.score for experiment in group))
    rows: list[list[Content]] = [
        [
            ", ".join(experiment.title for experiment in group),
            *(str(group[0].conditions.get(name, "not set")) for name in shown_settings),
            *spread,
        ]
        for group in best_first
        for spread in _spreads(group)
    ]
    header = ["runs", *shown_settings, "task", "dev metric", "mean ± std", "seeds"]
    caption = "Main dev metric over seeds, with the best setting first. std is the sample standard deviation."
    if len(varying) > len(shown_settings):
        caption += (
            f" {len(varying) - len(shown_settings)} more settings differ; see each run's config.json and inputs.json. "
            "To compare methods side by side, use afjax table."
        )
    note = f"Ignored, because they repeat a run with the same settings, inputs and seed: {', '.join(repeated)}."
    return [table(header, rows, numbers=(len(header) - 2,), caption=caption), *([tag("p", note)] if repeated else [])]


def other_rows(best: ExperimentRecord, evaluated_results: Sequence[EvaluatedResult]) -> list[Markup]:
    """Warns about dev rows that differ from those used in training."""
    parts = []
    for evaluated in evaluated_results:
        recorded_digest = best.inputs.get(f"task {evaluated.result.task}'s dev rows")
        if evaluated.evaluation and recorded_digest and recorded_digest != evaluated.evaluation.digest:
            warning = (
                f"The dev rows of {evaluated.result.task} are not the ones used in training: their digests differ."
            )
            parts.append(tag("p", tag("strong", warning)))
    return parts


def _spreads(experiments: Sequence[ExperimentRecord]) -> list[tuple[str, str, str, str]]:
    """Aggregates one setting's runs by task: task, main metric, mean ± std and seeds."""
    rows = []
    for task, result in experiments[0].results.items():
        task_results = [
            (experiment, experiment.results[task]) for experiment in experiments if task in experiment.results
        ]
        seed_scores = sorted(
            (experiment.config["seed"], float(run_result.metrics[run_result.main_metric]))
            for experiment, run_result in task_results
        )
        scores = [value for _, value in seed_scores if math.isfinite(value)]
        spread = f" ± {statistics.stdev(scores):.4f}" if len(scores) > 1 else ""
        mean = score(statistics.fmean(scores) if scores else math.nan)
        seeds = ", ".join(f"{seed}{'' if math.isfinite(value) else ' (not a number)'}" for seed, value in seed_scores)
        rows.append((task, result.main_metric, f"{mean}{spread}", seeds))
    return rows


def _task(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Finds the settings of the task with this name. The default is an empty mapping."""
    sources = (source.get("task") for source in config.get("sources") or ())
    tasks = [config.get("task"), *(config.get("tasks") or ()), *sources]
    return next((task for task in tasks if task and task.get("name") == name), {})


def _integer(value: Any) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{int(value):,}"


def score(value: Any) -> str:
    """Formats a score."""
    if value is None:
        return "–"
    return f"{value:.4f}" if math.isfinite(value) else "not a number"
