"""The report's pictures: a run's curves, a fusion's activations, predicted values."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from afjax.analysis.figures import AMOUNTS, COLOURS, COLUMN_WIDTH, MARKERS, new_figure
from afjax.analysis.workdirs import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# As many points as a line of a column's width can show.
_POINTS = 200
# More numbers than these in a row of cells are too small to read.
_NUMBERED = 8


def loss_figure(run: RunRecord) -> "Figure":
    """Training loss by step: the mean over a few steps, and the range in which they lie."""
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.2)
    steps = np.array([line["step"] for line in run.steps])
    loss = np.array([line["loss"] for line in run.steps], np.float64)
    parts = np.array_split(np.arange(len(steps)), min(_POINTS, max(1, len(steps) // 5)))
    middle, mean = ([float(values[part].mean()) for part in parts] for values in (steps, loss))
    low, high = [float(loss[part].min()) for part in parts], [float(loss[part].max()) for part in parts]
    axes.fill_between(middle, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
    axes.plot(middle, mean, color=COLOURS[0], marker=MARKERS[0] if len(parts) < 3 else "")
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    return figure


def rate_figure(run: RunRecord) -> "Figure":
    """Learning rate by step."""
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.2)
    shown = run.steps[:: max(1, len(run.steps) // _POINTS)]
    if shown[-1] is not run.steps[-1]:
        shown = [*shown, run.steps[-1]]
    steps, rates = [line["step"] for line in shown], [line["learning_rate"] for line in shown]
    axes.plot(steps, rates, color=COLOURS[0], marker=MARKERS[0] if len(shown) < 3 else "")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    return figure


def look_figure(run: RunRecord, names: Sequence[str], best_step: Any) -> "Figure":
    """Dev metrics by step, and the step whose parameters were kept."""
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.2)
    for number, name in enumerate(names):
        looks = [look for look in run.looks if name in look]
        colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        axes.plot(
            [look["step"] for look in looks],
            [look[name] for look in looks],
            color=colour,
            marker=marker,
            label=plain(name),
        )
    if best_step is not None:
        axes.axvline(best_step, color="#595959", linestyle=":", label="kept")
    axes.set_xlim(left=0)
    axes.set_xlabel("step")
    axes.set_ylabel("dev score")
    axes.legend(loc="best", ncols=2)
    return figure


def activation_figure(layers: Sequence[int], members: Sequence[str], means: np.ndarray) -> "Figure":
    """Mean attention of each layer's fusion over its adapters, float [layers, adapters]."""
    num_layers, num_members = means.shape
    width = min(7.0, max(COLUMN_WIDTH, 1.4 + 0.55 * num_members))
    figure, (axes,) = new_figure(width, 0.9 + 0.24 * num_layers)
    shown = axes.imshow(means, cmap=AMOUNTS, vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(num_members), [plain(name) for name in members])
    if max(map(len, members)) * num_members > 40:
        axes.tick_params(axis="x", labelrotation=40)
        for label in axes.get_xticklabels():
            label.set_horizontalalignment("right")
    axes.set_yticks(range(num_layers), [str(layer) for layer in layers])
    axes.set_ylabel("layer")
    for (layer, member), share in np.ndenumerate(means if num_members <= _NUMBERED else means[:, :0]):
        axes.text(
            member,
            layer,
            f"{share:.2f}",
            ha="center",
            va="center",
            fontsize=7,
            color="black" if share > 0.5 else "white",
        )
    figure.colorbar(shown, ax=axes, label="mean attention")
    return figure


def values_figure(labels: np.ndarray, predicted: np.ndarray) -> "Figure":
    """Predicted values by right ones."""
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.6)
    ends = [float(min(labels.min(), predicted.min())), float(max(labels.max(), predicted.max()))]
    axes.plot(ends, ends, color="#595959", linestyle=":", label="as it should be")
    chosen = np.linspace(0, len(labels) - 1, min(len(labels), 1000)).round().astype(int)
    axes.plot(labels[chosen], predicted[chosen], MARKERS[0], color=COLOURS[0], alpha=0.4, markersize=3)
    axes.set_xlabel("right value")
    axes.set_ylabel("predicted value")
    axes.legend()
    return figure


def shown_metrics(run: RunRecord, main_metrics: Mapping[str, str]) -> list[str]:
    """Which dev metrics to draw: of several tasks their mean and main ones, else those of which more is better."""
    names = list(dict.fromkeys(name for look in run.looks for name in look if name not in ("step", "mse")))
    if "mean" in names:
        wanted = ["mean", *(f"{task}/{metric}" for task, metric in main_metrics.items())]
        return [name for name in wanted if name in names][: len(COLOURS)]
    main = next(iter(main_metrics.values()), "")
    return sorted(names, key=lambda name: name != main)


def plain(name: str) -> str:
    """A name as text that matplotlib does not take for a formula."""
    return name.replace("$", r"\$")
