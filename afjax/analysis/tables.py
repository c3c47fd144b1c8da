"""Builds the papers' score tables from finished runs.

A :class:`Table` holds formatted cells and the same data at full precision. :mod:`afjax.analysis.formats` renders it.
"""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from afjax.analysis.cells import Cell, cell_method, chosen, make_cells, order, task_metrics
from afjax.analysis.missing import command, is_baseline
from afjax.analysis.run_records import Collection
from afjax.config.flags import parse_seeds, split_names
from afjax.display.words import counted, first_of
from afjax.errors import UserError

GAP = "-"
# Arrows point up or down for differences of more than this many points (AdapterFusion, table 2).
LEVEL = 0.3
UP, DOWN, SAME = "↑", "↓", "→"


@dataclasses.dataclass(frozen=True)
class Table:
    """A table, with its notes and the commands that fill its gaps.

    Attributes:
      title: The title.
      header, rows: Formatted cells. The first column has the row names.
      notes: Sentences that explain the scores, seeds, chosen settings and omitted runs.
      commands: The commands that would fill the gaps.
      data_header, data: The data at full precision, with one row per task and method (or compared pair of methods).
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    commands: tuple[str, ...]
    data_header: tuple[str, ...]
    data: tuple[tuple[Any, ...], ...]


@dataclasses.dataclass(frozen=True)
class Grid:
    """The cells of a table, in a form that every layout uses.

    Attributes:
      collection: The runs.
      tasks, methods: The tasks and methods to show, in order.
      cells: ``{(task, method): cell}`` for every task and method that has runs.
      metrics: ``{task: metric}``.
      seeds: ``{task: seeds}``, the seeds that each cell of the task should have. Cells may also have other seeds.
    """

    collection: Collection
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    cells: Mapping[tuple[str, str], Cell]
    metrics: Mapping[str, str]
    seeds: Mapping[str, tuple[int, ...]]

    def row(self, method: str) -> list[Cell]:
        """Returns the cells of a method, skipping tasks that have none."""
        return [self.cells[task, method] for task in self.tasks if (task, method) in self.cells]

    @property
    def shown_cells(self) -> list[Cell]:
        return [cell for key, cell in self.cells.items() if key[0] in self.tasks and key[1] in self.methods]

    def all_seeds(self, task: str) -> set[int]:
        """Returns the seeds that the cells of a task have or should have."""
        return {*self.seeds[task], *(seed for cell in self.shown_cells if cell.task == task for seed in cell.seeds)}


def make_grid(
    collection: Collection,
    *,
    tasks: str = "",
    methods: str = "",
    seeds: str = "",
    metric: str = "",
    by_size: bool = False,
    by_sampler: bool = False,
) -> Grid:
    """Builds the cells of a table.

    Args:
      collection: The runs.
      tasks, methods: Comma-separated names; empty for all that have runs. Methods of ``configs/baselines.py`` are
        allowed even without runs, and appear as gaps.
      seeds: Comma-separated seeds that each cell should have. Empty for all seeds that occur in the task's cells.
      metric, by_size, by_sampler: See :func:`afjax.analysis.cells.make_cells`.

    Raises:
      UserError: A named task or method has no run, ``seeds`` is not a list of integers, runs on one task have different
        main metrics, or no run has ``metric``.
    """
    records = collection.records
    shown_tasks = chosen(tasks, "--tasks", sorted({record.task for record in records}))
    records = tuple(record for record in records if record.task in shown_tasks)
    cells = make_cells(records, metric=metric, by_size=by_size, by_sampler=by_sampler)
    available = order(method for _, method in cells)
    requested = split_names(methods)
    shown_methods = chosen(
        methods, "--methods", available, also=[method for method in requested if is_baseline(method)]
    )
    run_seeds = {
        task: {seed for method in shown_methods for seed in _seeds_of(cells, task, method)} for task in shown_tasks
    }
    requested_seeds = tuple(dict.fromkeys(parse_seeds(seeds))) if seeds else None
    needed = {task: requested_seeds or tuple(sorted(run_seeds[task])) or (0,) for task in shown_tasks}
    # Name unfinished runs like the cells, so that the commands for missing runs resume them.
    unfinished = tuple(
        dataclasses.replace(run, method=cell_method(run, by_size=by_size, by_sampler=by_sampler))
        for run in collection.unfinished
    )
    collection = dataclasses.replace(collection, unfinished=unfinished)
    return Grid(collection, tuple(shown_tasks), tuple(shown_methods), cells, task_metrics(records, metric), needed)


def make_table(layout: str, grid: Grid) -> Table:
    """Builds a table in one of the ``LAYOUTS``.

    Raises:
      UserError: The layout needs runs that are missing.
    """
    return LAYOUTS[layout](grid)


# AdapterFusion


def adapterfusion(grid: Grid) -> Table:
    """Builds a table of tasks by methods (AdapterFusion, tables 1, 3 and 4).

    Cells have the mean and the standard deviation over seeds.
    """
    rows = []
    for task in grid.tasks:
        texts = [_score(grid, task, method) for method in grid.methods]
        rows.append((_task(task, grid), *texts, str(len(grid.all_seeds(task)))))
    means = [_mean(grid, method) for method in grid.methods]
    if len(grid.tasks) > 1 and means != [GAP] * len(means):
        rows.append(("mean", *means, ""))
    return _table("Dev scores", ("task", *grid.methods, "seeds"), rows, grid)


def arrows(grid: Grid) -> Table:
    """Builds a table of fusions against single adapters (AdapterFusion, table 2).

    Arrows show whether a fusion is better, worse or on par.

    Raises:
      UserError: There are no fusions, or no adapters to compare them with.
    """
    pairs = [(fusion, adapter) for fusion in ("fusion", "fusion-mt") for adapter in ("pfeiffer", "mt-pfeiffer")]
    pairs = [pair for pair in pairs if set(pair) <= set(grid.methods)]
    if not pairs:
        raise UserError(
            "There are no fusions to compare with adapters: the layout arrows needs runs of fusion or fusion-mt, and "
            f"of pfeiffer or mt-pfeiffer, but there are only {', '.join(grid.methods)}."
        )
    rows, data = [], []
    for task in grid.tasks:
        changes = [_difference(grid, task, *pair) for pair in pairs]
        texts = ["" if change is None else arrow(change) for change in changes]
        rows.append((_task(task, grid), *(text or GAP for text in texts)))
        data += [(task, *pair, change, text) for pair, change, text in zip(pairs, changes, texts, strict=True)]
    arrows_by_pair = [[line[-1] for line in data if line[1:3] == pair and line[-1]] for pair in pairs]
    rows.append(("better", *(f"{texts.count(UP)}/{len(texts)}" for texts in arrows_by_pair)))
    used = [method for method in grid.methods if any(method in pair for pair in pairs)]
    note = f"{UP} more than {LEVEL} points better on dev, {DOWN} more than {LEVEL} worse, {SAME} neither."
    header = ("task", *(f"{fusion} vs {adapter}" for fusion, adapter in pairs))
    notes = (note, *uneven_seeds_note(grid, pairs))
    table = _table("Changes in dev scores", header, rows, dataclasses.replace(grid, methods=tuple(used)), first=notes)
    return dataclasses.replace(
        table, data_header=("task", "method", "against", "difference", "arrow"), data=tuple(data)
    )


def uneven_seeds_note(grid: Grid, pairs: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Notes any pairs of methods whose means cover different seeds. By default, each method is paired with ``full``."""
    pairs = pairs or [(method, "full") for method in grid.methods if method != "full"]
    uneven = [
        f"{method} and {other} on {task}"
        for method, other in pairs
        for task in grid.tasks
        if (seeds := _seeds_of(grid.cells, task, method))
        and (other_seeds := _seeds_of(grid.cells, task, other))
        and set(seeds) != set(other_seeds)
    ]
    return [f"Means over different seeds are compared for {', '.join(uneven)}."] if uneven else []


def arrow(change: float) -> str:
    """Returns the arrow for a difference in points; up to ``LEVEL`` means no change."""
    # Round, because 80.3 - 80 is not exactly 0.3 in floating point.
    change = round(change, 9)
    return UP if change > LEVEL else DOWN if change < -LEVEL else SAME


def differences(grid: Grid) -> Table:
    """Builds a table of differences to full fine-tuning (AdapterFusion, figure 3).

    Differences are in points.

    Raises:
      UserError: There is no run of ``full``, or no other method.
    """
    methods = difference_methods(grid)
    rows, data = [], []
    for task in grid.tasks:
        changes = [_difference(grid, task, method, "full") for method in methods]
        rows.append((_task(task, grid), *(GAP if change is None else f"{change:+.2f}" for change in changes)))
        data += [(task, method, change) for method, change in zip(methods, changes, strict=True)]
    table = _table("Dev scores minus full fine-tuning's", ("task", *methods), rows, grid, first=uneven_seeds_note(grid))
    return dataclasses.replace(table, data_header=("task", "method", "difference_to_full"), data=tuple(data))


def difference_methods(grid: Grid) -> tuple[str, ...]:
    """Returns the methods to compare with full fine-tuning.

    Raises:
      UserError: There is no run of ``full``, or no other method.
    """
    methods = tuple(method for method in grid.methods if method != "full")
    if "full" not in grid.methods or not grid.row("full") or not methods:
        needed = "Differences to full fine-tuning need finished runs of the method full and of another method, but "
        left_out = order({method for task, method in grid.cells if task in grid.tasks} - set(grid.methods))
        if left_out and ("full" in left_out or not methods):
            raise UserError(
                f"{needed}--methods is {','.join(grid.methods)}; add {'full' if methods else ' or '.join(left_out)}."
            )
        raise UserError(
            f"{needed}there are only {', '.join(grid.methods)}; train one with configs/baselines.py:method=full."
        )
    return methods


# BERT and PALs


def pals(grid: Grid) -> Table:
    """Builds a table of methods and samplers by tasks (Stickland & Murray 2019)."""

    def describe(method: str) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        cells, total = grid.row(method), _relative_size(grid, method)
        sampler = cells[0].records[0].sampler if cells else ""
        name = method.removesuffix(f":{sampler}")
        return (name, sampler or GAP, GAP if total is None else f"{total:.2f}×"), (name, sampler, total)

    title = "Total parameters of all tasks, and dev scores"
    header, columns = ("method", "sampler", "parameters"), ("method", "sampler", "parameters_relative")
    return _table_of_sizes(grid, title, header, columns, describe)


def _table_of_sizes(
    grid: Grid,
    title: str,
    header: tuple[str, ...],
    columns: tuple[str, ...],
    describe: Callable[[str], tuple[tuple[str, ...], tuple[Any, ...]]],
) -> Table:
    """Builds a table of methods by tasks, with leading columns that describe each method and its parameters.

    Args:
      grid: The scores.
      title: The table's title.
      header: The headers of the leading columns.
      columns: The names of the leading columns in the table's data.
      describe: Returns a method's leading cells, and their values in the table's data.
    """
    rows, values = [], {}
    for method in grid.methods:
        cells, values[method] = describe(method)
        rows.append((*cells, *(_score(grid, task, method) for task in grid.tasks), _mean(grid, method)))
    header = (*header, *(_task(task, grid) for task in grid.tasks), "mean")
    table = _table(title, header, rows, grid, first=(_PARAMETERS, *_unknown_sizes_note(grid)))
    data = sorted(table.data, key=lambda row: list(values).index(row[1]))
    data_rows = tuple((*values[row[1]], row[0], *row[2:]) for row in data)
    return dataclasses.replace(table, data_header=(*columns, _DATA[0], *_DATA[2:]), data=data_rows)


def _unknown_sizes_note(grid: Grid) -> list[str]:
    """Notes any runs whose parameter counts are unknown, and how to fix this."""
    records = [record for method in grid.methods for cell in grid.row(method) for record in cell.records[:1]]
    folders = [str(record.folder) for record in records if record.own_parameters is None]
    if not folders:
        return []
    return [
        f"No artifacts of {first_of(folders, 1)} were found, so parameters cannot be counted; add the store to --runs."
    ]


_PARAMETERS = (
    "Parameters are totals over all tasks' models, heads included; trained parameters are per task. Both are relative "
    "to the pretrained trunk."
)


# Houlsby 2019


def houlsby(grid: Grid) -> Table:
    """Builds a table of scores and parameters by method (Houlsby 2019, tables 1, 2)."""

    def describe(method: str) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        total, trained = _relative_size(grid, method), _trained_fraction(grid, method)
        sizes = (GAP if total is None else f"{total:.2f}×", GAP if trained is None else f"{100 * trained:.2f}%")
        return (method, *sizes), (method, total, trained)

    header, columns = ("method", "total", "trained/task"), ("method", "total_relative", "trained_per_task_relative")
    return _table_of_sizes(grid, "Parameters and dev scores", header, columns, describe)


def _relative_size(grid: Grid, method: str) -> float | None:
    """Computes the total parameters of all tasks' models, relative to the trunk.

    The result is None if a task lacks the method or a parameter count is unknown.
    """
    records = [cell.records[0] for cell in grid.row(method)]
    sizes = [record.own_parameters for record in records]
    if len(records) < len(grid.tasks) or None in sizes or not records[0].trunk_parameters:
        return None
    # A trunk that tasks share, pretrained or jointly trained, counts once. A task's own trunk is counted in its own
    # parameters.
    base = 0 if all(record.replaces_trunk for record in records) else records[0].trunk_parameters
    frozen = {digest: size for record in records for digest, size in record.adapters.items()}
    return (base + sum(size or 0 for size in sizes) + sum(frozen.values())) / records[0].trunk_parameters


def _trained_fraction(grid: Grid, method: str) -> float | None:
    """Computes the mean trained parameters per task, relative to the pretrained trunk.

    The mean is over the tasks that have the method. The result is None if a parameter count is unknown.
    """
    records = [cell.records[0] for cell in grid.row(method)]
    sizes = [record.trained_parameters for record in records]
    if not records or None in sizes or not records[0].trunk_parameters:
        return None
    return statistics.fmean(size or 0 for size in sizes) / records[0].trunk_parameters


LAYOUTS: Mapping[str, Callable[[Grid], Table]] = {
    "adapterfusion": adapterfusion,
    "arrows": arrows,
    "differences": differences,
    "pals": pals,
    "houlsby": houlsby,
}


# Cells, data and notes


_DATA = ("task", "method", "metric", "mean", "std", "seeds", "settings", "runs", "command")


def _table(
    title: str, header: tuple[str, ...], rows: Sequence[tuple[str, ...]], grid: Grid, *, first: Sequence[str] = ()
) -> Table:
    gaps = missing(grid)
    data: list[tuple[Any, ...]] = []
    for task in grid.tasks:
        for method in grid.methods:
            line = " && ".join(gaps.get((task, method), []))
            numbers: tuple[Any, ...] = (None,) * 5
            if (task, method) in grid.cells:
                cell = grid.cells[task, method]
                seeds = " ".join(map(str, cell.seeds))
                numbers = cell.mean, cell.std, seeds, cell.num_settings, len(cell.candidates)
            data.append((task, method, grid.metrics[task], *numbers, line))
    notes = [*first, *_notes(grid)]
    commands = tuple(dict.fromkeys(line for lines in gaps.values() for line in lines))
    return Table(title, header, tuple(rows), tuple(notes), commands, _DATA, tuple(data))


def missing(grid: Grid) -> dict[tuple[str, str], list[str]]:
    """Lists the commands for a table's missing runs: ``{(task, method): commands}``."""
    commands_by_cell: dict[tuple[str, str], list[str]] = {}
    for task in grid.tasks:
        for method in grid.methods:
            finished_seeds = _seeds_of(grid.cells, task, method)
            missing_seeds = [seed for seed in grid.seeds[task] if seed not in finished_seeds]
            lines = [command(grid.collection, grid.cells, task, method, seed) for seed in missing_seeds]
            if commands := [line for line in lines if line is not None]:
                commands_by_cell[task, method] = commands
    return commands_by_cell


def _notes(grid: Grid) -> list[str]:
    cells = grid.shown_cells
    seeds = sorted({seed for cell in cells for seed in cell.seeds})
    record = next(cell for cell in cells).records[0] if cells else grid.collection.records[0]
    runs = sum(len(cell.candidates) for cell in cells)
    return [
        "Scores are dev metrics times 100: mean ± sample standard deviation over seeds. (n) means only n seeds.",
        f"{counted(runs, 'run')} on the trunk {record.trunk_name}, "
        f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds)) or GAP}.",
        *warnings(grid),
        *(f"Left out: {note}." for note in grid.collection.left_out(grid.tasks)),
    ]


def warnings(grid: Grid) -> list[str]:
    """Notes how cells were chosen among settings and repeated runs, and tasks whose runs have different rows."""
    cells, notes = grid.shown_cells, []
    picked = [f"{cell.method} on {cell.task} ({cell.num_settings} settings)" for cell in cells if cell.num_settings > 1]
    if picked:
        notes.append(f"The setting with the most seeds (then the best dev score) was chosen for: {', '.join(picked)}.")
    notes += [
        f"{folder} repeats a run of {cell.method} on {cell.task} with a different score, and is ignored."
        for cell in cells
        for folder in cell.repeated
    ]
    for task in grid.tasks:
        records = [record for cell in cells if cell.task == task for record in cell.candidates]
        for split, what in (("train", f"Runs on {task} were trained"), ("dev", f"Scores on {task} are")):
            folders = {record.rows_digest(task, split): str(record.folder) for record in records}
            # Stores and runs of earlier versions have no digests.
            folders.pop(None, None)
            if len(folders) > 1:
                notes.append(f"{what} on different {split} rows in {', '.join(folders.values())}.")
    return notes


def _task(task: str, grid: Grid) -> str:
    metric = grid.metrics[task]
    return task if metric == "accuracy" else f"{task} ({metric})"


def _score(grid: Grid, task: str, method: str) -> str:
    if (task, method) not in grid.cells:
        return GAP
    cell = grid.cells[task, method]
    spread = "" if cell.std is None else f" ± {cell.std:.2f}"
    note = "" if grid.all_seeds(task) <= set(cell.seeds) else f" ({len(cell.seeds)})"
    return f"{cell.mean:.2f}{spread}{note}"


def _mean(grid: Grid, method: str) -> str:
    """Returns the mean over tasks, or a gap if the method lacks a task."""
    cells = grid.row(method)
    return f"{statistics.fmean(cell.mean for cell in cells):.2f}" if len(cells) == len(grid.tasks) else GAP


def _difference(grid: Grid, task: str, method: str, other: str) -> float | None:
    cells = [grid.cells.get((task, name)) for name in (method, other)]
    return None if cells[0] is None or cells[1] is None else cells[0].mean - cells[1].mean


def _seeds_of(cells: Mapping[tuple[str, str], Cell], task: str, method: str) -> tuple[int, ...]:
    return cells[task, method].seeds if (task, method) in cells else ()
