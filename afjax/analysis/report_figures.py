"""Figures in reports: training curves, fusion activations and predicted values."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from afjax.analysis.figures import AMOUNTS, COLORS, COLUMN_WIDTH, MARKERS, PAGE_WIDTH, legend_label, new_figure, style
from afjax.analysis.workdirs import WorkdirRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Maximum number of points per line. More would not be distinguishable in a column.
_POINTS = 200
# For runs of up to this many steps, every step is a point.
_EVERY_STEP = 25
# Longer names are abbreviated in the middle. The report's tables have the full names.
_NAME = 28
# Line styles and marker fills. Once all colors and markers are used up, they repeat with the next style and fill, so up
# to MOST_LINES lines differ in marker or style even without color.
_ROUNDS = (("-", "full"), ("--", "none"), ("-.", "left"), (":", "bottom"))
MOST_LINES = len(COLORS) * len(_ROUNDS)
# Heatmaps with more columns than this have no numbers, because these would be illegible.
_NUMBERED = 12


@style()
def loss_figure(run: WorkdirRun) -> "Figure":
    """Plots the training loss: the mean over a few steps, with a band from min to max."""
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.2)
    steps = np.array([line["step"] for line in run.steps])
    loss = np.array([line["loss"] for line in run.steps], np.float64)
    num_parts = len(steps) if len(steps) <= _EVERY_STEP else min(_POINTS, len(steps) // 5)
    parts = np.array_split(np.arange(len(steps)), num_parts)
    middle, mean = ([float(values[part].mean()) for part in parts] for values in (steps, loss))
    low, high = [float(loss[part].min()) for part in parts], [float(loss[part].max()) for part in parts]
    axes.fill_between(middle, low, high, color=COLORS[0], alpha=0.2, linewidth=0)
    axes.plot(middle, mean, color=COLORS[0], marker=MARKERS[0] if len(parts) < 3 else "")
    _label_steps(axes)
    axes.set_ylabel("training loss")
    return figure


@style()
def rate_figure(lines: Sequence[Mapping[str, Any]]) -> "Figure":
    """Plots the learning rate by step, from log lines that contain it."""
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.2)
    plotted = lines[:: max(1, len(lines) // _POINTS)]
    if plotted[-1] is not lines[-1]:
        plotted = [*plotted, lines[-1]]
    steps, rates = [line["step"] for line in plotted], [line["learning_rate"] for line in plotted]
    axes.plot(steps, rates, color=COLORS[0], marker=MARKERS[0] if len(plotted) < 3 else "")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.set_ylim(bottom=0)
    _label_steps(axes)
    axes.set_ylabel("learning rate")
    return figure


@style()
def evaluation_figure(run: WorkdirRun, names: Sequence[str], best_step: Any) -> "Figure":
    """Plots up to ``MOST_LINES`` dev metrics by step, and marks the best step."""
    # The legend has three names per line.
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.05 + 0.15 * (len(names) // 3 + 1))
    for number, name in enumerate(names):
        evaluations = [evaluation for evaluation in run.evaluations if name in evaluation]
        color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
        line, fill = _ROUNDS[number // len(COLORS)]
        axes.plot(
            [evaluation["step"] for evaluation in evaluations],
            [evaluation[name] for evaluation in evaluations],
            color=color,
            marker=marker,
            linestyle=line,
            fillstyle=fill,
            label=legend_label(plain(name)),
        )
    if best_step is not None:
        axes.axvline(best_step, color="#595959", linestyle=":", label="kept")
    axes.set_xlim(left=0)
    _label_steps(axes)
    axes.set_ylabel("dev score")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@style()
def activation_figure(
    layers: Sequence[int], members: Sequence[str], means: Float[np.ndarray, "filled_layers num_adapters"]
) -> "Figure":
    """Draws a heatmap of each layer's mean attention to a fusion's adapters."""
    num_layers, num_members = means.shape
    names = [plain(name) for name in members]
    width = 1.2 + 0.06 * max(map(len, names)) + 0.32 * num_layers
    figure, (axes,) = new_figure(min(PAGE_WIDTH, max(COLUMN_WIDTH, width)), 0.7 + 0.26 * max(3, num_members))
    # Adapters are rows because their names are long.
    heatmap = axes.imshow(means.T, cmap=AMOUNTS, vmin=0, vmax=1, aspect="auto")
    axes.set_yticks(range(num_members), names)
    axes.set_xticks(range(num_layers), [str(layer) for layer in layers])
    axes.set_xlabel("layer")
    for (layer, member), share in np.ndenumerate(means if num_layers <= _NUMBERED else means[:0]):
        color = "black" if share > 0.5 else "white"
        axes.text(layer, member, f"{share:.2f}", ha="center", va="center", fontsize=7, color=color)
    figure.colorbar(heatmap, ax=axes, label="mean attention")
    return figure


@style()
def values_figure(labels: Float[np.ndarray, "rows"], predicted: Float[np.ndarray, "rows"]) -> "Figure":
    """Plots predicted against true values."""
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.6)
    ends = [float(min(labels.min(), predicted.min())), float(max(labels.max(), predicted.max()))]
    axes.plot(ends, ends, color="#595959", linestyle=":", label="perfect prediction")
    chosen = np.linspace(0, len(labels) - 1, min(len(labels), 1000)).round().astype(int)
    axes.plot(labels[chosen], predicted[chosen], MARKERS[0], color=COLORS[0], alpha=0.4, markersize=3)
    axes.set_xlabel("true value")
    axes.set_ylabel("predicted value")
    figure.legend(loc="outside upper center")
    return figure


def shown_metrics(run: WorkdirRun, main_metrics: Mapping[str, str]) -> list[str]:
    """Selects the dev metrics to plot.

    With several tasks, these are the mean and each task's main metric. Otherwise they are all metrics except the mean
    squared error, with the main metric first.
    """
    names = list(
        dict.fromkeys(name for evaluation in run.evaluations for name in evaluation if name not in ("step", "mse"))
    )
    if "mean" in names:
        main_names = ["mean", *(f"{task}/{metric}" for task, metric in main_metrics.items())]
        return [name for name in main_names if name in names]
    main = next(iter(main_metrics.values()), "")
    return sorted(names, key=lambda name: name != main)


def _label_steps(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    axes.set_xlabel("step")


def plain(name: str) -> str:
    """Sanitizes and abbreviates a name for matplotlib."""
    printable = "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in name)
    return printable if len(printable) <= _NAME else f"{printable[: _NAME - 9]}…{printable[-8:]}"
