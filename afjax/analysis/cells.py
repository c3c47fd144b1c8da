"""Makes the cells of tables. A cell has the runs of one method on one task with one setting, over its seeds."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from afjax.analysis.run_records import RunRecord
from afjax.config.adapters import AdapterConfig
from afjax.errors import UserError, did_you_mean

# The order of methods in tables. A method that is not listed has the place of the first name that it begins with, such
# as "top-" for "top-3". Methods in the same place are sorted by K or by the adapters' size. Other methods come last.
METHODS: tuple[str, ...] = (
    "head",
    "full",
    "layernorm",
    "top-",
    "pfeiffer",
    "bottleneck",
    "houlsby",
    "mt-full",
    "mt-pfeiffer",
    "mt-",
)
METHODS += ("fusion", "fusion-mt")


@dataclasses.dataclass(frozen=True)
class Cell:
    """The runs of one method on one task.

    Attributes:
      task, method: The names of the task and the method.
      records: The runs of the chosen setting, one per seed, in the order of their seeds.
      scores: The runs' scores in points (times 100).
      num_settings: The number of settings that were tried. :func:`make_cells` says which one was chosen.
      num_runs: The number of runs of all these settings.
      repeated: Folders of runs that repeat another run but have a different score. They do not count.
    """

    task: str
    method: str
    records: tuple[RunRecord, ...]
    scores: tuple[float, ...]
    num_settings: int
    num_runs: int
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


def make_cells(
    records: Sequence[RunRecord], *, metric: str = "", by_size: bool = False, by_sampler: bool = False
) -> dict[tuple[str, str], Cell]:
    """Groups runs by task and method: ``{(task, method): cell}``.

    If the runs of a method on a task differ in more than the seed, as in a sweep, the setting with the most seeds
    counts. Ties are broken by the best mean on dev.

    Args:
      records: The records of :func:`afjax.analysis.runs.collect`.
      metric: The metric to use instead of a task's main metric, for tasks that have it.
      by_size: Whether each adapter size is a separate method; see :func:`size_name`.
      by_sampler: Whether each sampler of multi-task runs is a separate method, named ``METHOD:SAMPLER``.

    Raises:
      UserError: Runs on one task have different main metrics, or no run has ``metric``.
    """
    metrics = task_metrics(records, metric)
    groups: dict[tuple[str, str], dict[str, dict[int, RunRecord]]] = {}
    repeated: dict[tuple[str, str], list[str]] = {}
    for record in records:
        method = record.method + (size_name(record) if by_size else "")
        method += f":{record.sampler}" if by_sampler and record.sampler else ""
        settings = groups.setdefault((record.task, method), {})
        # A repeated run counts once.
        first = settings.setdefault(record.settings, {}).setdefault(record.seed, record)
        if first.metrics != record.metrics:
            repeated.setdefault((record.task, method), []).append(str(record.folder))
    return {
        key: _cell(*key, metrics[key[0]], settings, tuple(repeated.get(key, ()))) for key, settings in groups.items()
    }


def task_metrics(records: Iterable[RunRecord], metric: str = "") -> dict[str, str]:
    """Returns the metric for comparing the runs of each task: ``{task: metric}``.

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
                f'Runs on "{task}" have different main metrics ({details}); give --metric a metric that all of them '
                "have."
            )
    if metric and all(metric not in metrics for metrics in records_by_metric.values()):
        available = sorted(
            {name for metrics in records_by_metric.values() for record in metrics.values() for name in record.metrics}
        )
        raise UserError(
            f'No run has the metric "{metric}"; there are {", ".join(available)}.{did_you_mean(metric, available)}'
        )
    return {task: next(iter(metrics)) for task, metrics in records_by_metric.items()}


def size_name(record: RunRecord) -> str:
    """Returns a method's suffix for the adapters' size: ``:64``, or ``:1/16`` for a fraction of the trunk's width.

    The suffix is empty for methods without adapters, and for adapters without a size.
    """
    adapter = record.adapter
    if isinstance(adapter, AdapterConfig) and adapter.size is None:
        return f":1/{adapter.reduction_factor:g}"
    size = getattr(adapter, "size", None)
    return "" if size is None else f":{size}"


def order(methods: Iterable[str]) -> list[str]:
    """Returns the methods, without duplicates, in the order of tables."""

    def place(method: str) -> tuple[int, float, str]:
        name, _, size = method.partition(":")
        same_start = [index for index, start in enumerate(METHODS) if name == start or name.startswith(start)]
        exact = [index for index, start in enumerate(METHODS) if name == start]
        number = name.removeprefix("top-") if name.startswith("top-") else size.removeprefix("1/")
        rank = (exact or same_start or [len(METHODS)])[0]
        return rank, float(number) if number.isdecimal() else 0.0, method

    return sorted(set(methods), key=place)


def chosen(given: str, flag: str, there: Sequence[str], *, also: Sequence[str] = ()) -> list[str]:
    """Parses a flag's comma-separated names.

    Args:
      given: The value of the flag. Empty for all names in ``there``.
      flag: The name of the flag, for error messages.
      there: The names that have finished runs.
      also: Names that are allowed too.

    Raises:
      UserError: A name is unknown or given twice.
    """
    names = [name.strip() for name in given.split(",")] if given else list(there)
    for name in names:
        if name not in there and name not in also:
            raise UserError(
                f'{flag} names "{name}", which has no finished run; there are '
                f"{', '.join(there)}.{did_you_mean(name, there)}"
            )
        if names.count(name) > 1:
            raise UserError(f'{flag} names "{name}" twice; give each name once.')
    return names


def _cell(
    task: str, method: str, metric: str, settings: Mapping[str, Mapping[int, RunRecord]], repeated: tuple[str, ...]
) -> Cell:
    def score(records_by_seed: Mapping[int, RunRecord]) -> float:
        return statistics.fmean(record.metrics[metric] for record in records_by_seed.values())

    best = max(settings.values(), key=lambda records_by_seed: (len(records_by_seed), score(records_by_seed)))
    records = tuple(best[seed] for seed in sorted(best))
    scores = tuple(100 * record.metrics[metric] for record in records)
    return Cell(task, method, records, scores, len(settings), sum(map(len, settings.values())), repeated)
