"""Compares the dev scores and sizes of adapter architectures on small data sets.

    python bench/adapter_kinds.py --data=DATA --results=bench/results/adapter_kinds.jsonl
    python bench/adapter_kinds.py --results=bench/results/adapter_kinds.jsonl --table

DATA contains the folders mrpc, sick and cb, each with train and dev files. Each run trains one preset on one task and
appends one line to the results file. To resume, repeat the command: runs that are already in the file are skipped. The
study has two parts, in this order:

1. ``rates``: each preset and task with three learning rates, seed 0.
2. ``seeds``: each preset and task with seeds 1 and 2, at the preset's best learning rate from part 1.

Heads use mean pooling, afjax's default for minilm. Dev is evaluated only once, after the last step. The recorded runs
took 108 to 1,900 s on two cores (median 214 s).
"""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from results_file import run_parts, spread

from afjax import load_task, train_single
from afjax.config.adapters import ADAPTER_PRESETS
from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.train.options import RunOptions
from afjax.trees import count
from afjax.trunk.pretrained import Trunk

RATES = {
    "pfeiffer": (3e-4, 1e-3, 3e-3),
    "houlsby": (3e-4, 1e-3, 3e-3),
    "lora": (1e-3, 3e-3, 1e-2),
    "lora_all": (3e-4, 1e-3, 3e-3),
    "ia3": (3e-3, 1e-2, 3e-2),
}
# The maximum number of tokens per row (longer rows are truncated) and the number of steps, for each task.
TASKS = {"mrpc": (80, 300), "sick": (48, 300), "cb": (96, 160)}
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """One training run, identified by its settings."""

    task: str
    preset: str
    rate: float
    seed: int


def rate_runs() -> list[Run]:
    return [Run(task, preset, rate, 0) for task in TASKS for preset, rates in RATES.items() for rate in rates]


def seed_runs(results: dict[Run, dict[str, Any]]) -> list[Run]:
    return [
        Run(task, preset, best_rate(results, preset), seed) for seed in SEEDS[1:] for task in TASKS for preset in RATES
    ]


def best_rate(results: dict[Run, dict[str, Any]], preset: str) -> float:
    """Selects the learning rate with the best mean score over the tasks, with seed 0."""

    def mean(rate: float) -> float:
        return statistics.mean(results[Run(task, preset, rate, 0)]["score"] for task in TASKS)

    return max(RATES[preset], key=mean)


def task_of(run: Run, data: str) -> TaskConfig:
    return TaskConfig(name=run.task, source=f"{data}/{run.task}")


def measure(run: Run, trunk: Trunk, data: str) -> dict[str, Any]:
    """Trains one run and returns its results for the results file."""
    task = task_of(run, data)
    max_length, num_steps = TASKS[run.task]
    config = TrainConfig(learning_rate=run.rate, max_length=max_length, max_steps=num_steps, eval_every=num_steps)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        model = train_single(
            trunk,
            task,
            load_task(task),
            workdir=folder,
            config=config,
            method=Method(adapter=ADAPTER_PRESETS[run.preset]),
            options=RunOptions(seed=run.seed),
        )
    return {
        "score": round(model.metrics[task.main_metric], 4),
        "metric": task.main_metric,
        "parameters": count(model.params["adapters"]),
        "steps": num_steps,
        "seconds": round(time.monotonic() - begin, 1),
    }


def tables(results: dict[Run, dict[str, Any]]) -> Iterator[str]:
    """Formats the results as Markdown tables, and omits incomplete rows."""
    parameters = {run.preset: line["parameters"] for run, line in results.items()}
    yield f"Learning rates, seed 0\n\n| preset | learning rate | {' | '.join(TASKS)} | mean |"
    yield "|" + "---|" * (3 + len(TASKS))
    for preset, rates in RATES.items():
        for rate in rates:
            runs = [Run(task, preset, rate, 0) for task in TASKS]
            if results.keys() >= set(runs):
                values = [results[run]["score"] for run in runs]
                texts = [preset, f"{rate:g}", *(f"{value:.3f}" for value in values), f"{statistics.mean(values):.3f}"]
                yield f"| {' | '.join(texts)} |"
    missing = [run for run in rate_runs() if run not in results]
    missing = missing or [run for run in seed_runs(results) if run not in results]
    if missing:
        yield f"\n{len(missing)} runs are missing."
        return
    yield "\nMean and standard deviation of seeds 0, 1 and 2\n"
    yield f"| preset | parameters | learning rate | {' | '.join(TASKS)} | mean |"
    yield "|" + "---|" * (4 + len(TASKS))
    for preset in RATES:
        rate, means, texts = best_rate(results, preset), list[float](), list[str]()
        for task in TASKS:
            values = [results[Run(task, preset, rate, seed)]["score"] for seed in SEEDS]
            means.append(statistics.mean(values))
            texts.append(spread(values, percent=False))
        yield f"| {preset} | {parameters[preset]:,} | {rate:g} | {' | '.join(texts)} | {statistics.mean(means):.3f} |"


def main() -> None:
    run_parts(__doc__, Run, tables, (lambda _: rate_runs(), seed_runs), measure, task_of)


if __name__ == "__main__":
    main()
