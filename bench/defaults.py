"""Compares learning rates and poolings on small tasks, to choose the defaults.

    python bench/defaults.py --data=DATA --results=bench/results/defaults.jsonl
    python bench/defaults.py --results=bench/results/defaults.jsonl --table

DATA contains one folder per task, each with train and dev files (docs/defaults.md lists the data sets). Each run trains
one method on one task and appends one line to the results file. To resume, repeat the command: runs that are already in
the file are skipped. The study has three parts, in this order:

1. ``rates``: four tasks with 300 train rows, all poolings, three learning rates and one seed.
2. ``pooling``: eight tasks with 300 train rows, all poolings (each at its best learning rate from part 1) and three
   seeds.
3. ``all_rows``: four tasks with all train rows and 300 steps, the better pooling from part 2, three learning rates and
   one seed.

Every part trains every method, except ``houlsby``, which is only in part 3.

On two cores, a run takes about two minutes in parts 1 and 2, and four minutes in part 3.
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from results_file import run_parts

from afjax import load_task, train_single
from afjax.config.adapters import ADAPTER_PRESETS
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.train.options import RunOptions
from afjax.trunk.pretrained import Trunk

# Maximum number of tokens per row, chosen so that few rows are truncated. Parts 1 and 3 use the first four tasks.
MAX_LENGTHS = {"sst5": 48, "subj": 64, "mrpc": 80, "cr": 48, "cb": 96, "sst2": 32, "sick": 48, "cola": 24}
TASKS = tuple(MAX_LENGTHS)
METRICS = {"cola": "matthews"}
RATES = {
    "head": (1e-3, 3e-3, 1e-2),
    "pfeiffer": (3e-4, 1e-3, 3e-3),
    "houlsby": (3e-4, 1e-3, 3e-3),
    "full": (3e-5, 1e-4, 3e-4),
}
POOLINGS = ("first", "mean")
SEEDS = (0, 1, 2)
ROWS, DEV = 300, 400
ALL_ROWS = 0  # The value of TaskConfig.train_rows that selects all rows.
ALL_ROWS_STEPS = 300


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """One training run. ``rows`` limits the train rows; 0 selects all."""

    task: str
    rows: int
    method: str
    pooling: str
    rate: float
    seed: int


def rate_runs() -> list[Run]:
    return [
        Run(task, ROWS, method, pooling, rate, 0)
        for pooling in POOLINGS
        for method in ("pfeiffer", "head", "full")
        for task in TASKS[:4]
        for rate in RATES[method]
    ]


def pooling_runs(results: dict[Run, dict[str, Any]]) -> list[Run]:
    return [
        Run(task, ROWS, method, pooling, best_rate(results, method, pooling), seed)
        for seed in SEEDS
        for task in TASKS
        for method in ("head", "pfeiffer", "full")
        for pooling in POOLINGS
    ]


def all_rows_runs(results: dict[Run, dict[str, Any]]) -> list[Run]:
    return [
        Run(task, ALL_ROWS, method, best_pooling(results, method), rate, 0)
        for task in TASKS[:4]
        for method, rates in RATES.items()
        for rate in rates
    ]


def best_rate(results: dict[Run, dict[str, Any]], method: str, pooling: str) -> float:
    """Selects the learning rate with the best mean score over the tasks of part 1."""

    def mean(rate: float) -> float:
        return statistics.mean(results[Run(task, ROWS, method, pooling, rate, 0)]["score"] for task in TASKS[:4])

    return max(RATES[method], key=mean)


def best_pooling(results: dict[Run, dict[str, Any]], method: str) -> str:
    """Selects the pooling with the best mean score over the runs of part 2.

    Part 2 has no Houlsby adapters, so they use the best pooling for Pfeiffer adapters.
    """
    method = "pfeiffer" if method == "houlsby" else method

    def mean(pooling: str) -> float:
        rate = best_rate(results, method, pooling)
        runs = [Run(task, ROWS, method, pooling, rate, seed) for task in TASKS for seed in SEEDS]
        return statistics.mean(results[run]["score"] for run in runs)

    return max(POOLINGS, key=mean)


def task_of(run: Run, data: str) -> TaskConfig:
    return TaskConfig(
        name=run.task, source=f"{data}/{run.task}", train_rows=run.rows, metric=METRICS.get(run.task, "accuracy")
    )


def measure(run: Run, trunk: Trunk, data: str) -> dict[str, Any]:
    """Trains one run and returns its results for the results file."""
    task = task_of(run, data)
    rows = load_task(task)
    rows = {"train": rows["train"], "dev": rows["dev"].every(DEV)}
    num_rows = len(rows["train"])
    config = TrainConfig(
        learning_rate=run.rate,
        max_length=MAX_LENGTHS[run.task],
        max_steps=ALL_ROWS_STEPS if run.rows == ALL_ROWS else 0,
    )
    num_steps = config.num_steps(-(-num_rows // config.batch_size))
    # Evaluate dev only once, after the last step, because the best of several dev scores would be biased.
    config = dataclasses.replace(config, eval_every=num_steps)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = train_single(
            trunk,
            task,
            rows,
            workdir=folder,
            config=config,
            method=Method(
                partition="adapter" if run.method in ADAPTER_PRESETS else run.method,
                adapter=ADAPTER_PRESETS.get(run.method, ADAPTER_PRESETS["pfeiffer"]),
                head=HeadConfig(pooling=run.pooling),
            ),
            options=RunOptions(seed=run.seed),
        )
    return {
        "score": round(model.metrics[task.main_metric], 4),
        "metric": task.main_metric,
        "train_rows": num_rows,
        "dev_rows": len(rows["dev"]),
        "steps": num_steps,
        "seconds": round(time.monotonic() - begin, 1),
    }


def tables(results: dict[Run, dict[str, Any]]) -> Iterator[str]:
    """Formats the results as Markdown tables, and omits incomplete rows."""
    for rows, tasks, title in ((ROWS, TASKS[:4], "300 train rows"), (ALL_ROWS, TASKS[:4], "all train rows")):
        yield f"\nLearning rates, {title}, seed 0\n\n| method | pooling | learning rate | {' | '.join(tasks)} | mean |"
        yield "|" + "---|" * (4 + len(tasks))
        for method, rates in RATES.items():
            for pooling in POOLINGS:
                for rate in rates:
                    runs = [Run(task, rows, method, pooling, rate, 0) for task in tasks]
                    if results.keys() >= set(runs):
                        yield _line([method, pooling, f"{rate:g}"], [results[run]["score"] for run in runs])
    if missing := [run for run in rate_runs() if run not in results]:
        yield f"\n{len(missing)} runs of part 1 are missing."
        return
    if missing := [run for run in pooling_runs(results) if run not in results]:
        yield f"\n{len(missing)} runs of part 2 are missing."
        return
    yield "\nPooling, 300 train rows, mean of seeds 0, 1 and 2\n"
    yield f"| method | pooling | learning rate | {' | '.join(TASKS)} | mean |"
    yield "|" + "---|" * (4 + len(TASKS))
    for method in ("head", "pfeiffer", "full"):
        for pooling in POOLINGS:
            rate = best_rate(results, method, pooling)
            means = [
                statistics.mean(results[Run(task, ROWS, method, pooling, rate, seed)]["score"] for seed in SEEDS)
                for task in TASKS
            ]
            yield _line([method, pooling, f"{rate:g}"], means)


def _line(names: Sequence[str], values: Sequence[float]) -> str:
    cells = [*names, *(f"{value:.3f}" for value in values), f"{statistics.mean(values):.3f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    run_parts(__doc__, Run, tables, (lambda _: rate_runs(), pooling_runs, all_rows_runs), measure, task_of)


if __name__ == "__main__":
    main()
