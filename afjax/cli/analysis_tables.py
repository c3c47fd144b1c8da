"""``afjax table``, and the figures that are drawn from several finished runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from afjax.errors import UserError
from afjax.storage.paths import expanded
from afjax.storage.writing import check_output, write_output

if TYPE_CHECKING:
    from afjax.analysis.runs import Collection


def table(arguments: argparse.Namespace) -> int:
    """``afjax table``: prints a table of finished runs, or writes it."""
    from afjax.analysis import formats, runs, tables

    # Before anything is read, which may take its time.
    for given, names, what in (
        (arguments.layout, tables.LAYOUTS, "layout"),
        (arguments.format, formats.FORMATS, "format"),
    ):
        formats.check_choice(given, names, what)
    output = arguments.output
    if output is not None:
        check_output(output)
    grid = tables.make_grid(
        runs.collect(split_folders(arguments.runs)),
        tasks=arguments.tasks,
        methods=arguments.methods,
        seeds=arguments.seeds,
        metric=arguments.metric,
        by_size=arguments.by_size,
        by_sampler=arguments.layout == "pals",
    )
    text = formats.write(tables.make_table(arguments.layout, grid), arguments.format)
    if output is None:
        print(text, end="")
    else:
        write_output(output, text)
        print(f"Written to {output}", file=sys.stderr)
    return 0


def split_folders(given: str) -> Sequence[str]:
    """The folders of ``--runs``."""
    folders = [folder.strip() for folder in given.split(",")]
    if "" in folders:
        raise UserError(f'--runs is "{given}"; give folders with commas between, as in --runs=runs/rte,runs/mrpc.')
    return [folder if folder.startswith("gs://") else str(expanded(folder)) for folder in folders]


def plot(arguments: argparse.Namespace) -> int:
    """``afjax plot`` of what is drawn from several finished runs."""
    from afjax.analysis import cells, figures, runs

    figures.check_output(arguments.output)
    found = runs.collect(split_folders(arguments.runs))
    there = sorted({record.task for record in found.records})
    tasks = cells.chosen(arguments.tasks, "--tasks", there)
    records = [record for task in tasks for record in found.records if record.task == task]
    name = arguments.command.removeprefix("plot ")
    if name in ("robustness", "search"):
        from afjax.analysis import sweep_figures

        if name == "robustness":
            scores = sweep_figures.robustness(records, metric=arguments.metric)
            paths = sweep_figures.draw_robustness(scores, arguments.output)
        else:
            scores = sweep_figures.search(records, metric=arguments.metric)
            paths = sweep_figures.draw_search(scores, arguments.output)
    else:
        paths = _plot_grid(name, arguments, found)
    for note in found.left_out(tasks):
        print(f"Left out: {note}.", file=sys.stderr)
    print("\n".join(map(str, paths)))
    return 0


def _plot_grid(name: str, arguments: argparse.Namespace, found: "Collection") -> list[Path]:
    from afjax.analysis import cells, run_figures, tables

    shared = {"tasks": arguments.tasks, "metric": arguments.metric}
    if name == "differences":
        grid = tables.make_grid(found, methods=arguments.methods, **shared)
        return run_figures.draw_differences(grid, arguments.output)
    grid = tables.make_grid(found, by_size=True, **shared)
    if not arguments.task:
        points = run_figures.tradeoff_points(grid)
        # Percentiles over other tasks are not to be compared.
        most = max(point.count for point in points)
        few = [f"{point.method} ({point.count})" for point in points if point.count < most]
        if few:
            print(f"Left out, as they have fewer than {most} tasks: {', '.join(few)}.", file=sys.stderr)
        return run_figures.draw_tradeoff([point for point in points if point.count == most], arguments.output)
    task, *others = cells.chosen(arguments.task, "--task", grid.tasks)
    if others:
        raise UserError(
            f"--task is {arguments.task}, but takes one task; give one, or --tasks={arguments.task} for the "
            "percentiles over several."
        )
    metric = grid.metrics[task]
    points = run_figures.task_points(grid, task)
    full = grid.cells.get((task, "full"))
    return run_figures.draw_tradeoff(points, arguments.output, task=f"{task} ({metric})", full=full)
