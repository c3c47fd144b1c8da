"""``afjax plot``: draws the papers' figures.

This module draws figures from finished runs; ``plot_activations`` and ``plot_spans`` draw them from stored models.
"""

import argparse
import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from afjax.cli.commands import plot_activations, plot_spans
from afjax.cli.finished_runs import add_runs_flags, split_folders
from afjax.cli.parsers import add_command, add_group, local_file
from afjax.display.terminal import print_line
from afjax.errors import UserError

if TYPE_CHECKING:
    from afjax.analysis.run_records import Collection

DIFFERENCES_EXAMPLE = """\
example:
  afjax plot differences --runs=runs --output=differences"""

TRADEOFF_EXAMPLE = """\
examples:
  afjax plot tradeoff --runs=runs --output=tradeoff
  afjax plot tradeoff --runs=runs --task=rte --output=rte

Over all tasks, the figure shows the 20th, 50th and 80th percentiles of the difference to full fine-tuning. For one
task, it shows the mean and standard deviation over seeds."""

ROBUSTNESS_EXAMPLE = """\
example:
  afjax sweep --config=baselines:method=houlsby,task=rte,data=DATA/rte --workdir=runs/rte-scales \\
      --grid.train.learning_rate=3e-4 --grid.adapter.init_scale=1e-7,1e-5,1e-3,1e-2,1e-1,1.0 --seeds=0,1,2
  afjax plot robustness --runs=runs/rte-scales --output=robustness"""

SEARCH_EXAMPLE = """\
example:
  afjax sweep --config=pfeiffer_search:task=rte,data=DATA --workdir=runs/search
  afjax plot search --runs=runs/search --output=search"""


def add(commands: Any) -> None:
    """Adds the commands to the parser's commands."""
    plots = add_group(commands, "plot", "draw the papers' figures", metavar="FIGURE")
    plot_activations.add(plots)
    plot_spans.add(plots)
    figures = {
        "differences": ("score difference to full fine-tuning, grouped by task", DIFFERENCES_EXAMPLE),
        "tradeoff": ("score against trained parameters", TRADEOFF_EXAMPLE),
        "robustness": ("score against adapter initialization scale and size, from a sweep", ROBUSTNESS_EXAMPLE),
        "search": ("adapter architecture search, from its sweep", SEARCH_EXAMPLE),
    }
    for name, (summary, example) in figures.items():
        parser = add_command(plots, name, summary, example, run=functools.partial(_run, name))
        add_runs_flags(parser)
        parser.add_argument(
            "--output", required=True, type=local_file, help="output path, for .png, .svg and .csv files"
        )
        if name == "differences":
            parser.add_argument(
                "--methods", default="", metavar="NAME,...", help="the methods to show, in this order (all)"
            )
        if name == "tradeoff":
            parser.add_argument("--task", default="", help="plot a single task instead of percentiles over tasks")


def _run(name: str, arguments: argparse.Namespace) -> None:
    from afjax.analysis import cells, figures, runs, sweep_figures

    figures.check_output(arguments.output)
    collection = runs.collect(split_folders(arguments.runs))
    all_tasks = sorted({record.task for record in collection.records})
    tasks = cells.chosen(arguments.tasks, "--tasks", all_tasks)
    records = [record for task in tasks for record in collection.records if record.task == task]
    if name == "robustness":
        scores = sweep_figures.robustness(records, metric=arguments.metric)
        paths = sweep_figures.draw_robustness(scores, arguments.output)
    elif name == "search":
        scores = sweep_figures.search(records, metric=arguments.metric)
        paths = sweep_figures.draw_search(scores, arguments.output)
    else:
        paths = _plot_grid(name, arguments, collection, tasks)
    for note in collection.left_out(tasks):
        print_line(f"Left out: {note}.")
    print("\n".join(map(str, paths)))


def _plot_grid(name: str, arguments: argparse.Namespace, collection: "Collection", tasks: Sequence[str]) -> list[Path]:
    from afjax.analysis import cells, run_figures, tables

    if name == "differences":
        grid = tables.make_grid(collection, tasks=arguments.tasks, methods=arguments.methods, metric=arguments.metric)
        paths = run_figures.draw_differences(grid, arguments.output)
        _print_notes([*tables.uneven_seeds_note(grid), *tables.warnings(grid)])
        return paths
    task, *extra_tasks = cells.chosen(arguments.task, "--task", tasks) if arguments.task else [""]
    if extra_tasks:
        raise UserError(
            f"--task is {arguments.task}, but must be one task; for percentiles over several tasks, use "
            f"--tasks={arguments.task}."
        )
    grid = tables.make_grid(collection, tasks=task or arguments.tasks, metric=arguments.metric, by_size=True)
    if task:
        title, full = f"{task} ({grid.metrics[task]})", grid.cells.get((task, "full"))
        points = run_figures.task_points(grid, task)
    else:
        title, full = "", None
        points = run_figures.tradeoff_points(grid)
        # Percentiles over different sets of tasks are not comparable.
        num_tasks = max(point.count for point in points)
        incomplete = [f"{point.method} ({point.count})" for point in points if point.count < num_tasks]
        if incomplete:
            print_line(f"Left out, because they cover fewer than {num_tasks} tasks: {', '.join(incomplete)}.")
        points = [point for point in points if point.count == num_tasks]
    paths = run_figures.draw_tradeoff(points, arguments.output, task=title, full=full)
    grid = dataclasses.replace(grid, methods=("full", *(point.method for point in points)))
    _print_notes([*([] if task else tables.uneven_seeds_note(grid)), *tables.warnings(grid)])
    return paths


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        print_line(note)
