"""Table cells: the runs of one method on one task with one setting, over seeds."""

import dataclasses
import re
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from afjax.analysis.run_records import RunRecord, UnfinishedTask
from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.flags import split_names
from afjax.errors import UserError, did_you_mean

# The order of methods in tables. An unlisted method takes the position of the first entry that is a prefix of its name,
# such as "top-" for "top-3". Ties are broken by the K of "top-K" or by adapter size. Methods without a matching entry
# come last.
METHODS: tuple[str, ...] = tuple(
    "head full layernorm top- pfeiffer bottleneck houlsby mt-full mt-pfeiffer mt- fusion fusion-mt".split()
)


@dataclasses.dataclass(frozen=True)
class Cell:
    """The runs of one method on one task.

    Attributes:
      task, method: The names of the task and the method.
      records: The runs of the chosen setting, one per seed, sorted by seed.
      scores: The runs' scores in points (times 100).
      num_settings: The number of settings tried. :func:`make_cells` describes how one is chosen.
      candidates: The runs of all these settings.
      repeated: Folders of ignored runs. They repeat another run but have a different score.
    """

    task: str
    method: str
    records: tuple[RunRecord, ...]
    scores: tuple[float, ...]
    num_settings: int
    candidates: tuple[RunRecord, ...]
    repeated: tuple[str, ...] = ()

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores)

    @property
    def std(self) -> float | None:
        """The sample standard deviation, or None with a single seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.seed for record in self.records)

    def with_seeds(self, seeds: Collection[int]) -> "Cell":
        """Returns the cell with only the runs that have one of these seeds."""
        kept = [index for index, seed in enumerate(self.seeds) if seed in seeds]
        return dataclasses.replace(
            self,
            records=tuple(self.records[index] for index in kept),
            scores=tuple(self.scores[index] for index in kept),
        )


def make_cells(
    records: Sequence[RunRecord], *, metric: str = "", by_size: bool = False, by_sampler: bool = False
) -> dict[tuple[str, str], Cell]:
    """Groups runs by task and method: ``{(task, method): cell}``.

    If a method's runs on a task differ in more than the seed, as in a sweep, the cell has the setting with the most
    seeds. Ties are broken by the mean dev score.

    Args:
      records: The records of :func:`afjax.analysis.runs.collect`.
      metric: A metric to use instead of the main metric, for every task that has it.
      by_size: Whether each adapter size is a separate method; see :func:`size_name`.
      by_sampler: Whether each sampler of multi-task runs is a separate method, named ``METHOD:SAMPLER``.

    Raises:
      UserError: Runs on one task have different main metrics, or no run has ``metric``.
    """
    metrics = task_metrics(records, metric)
    groups: dict[tuple[str, str], dict[str, dict[int, RunRecord]]] = {}
    repeated: dict[tuple[str, str], list[str]] = {}
    for record in records:
        method = cell_method(record, by_size=by_size, by_sampler=by_sampler)
        settings = groups.setdefault((record.task, method), {})
        # Count a repeated run once.
        first = settings.setdefault(record.settings, {}).setdefault(record.seed, record)
        if first.metrics != record.metrics:
            repeated.setdefault((record.task, method), []).append(str(record.folder))
    return {
        key: _cell(*key, metrics[key[0]], settings, tuple(repeated.get(key, ()))) for key, settings in groups.items()
    }


def task_metrics(records: Iterable[RunRecord], metric: str = "") -> dict[str, str]:
    """Chooses the metric for comparing the runs on each task: ``{task: metric}``.

    Raises:
      UserError: Runs on one task have different main metrics, or no run has ``metric``.
    """
    records_by_metric: dict[str, dict[str, RunRecord]] = {}
    for record in records:
        name = metric if metric in record.metrics else record.main_metric
        records_by_metric.setdefault(record.task, {})[name] = record
    for task, metrics in records_by_metric.items():
        if len(metrics) > 1:
            details = ", ".join(f"{name} in {record.folder}" for name, record in metrics.items())
            raise UserError(
                f'Runs on "{task}" have different main metrics ({details}); set --metric to one that all of them have.'
            )
    if metric and all(metric not in metrics for metrics in records_by_metric.values()):
        available = sorted(
            {name for metrics in records_by_metric.values() for record in metrics.values() for name in record.metrics}
        )
        raise UserError(
            f'No run has the metric "{metric}"; available metrics are {", ".join(available)}.'
            f"{did_you_mean(metric, available)}"
        )
    return {task: next(iter(metrics)) for task, metrics in records_by_metric.items()}


def cell_method(run: RunRecord | UnfinishedTask, *, by_size: bool, by_sampler: bool) -> str:
    """Returns the name of a run's method in a table; see :func:`make_cells` for the arguments."""
    size = size_name(run.adapter) if by_size else ""
    return run.method + size + (f":{run.sampler}" if by_sampler and run.sampler else "")


def size_name(adapter: Adapter | None) -> str:
    """Returns the suffix for a method's adapter size, such as ``:64`` or ``:1/16``.

    A fraction is relative to the trunk's width. The size of LoRA is its rank. The suffix is empty for methods without
    adapters, and for adapters without a size.
    """
    if isinstance(adapter, AdapterConfig) and adapter.size is None:
        return f":1/{adapter.reduction_factor:g}"
    size = getattr(adapter, "size", getattr(adapter, "rank", None))
    return "" if size is None else f":{size}"


def order(methods: Iterable[str]) -> list[str]:
    """Returns the distinct methods in table order."""

    def sort_key(method: str) -> tuple[int, float, str]:
        name, _, size = method.partition(":")
        same_start = [index for index, start in enumerate(METHODS) if name == start or name.startswith(start)]
        exact = [index for index, start in enumerate(METHODS) if name == start]
        number = name.removeprefix("top-") if name.startswith("top-") else size.removeprefix("1/")
        rank = (exact or same_start or [len(METHODS)])[0]
        return rank, float(number) if re.fullmatch(r"\d+(\.\d+)?", number) else 0.0, method

    return sorted(set(methods), key=sort_key)


def chosen(given: str, flag: str, available: Sequence[str], *, also: Sequence[str] = ()) -> list[str]:
    """Parses a flag's comma-separated names.

    Args:
      given: The flag's value. Empty for all names in ``available``.
      flag: The flag's name, for error messages.
      available: The names that have finished runs.
      also: Names that are allowed without finished runs.

    Raises:
      UserError: A name is unknown or listed twice.
    """
    names = split_names(given) or list(available)
    for name in names:
        if name not in available and name not in also:
            raise UserError(
                f'{flag} names "{name}", which has no finished run; choose from '
                f"{', '.join(available)}.{did_you_mean(name, available)}"
            )
        if names.count(name) > 1:
            raise UserError(f'{flag} lists "{name}" twice; list each name once.')
    return names


def _cell(
    task: str, method: str, metric: str, settings: Mapping[str, Mapping[int, RunRecord]], repeated: tuple[str, ...]
) -> Cell:
    def score(records_by_seed: Mapping[int, RunRecord]) -> float:
        return statistics.fmean(record.metrics[metric] for record in records_by_seed.values())

    best = max(settings.values(), key=lambda records_by_seed: (len(records_by_seed), score(records_by_seed)))
    records = tuple(best[seed] for seed in sorted(best))
    scores = tuple(100 * record.metrics[metric] for record in records)
    candidates = tuple(record for records_by_seed in settings.values() for record in records_by_seed.values())
    return Cell(task, method, records, scores, len(settings), candidates, repeated)
