"""Runs of one method on one task put together: the setting that dev chose, over its seeds."""

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence

from afjax.analysis.run_records import RunRecord
from afjax.config.adapters import AdapterConfig
from afjax.errors import UserError, did_you_mean

# In this order they stand in tables; "top-K" by K, and others behind them by name.
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
    """One method on one task.

    Attributes:
      task, method: What was run.
      records: Of the chosen setting, a seed each, in their order.
      scores: Theirs, in points (times 100).
      num_settings: Among how many settings dev has chosen.
      num_runs: Of all of these settings.
      repeated: Folders of runs that repeat one of the records with another score, and do not count.
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
        """The sample standard deviation; None: there is one seed."""
        return statistics.stdev(self.scores) if len(self.scores) > 1 else None

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(record.seed for record in self.records)


def make_cells(
    records: Sequence[RunRecord], *, metric: str = "", by_size: bool = False, by_sampler: bool = False
) -> dict[tuple[str, str], Cell]:
    """``{(task, method): cell}``.

    Where runs of a method on a task differ in more than the seed, as a sweep's do, the setting with the most seeds
    counts, and among these the one with the best mean on dev.

    Args:
      records: Of :func:`afjax.analysis.runs.collect`.
      metric: Of all tasks that have it, in place of each task's main metric.
      by_size: Whether adapters of every size are a method of their own; see :func:`size_name`.
      by_sampler: Whether every sampler of runs on several tasks is; its name stands behind a colon.

    Raises:
      UserError: Runs on a task were made to follow different metrics, or none has the metric.
    """
    metrics = task_metrics(records, metric)
    groups: dict[tuple[str, str], dict[str, dict[int, RunRecord]]] = {}
    repeated: dict[tuple[str, str], list[str]] = {}
    for record in records:
        method = record.method + (size_name(record) if by_size else "")
        method += f":{record.sampler}" if by_sampler and record.sampler else ""
        settings = groups.setdefault((record.task, method), {})
        # A run that was made twice counts once.
        first = settings.setdefault(record.settings, {}).setdefault(record.seed, record)
        if first.metrics != record.metrics:
            repeated.setdefault((record.task, method), []).append(str(record.folder))
    return {
        key: _cell(*key, metrics[key[0]], settings, tuple(repeated.get(key, ()))) for key, settings in groups.items()
    }


def task_metrics(records: Iterable[RunRecord], metric: str = "") -> dict[str, str]:
    """``{task: metric}`` by which runs are compared."""
    found: dict[str, dict[str, RunRecord]] = {}
    for record in records:
        name = metric if metric in record.metrics else record.main_metric
        found.setdefault(record.task, {})[name] = record
    for task, metrics in found.items():
        if len(metrics) > 1:
            told = ", ".join(f"{name} in {record.folder}" for name, record in metrics.items())
            raise UserError(f'Runs on "{task}" follow different metrics ({told}); give --metric one that all have.')
    if metric and all(metric not in metrics for metrics in found.values()):
        there = sorted({name for metrics in found.values() for of in metrics.values() for name in of.metrics})
        raise UserError(f'No run has the metric "{metric}"; there are {", ".join(there)}.{did_you_mean(metric, there)}')
    return {task: next(iter(metrics)) for task, metrics in found.items()}


def size_name(record: RunRecord) -> str:
    """``:64`` behind adapters of that size, ``:1/16`` behind those of that share of the trunk's width."""
    adapter = record.adapter
    if isinstance(adapter, AdapterConfig) and adapter.size is None:
        return f":1/{adapter.reduction_factor:g}"
    size = getattr(adapter, "size", None)
    return "" if size is None else f":{size}"


def order(methods: Iterable[str]) -> list[str]:
    """The methods as tables have them."""

    def place(method: str) -> tuple[int, float, str]:
        name, _, size = method.partition(":")
        known = [index for index, start in enumerate(METHODS) if name == start or name.startswith(start)]
        exact = [index for index, start in enumerate(METHODS) if name == start]
        number = name.removeprefix("top-") if name.startswith("top-") else size.removeprefix("1/")
        rank = (exact or known or [len(METHODS)])[0]
        return rank, float(number) if number.isdecimal() else 0.0, method

    return sorted(set(methods), key=place)


def chosen(given: str, flag: str, there: Sequence[str], *, also: Sequence[str] = ()) -> list[str]:
    """The names that a flag lists with commas between, of those that are there; empty: all.

    Raises:
      UserError: A name that is not there (nor among ``also``), or is there twice.
    """
    names = [name.strip() for name in given.split(",")] if given else list(there)
    for name in names:
        if name not in there and name not in also:
            raise UserError(
                f'{flag} names "{name}", of which there is no finished run; there are {", ".join(there)}.'
                f"{did_you_mean(name, there)}"
            )
        if names.count(name) > 1:
            raise UserError(f'{flag} names "{name}" twice; give each name once.')
    return names


def _cell(
    task: str, method: str, metric: str, settings: Mapping[str, Mapping[int, RunRecord]], repeated: tuple[str, ...]
) -> Cell:
    def score(by_seed: Mapping[int, RunRecord]) -> float:
        return statistics.fmean(record.metrics[metric] for record in by_seed.values())

    best = max(settings.values(), key=lambda by_seed: (len(by_seed), score(by_seed)))
    records = tuple(best[seed] for seed in sorted(best))
    scores = tuple(100 * record.metrics[metric] for record in records)
    return Cell(task, method, records, scores, len(settings), sum(map(len, settings.values())), repeated)
