"""Figures of sweeps: scores by adapter initialization, size and architecture."""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afjax.analysis.cells import task_metrics
from afjax.analysis.figures import (
    COLORS,
    COLUMN_WIDTH,
    MARKERS,
    PAGE_WIDTH,
    draw_spread,
    legend_label,
    new_figure,
    note_one_seed,
    save_figure,
    style,
)
from afjax.analysis.run_records import RunRecord
from afjax.config.adapters import AdapterConfig
from afjax.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Axis labels by setting.
SETTINGS = {
    "init_scale": "Standard deviation of the adapters' initial weights",
    "size": "Bottleneck size",
    "reduction_factor": "Reduction factor",
}
# The order of options in the legends of the architecture search, which also determines their colors.
OPTIONS = ("none", "attention", "before", "ffn", "after", "both")
# The steps of the search (AdapterFusion, appendix A.2). Each step fixes the best option of the previous one.
STEPS = {
    "position": "(a) Position",
    "pretrained_layer_norm": "(b) Pretrained LayerNorm",
    "new_layer_norm": "(c) New LayerNorm",
}


@dataclasses.dataclass(frozen=True)
class Score:
    """The score of one value of a setting, aggregated over seeds.

    Attributes:
      task: The name of the task.
      setting: The name of the setting, or of the step of the architecture search.
      option: The option in a step of the architecture search; empty for :func:`robustness`. Each option has its own
        line.
      value: The value of the setting. In the architecture search, the bottleneck size or the negated reduction factor.
      mean: The mean score in points.
      std: The sample standard deviation, or None with a single seed.
      seeds: The number of seeds.
    """

    task: str
    setting: str
    option: str
    value: float
    mean: float
    std: float | None
    seeds: int


# Robustness


def robustness(records: Sequence[RunRecord], *, metric: str = "") -> list[Score]:
    """Collects scores by swept setting, all else equal (Houlsby 2019, figure 6 right).

    For each task and each of ``SETTINGS``, runs are grouped so that the runs of a group differ only in that setting and
    the seed. The group with the most values is used, and ties are broken by the best mean score.

    Raises:
      UserError: No setting has two values, runs on one task have different main metrics, or no run has ``metric``.
    """
    metrics = task_metrics(records, metric)
    adapters = [record for record in records if record.adapter is not None and record.config is not None]
    scores: list[Score] = []
    for setting in SETTINGS:
        for task in dict.fromkeys(record.task for record in adapters):
            groups: dict[str, dict[float, dict[int, float]]] = {}
            for record in adapters:
                value = _value(record, setting)
                if record.task == task and value is not None and record.method.partition("-")[0] != "fusion":
                    scores_by_value = groups.setdefault(_settings_without(record, setting), {})
                    # Count a repeated run once.
                    scores_by_value.setdefault(value, {}).setdefault(record.seed, 100 * record.metrics[metrics[task]])
            if groups:
                best = max(groups.values(), key=lambda group: (len(group), max(map(_mean, group.values()))))
                setting_scores = [_score(task, setting, "", value, best[value]) for value in sorted(best)]
                scores += setting_scores if len(setting_scores) > 1 else []
    if not scores:
        raise UserError(
            "No runs of adapters differ only in adapter.init_scale, adapter.size or adapter.reduction_factor; sweep "
            "one of these, as in afjax sweep --grid.adapter.init_scale=1e-7,1e-5,1e-3,1e-2,1e-1,1.0."
        )
    return scores


@style()
def draw_robustness(scores: Sequence[Score], output: Path) -> list[Path]:
    """Draws the scores of :func:`robustness`.

    There is one panel per setting and one line per task. Bands show the standard deviation over seeds.
    """
    from matplotlib.ticker import LogFormatter

    settings = [setting for setting in SETTINGS if any(score.setting == setting for score in scores)]
    tasks = list(dict.fromkeys(score.task for score in scores))
    width = COLUMN_WIDTH if len(settings) == 1 else PAGE_WIDTH
    figure, all_axes = new_figure(width, 2.6, columns=len(settings), sharey=True)
    for axes, setting in zip(all_axes, settings, strict=True):
        for index, task in enumerate(tasks):
            # A logarithmic axis cannot show zero, but the CSV contains it.
            task_scores = [
                score for score in scores if (score.setting, score.task) == (setting, task) and score.value > 0
            ]
            _draw(axes, [score.value for score in task_scores], task_scores, task, index)
        if setting == "init_scale":
            axes.set_xscale("log")
            # The default formatter needs math text, which the common style disables.
            axes.xaxis.set_major_formatter(LogFormatter())
            axes.xaxis.set_minor_formatter(LogFormatter())
        else:
            values = sorted({score.value for score in scores if score.setting == setting})
            axes.set_xscale("log", base=2)
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.minorticks_off()
        axes.set_xlabel(SETTINGS[setting])
    all_axes[0].set_ylabel("Dev score")
    lines = all_axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside upper center", ncols=min(len(tasks), 4 if len(settings) == 1 else 8))
    if any(score.std is None for score in scores):
        note_one_seed(figure)
    rows = [(score.setting, score.task, score.value, score.mean, score.std, score.seeds) for score in scores]
    return save_figure(figure, output, ("setting", "task", "value", "mean", "std", "seeds"), rows)


# Architecture search


def search(records: Sequence[RunRecord], *, metric: str = "") -> list[Score]:
    """Collects the scores of the architecture search (AdapterFusion, figures 7 to 9).

    See the paper's appendix A.2. Each task has its own search. An option's score at a reduction factor (or size) is the
    best mean over seeds among all other settings. Each step uses only runs with the options chosen in previous steps.

    Raises:
      UserError: No single-adapter runs differ in a step's setting, the options of a step do not share a reduction
        factor or size, runs on one task have different main metrics, or no run has ``metric``.
    """
    metrics = task_metrics(records, metric)
    scores: list[Score] = []
    for task in dict.fromkeys(record.task for record in records):
        runs = [record for record in records if record.task == task and _is_searched(record)]
        for step in STEPS:
            options: dict[str, dict[float, dict[str, dict[int, float]]]] = {}
            for record in runs:
                assert isinstance(record.adapter, AdapterConfig)
                scores_by_value = options.setdefault(getattr(record.adapter, step), {})
                setting_scores = scores_by_value.setdefault(_bottleneck(record.adapter), {})
                scores_by_seed = setting_scores.setdefault(record.settings, {})
                # Count a repeated run once.
                scores_by_seed.setdefault(record.seed, 100 * record.metrics[metrics[task]])
            if len(options) < 2:
                continue
            if not set.intersection(*(set(scores_by_value) for scores_by_value in options.values())):
                details = "; ".join(
                    f"{option}: {', '.join(map(_named, sorted(values)))}" for option, values in options.items()
                )
                raise UserError(
                    f'The runs on "{task}" are not an architecture sweep: no reduction factor or size has runs with '
                    f"every adapter.{step} ({details}); set --runs to a sweep of configs/pfeiffer_search.py, or "
                    "--tasks to the tasks with such a sweep."
                )
            step_scores = [
                _score(task, step, option, value, max(settings.values(), key=_mean))
                for option, scores_by_value in sorted(options.items(), key=lambda item: OPTIONS.index(item[0]))
                for value, settings in sorted(scores_by_value.items())
            ]
            scores += step_scores
            best = max(step_scores, key=lambda score: score.mean).option
            runs = [record for record in runs if getattr(record.adapter, step) == best]
    if not scores:
        raise UserError(
            f"No runs of single adapters differ in adapter.{', adapter.'.join(STEPS)}; train some with "
            "afjax sweep --config=configs/pfeiffer_search.py."
        )
    return scores


@style()
def draw_search(scores: Sequence[Score], output: Path) -> list[Path]:
    """Draws the scores of :func:`search`.

    There is one row of panels per task, one panel per step and one line per option. The best score of each panel is
    circled.
    """
    tasks = list(dict.fromkeys(score.task for score in scores))
    steps = [step for step in STEPS if any(score.setting == step for score in scores)]
    width = COLUMN_WIDTH if len(steps) == 1 else PAGE_WIDTH
    figure, all_axes = new_figure(
        width, 0.4 + 2.1 * len(tasks), rows=len(tasks), columns=len(steps), sharey="row", sharex=True
    )
    values = sorted({score.value for score in scores}, key=abs)
    # Negative values are reduction factors; see _bottleneck.
    names = [f"{abs(value):g}" for value in values]
    kinds = {value < 0 for value in values}
    label = "Bottleneck size" if kinds == {False} else "Reduction factor" if kinds == {True} else "Factor or size"
    lines: dict[str, dict[str, Any]] = {step: {} for step in steps}
    for index, axes in enumerate(all_axes):
        task, step = tasks[index // len(steps)], steps[index % len(steps)]
        panel_scores = [score for score in scores if (score.task, score.setting) == (task, step)]
        tried = {score.option for score in scores if score.setting == step}
        for number, option in enumerate(option for option in OPTIONS if option in tried):
            line = [score for score in panel_scores if score.option == option]
            if line:
                lines[step][option] = _draw(axes, [values.index(score.value) for score in line], line, option, number)
        if panel_scores:
            best = max(panel_scores, key=lambda score: score.mean)
            point = values.index(best.value), best.mean
            axes.plot(*point, marker="o", markersize=8, markerfacecolor="none", markeredgecolor="0.1", zorder=5)
        axes.set_xticks(range(len(values)), names)
        axes.set_xlim(-0.3, len(values) - 0.7)
        if index // len(steps) == len(tasks) - 1:
            axes.set_xlabel(label)
        if index % len(steps) == 0:
            axes.set_ylabel(f"Dev score on {task}")
    for axes, step in zip(all_axes, steps, strict=False):
        axes.set_title(STEPS[step], pad=18)
        options = [option for option in OPTIONS if option in lines[step]]
        axes.legend(
            [lines[step][option] for option in options], options, ncols=len(options), loc="lower center",
            bbox_to_anchor=(0.5, 0.99), columnspacing=1.0, handlelength=1.4, handletextpad=0.4,
        )  # fmt: skip
    if any(score.std is None for score in scores):
        note_one_seed(figure)
    rows: list[tuple[Any, ...]] = []
    for score in scores:
        kind = "reduction_factor" if score.value < 0 else "size"
        searched = score.task, score.setting, score.option
        rows.append((*searched, abs(score.value), kind, score.mean, score.std, score.seeds))
    header = ("task", "setting", "option", "value", "value_is", "mean", "std", "seeds")
    return save_figure(figure, output, header, rows)


def _is_searched(record: RunRecord) -> bool:
    is_single = record.config is None or (record.config.recipe == "single" and record.config.partition == "adapter")
    return is_single and isinstance(record.adapter, AdapterConfig)


def _bottleneck(adapter: AdapterConfig) -> float:
    """Returns the adapter's size, or its negated reduction factor if it has no size."""
    return float(adapter.size) if adapter.size is not None else -adapter.reduction_factor


def _named(value: float) -> str:
    return f"{'factor' if value < 0 else 'size'} {abs(value):g}"


# Helpers


def _value(record: RunRecord, setting: str) -> float | None:
    """Returns the value of an adapter setting, or None if it does not apply."""
    if setting == "reduction_factor" and getattr(record.adapter, "size", None) is not None:
        return None
    value = getattr(record.adapter, setting, None)
    return None if value is None else float(value)


def _settings_without(record: RunRecord, setting: str) -> str:
    """Serializes all settings of a run except one, for comparison."""
    values: dict[str, Any] = json.loads(record.settings)
    values["adapter"].pop(setting)
    return json.dumps(values, sort_keys=True)


def _mean(scores_by_seed: Mapping[int, float]) -> float:
    return statistics.fmean(scores_by_seed.values())


def _score(task: str, setting: str, option: str, value: float, scores_by_seed: Mapping[int, float]) -> Score:
    spread = statistics.stdev(scores_by_seed.values()) if len(scores_by_seed) > 1 else None
    return Score(task, setting, option, value, _mean(scores_by_seed), spread, len(scores_by_seed))


def _draw(axes: "Axes", positions: Sequence[float], scores: Sequence[Score], label: str, index: int) -> Any:
    """Draws and returns a line, with the standard deviation over seeds as a band."""
    color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
    means = [score.mean for score in scores]
    lows = [None if score.std is None else score.mean - score.std for score in scores]
    highs = [None if score.std is None else score.mean + score.std for score in scores]
    draw_spread(axes, positions, lows, highs, color)
    (line,) = axes.plot(positions, means, color=color, marker=marker, label=legend_label(label), zorder=3)
    return line
