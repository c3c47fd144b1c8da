"""Draws figures of finished runs.

They show differences to full fine-tuning, and the trade-off between score and trained parameters.
"""

import dataclasses
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from afjax.analysis.cells import Cell, order
from afjax.analysis.figures import (
    COLORS,
    COLUMN_WIDTH,
    MARKERS,
    PAGE_WIDTH,
    draw_spread,
    new_figure,
    note_one_seed,
    save_figure,
    style,
)
from afjax.analysis.tables import Grid, difference_methods
from afjax.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The percentiles shown in Houlsby 2019.
PERCENTILES = (20, 50, 80)
# Hatches distinguish bars without color. The numbers of hatches and colors are coprime, so many methods get distinct
# combinations. Hatch lines are dark, so bars are never black.
HATCHES = ("", "////", "....", "----", "xxxx", "||||", "\\\\\\\\", "++++", "oooo", "//..", "OO")
BAR_COLORS = COLORS[:-1]


@dataclasses.dataclass(frozen=True)
class TradeoffPoint:
    """One method at one size in the trade-off between score and trained parameters.

    Attributes:
      family: ``top layers``, ``LayerNorm only``, or the adapters' architecture, as in ``pfeiffer adapters``.
      method: The method's name, including the size.
      parameters: Number of trained parameters per task, including the head (the median over tasks).
      low, middle, high: For several tasks, the ``PERCENTILES`` over tasks of the difference to full fine-tuning. For a
        single task, the mean score over seeds and one standard deviation below and above it; ``low`` and ``high`` are
        None with a single seed.
      count: The number of tasks, or of seeds for a single task.
    """

    family: str
    method: str
    parameters: float
    low: float | None
    middle: float
    high: float | None
    count: int


def tradeoff_points(grid: Grid) -> list[TradeoffPoint]:
    """Computes the trade-off of score and parameters (Houlsby 2019, figures 1 and 3).

    Scores are relative to full fine-tuning. Tasks without a full fine-tuning run are left out.

    Args:
      grid: A grid built with ``by_size``.

    Raises:
      UserError: There is no full fine-tuning run, no other method to compare with it, or a run's number of trained
        parameters is unknown.
    """
    difference_methods(grid)
    points = []
    for method in order(grid.methods):
        cells = [cell for cell in grid.row(method) if (cell.task, "full") in grid.cells]
        if not cells or not _family(method):
            continue
        changes = [cell.mean - grid.cells[cell.task, "full"].mean for cell in cells]
        low, middle, high = np.percentile(changes, PERCENTILES).tolist()
        parameters = statistics.median(_trained(cell) for cell in cells)
        points.append(TradeoffPoint(_family(method), method, parameters, low, middle, high, len(cells)))
    return _checked(points, grid)


def task_points(grid: Grid, task: str) -> list[TradeoffPoint]:
    """Computes the trade-off on a single task (Houlsby 2019, figures 4 and 5).

    Raises:
      UserError: There is nothing to draw, or a run's number of trained parameters is unknown.
    """
    points = []
    for method in order(grid.methods):
        if (task, method) in grid.cells and _family(method):
            cell = grid.cells[task, method]
            points.append(
                TradeoffPoint(_family(method), method, float(_trained(cell)), *_with_spread(cell), len(cell.seeds))
            )
    return _checked(points, grid)


def parameters_axis(axes: "Axes", parameters: Sequence[float]) -> None:
    """Makes the x axis logarithmic, with labels such as ``200 k`` and ``1 M``.

    Label spacing adapts to the number of decades.
    """
    from matplotlib.ticker import EngFormatter, FixedLocator, LogLocator, MaxNLocator, NullFormatter

    axes.set_xscale("log")
    least, most = min(parameters), max(parameters)
    decades = math.log10(most / least)
    if decades < 0.05:
        # A narrow range would have several ticks with the same label.
        axes.set_xlim(least / 1.5, most * 1.5)
        axes.xaxis.set_major_locator(FixedLocator([least]))
    elif decades < 1:
        # A range of less than a decade may contain no logarithmic tick.
        axes.xaxis.set_major_locator(MaxNLocator(4))
    else:
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0,)))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())


@style()
def draw_tradeoff(
    points: Sequence[TradeoffPoint], output: Path, *, task: str = "", full: Cell | None = None
) -> list[Path]:
    """Draws score against trained parameters, with one line per family.

    Args:
      points: The points of :func:`tradeoff_points` or :func:`task_points`.
      output: The output path; each file gets its format's suffix.
      task: The task's name and metric, for the points of a single task.
      full: The full fine-tuning runs on that task, if any.
    """
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.7)
    parameters_axis(axes, [point.parameters for point in points])
    level = full.mean if full else 0.0
    if full or not task:
        axes.axhline(level, color="0.35", linewidth=0.8, linestyle="--", zorder=1)
    families = list(dict.fromkeys(point.family for point in points))
    for index, family in enumerate(families):
        family_points = sorted(
            (point for point in points if point.family == family), key=lambda point: point.parameters
        )
        _draw_family(axes, family, family_points, index)
    axes.set_xlabel("Trained parameters per task, head included")
    axes.set_ylabel(f"Dev score on {task}" if task else "Dev score minus full\nfine-tuning (points)")
    if full or not task:
        name = "full fine-tuning"
        axes.annotate(
            name, (0.01, level), xycoords=("axes fraction", "data"), xytext=(0, 2), textcoords="offset points",
            fontsize=7, color="0.35",
        )  # fmt: skip
    figure.legend(loc="outside upper center", ncols=2, handlelength=1.6, columnspacing=1.2)
    if any(point.low is None for point in points):
        note_one_seed(figure)
    names = ("mean_minus_std", "mean", "mean_plus_std", "seeds") if task else ("p20", "p50", "p80", "tasks")
    rows = [dataclasses.astuple(point) for point in points]
    if full:
        parameters = full.records[0].trained_parameters
        sizes = "" if parameters is None else float(parameters), *_with_spread(full), len(full.seeds)
        rows.append(("full", "full", *sizes))
    return save_figure(figure, output, ("family", "method", "trained_parameters", *names), rows)


@style()
def draw_differences(grid: Grid, output: Path, *, same_seeds: bool = False) -> list[Path]:
    """Draws every method's difference to full fine-tuning (AdapterFusion, figure 3).

    Differences are drawn as bars, grouped by task.

    Args:
      grid: The runs.
      output: The output path; each file gets its format's suffix.
      same_seeds: Whether each method is only compared on the seeds that full fine-tuning has too. Otherwise the means
        over all seeds are compared.

    Raises:
      UserError: The full fine-tuning run, or a run of another method on the same task, is missing.
    """
    methods = difference_methods(grid)
    rows = [
        (cell.task, cell.method, cell.mean - full.mean, cell.std, full.std, _joined(cell.seeds), _joined(full.seeds))
        for cell, full in _compared(grid, methods, same_seeds)
    ]
    if not rows:
        raise UserError(
            "No task has finished runs of both full fine-tuning and another method, so there is nothing to draw."
        )
    tasks = [task for task in grid.tasks if any(row[0] == task for row in rows)]
    drawn = [method for method in methods if any(row[1] == method for row in rows)]
    is_wide = len(tasks) * len(drawn) > 12
    figure, (axes,) = new_figure(PAGE_WIDTH if is_wide else COLUMN_WIDTH, 2.5)
    width = 0.8 / len(drawn)
    for index, method in enumerate(drawn):
        bars = [(tasks.index(row[0]), row[2]) for row in rows if row[1] == method]
        positions = [task_index - 0.4 + (index + 0.5) * width for task_index, _ in bars]
        axes.bar(
            positions, [change for _, change in bars], width * 0.9, label=method, zorder=2, linewidth=0,
            edgecolor="0.1", color=BAR_COLORS[index % len(BAR_COLORS)], hatch=HATCHES[index % len(HATCHES)],
        )  # fmt: skip
    axes.axhline(0, color="0.2", linewidth=0.8, zorder=3)
    for boundary in range(1, len(tasks)):
        axes.axvline(boundary - 0.5, color="0.9", linewidth=0.6, zorder=0)
    axes.set_xlim(-0.5, len(tasks) - 0.5)
    slanted = max(map(len, tasks)) * len(tasks) > (90 if is_wide else 40)
    axes.set_xticks(range(len(tasks)), tasks, rotation=30 if slanted else 0, ha="right" if slanted else "center")
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel("Dev score minus full\nfine-tuning (points)")
    figure.legend(loc="outside upper center", ncols=min(len(drawn), 6 if is_wide else 3), handleheight=1.1)
    header = ("task", "method", "difference_to_full", "std", "std_of_full", "seeds", "seeds_of_full")
    return save_figure(figure, output, header, rows)


def _compared(grid: Grid, methods: Sequence[str], same_seeds: bool) -> Iterator[tuple[Cell, Cell]]:
    """Yields the cells of each task with the cell of full fine-tuning."""
    for task in grid.tasks:
        full = grid.cells.get((task, "full"))
        for method in methods:
            cell = grid.cells.get((task, method))
            if cell is None or full is None:
                continue
            if not same_seeds:
                yield cell, full
            elif set(cell.seeds) & set(full.seeds):
                yield cell.with_seeds(full.seeds), full.with_seeds(cell.seeds)


def _joined(seeds: Sequence[int]) -> str:
    return " ".join(map(str, seeds))


def _draw_family(axes: "Axes", family: str, points: Sequence[TradeoffPoint], index: int) -> None:
    color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
    sizes, middles = [point.parameters for point in points], [point.middle for point in points]
    draw_spread(axes, sizes, [point.low for point in points], [point.high for point in points], color)
    axes.plot(sizes, middles, color=color, marker=marker, label=family, zorder=4)


def _family(method: str) -> str:
    """Returns the label of a method's line, or an empty string if it is not drawn."""
    name, colon, _ = method.partition(":")
    if name.startswith("top-"):
        return "top layers"
    if name == "layernorm":
        return "LayerNorm only"
    return f"{name} adapters" if colon and not name.startswith(("mt-", "fusion", "sequential")) else ""


def _with_spread(cell: Cell) -> tuple[float | None, float, float | None]:
    if cell.std is None:
        return None, cell.mean, None
    return cell.mean - cell.std, cell.mean, cell.mean + cell.std


def _trained(cell: Cell) -> int:
    record = cell.records[0]
    if record.trained_parameters is None:
        raise UserError(
            f"The trained parameters of the run in {record.folder} cannot be counted, because its artifacts or its "
            "trunk were not found; add its store to --runs."
        )
    return record.trained_parameters


def _checked(points: list[TradeoffPoint], grid: Grid) -> list[TradeoffPoint]:
    if not points:
        raise UserError(
            "There is nothing to draw: no runs of adapters, top layers or LayerNorms were found, only of "
            f"{', '.join(grid.methods)}. For several tasks, each task also needs a run of full fine-tuning."
        )
    return points
