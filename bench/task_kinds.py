"""Trains on WNUT-17 (tagging) and GoEmotions (multi-label).

    python bench/task_kinds.py --data_dir=DATA --results=bench/results/task_kinds.jsonl
    python bench/task_kinds.py --results=bench/results/task_kinds.jsonl --table

DATA is the folder of benchmark downloads. Each run trains one method on one task and appends one line to the results
file. To resume, repeat the command: runs that are already in the file are skipped. Each method uses its default
learning rate, with linear decay to zero and no warm-up. The final model is evaluated on dev and test. The threshold for
GoEmotions is 0.5.

For comparison, the library `adapters` trains Pfeiffer adapters on WNUT-17, with the same rows, words, settings and
number of steps as afjax. These runs use a separate virtual environment, as in ``vs_adapterhub.py``.
"""

import dataclasses
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results_file import run_parts, spread
from vs_adapterhub import DEFAULT_VENV, ready_environment

from afjax import load_task, save_trunk, train_single
from afjax.config.defaults import LEARNING_RATES
from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import TagRows
from afjax.tasks.by_name import find_task
from afjax.train.options import RunOptions
from afjax.trunk.pretrained import Trunk

WORKER = Path(__file__).with_name("task_kinds_worker.py")
BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True)
class Study:
    """The settings of all runs on one task.

    ``max_length`` is chosen so that few rows are truncated.
    """

    task: str
    max_length: int
    epochs: int
    libraries: tuple[str, ...]


STUDIES = {
    study.task: study
    for study in (
        Study(task="wnut17", max_length=96, epochs=6, libraries=("afjax", "adapters")),
        Study(task="goemotions", max_length=48, epochs=1, libraries=("afjax",)),
    )
}
METHODS = ("adapter", "full", "head")
SEEDS = (0, 1, 2)


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """One training run, identified by its settings."""

    task: str
    library: str
    method: str
    seed: int


def all_runs() -> list[Run]:
    return [
        Run(study.task, library, method, seed)
        for study in STUDIES.values()
        for seed in SEEDS
        for library in study.libraries
        for method in (METHODS if library == "afjax" else ("adapter",))
    ]


def train_config(run: Run) -> TrainConfig:
    study = STUDIES[run.task]
    return TrainConfig(max_length=study.max_length, epochs=float(study.epochs), batch_size=BATCH_SIZE)


def task_of(run: Run, data_dir: str) -> TaskConfig:
    return find_task(run.task, data_dir)


def measure(run: Run, trunk: Trunk, data_dir: str) -> dict[str, Any]:
    """Trains one run and returns its results for the results file."""
    begin = time.monotonic()
    scores = (measure_afjax if run.library == "afjax" else measure_adapterhub)(run, trunk, data_dir)
    return {"trunk": trunk.name, **rounded(scores), "seconds": round(time.monotonic() - begin, 1)}


def measure_afjax(run: Run, trunk: Trunk, data_dir: str) -> dict[str, Any]:
    """Trains one run and returns its scores on dev and test."""
    task = task_of(run, data_dir)
    rows = load_task(task)
    # Evaluate dev only once, after the last step, because the best of several dev scores would be biased.
    config = train_config(run)
    num_steps = config.num_steps(-(-len(rows["train"]) // BATCH_SIZE))
    config = dataclasses.replace(config, eval_every=num_steps)
    with tempfile.TemporaryDirectory() as folder:
        model = train_single(
            trunk,
            task,
            {"train": rows["train"], "dev": rows["dev"]},
            workdir=folder,
            config=config,
            method=Method(partition=run.method),
            options=RunOptions(seed=run.seed),
        )
        return {"steps": num_steps, "dev": model.metrics, "test": model.evaluate(rows["test"])}


def measure_adapterhub(run: Run, trunk: Trunk, data_dir: str) -> dict[str, Any]:
    """Trains one run with `adapters`, in a separate virtual environment."""
    python = ready_environment(DEFAULT_VENV, extra=("seqeval==1.2.2",))
    rows = load_task(task_of(run, data_dir))
    config = train_config(run)
    with tempfile.TemporaryDirectory() as folder:
        save_trunk(Path(folder) / "trunk", trunk)
        splits = {name: words_and_tags(split) for name, split in rows.items()}
        (Path(folder) / "rows.json").write_text(json.dumps(splits))
        settings = {
            "learning_rate": LEARNING_RATES[run.method],
            "epochs": config.epochs,
            "batch_size": BATCH_SIZE,
            "max_length": config.max_length,
            "weight_decay": config.weight_decay,
            "seed": run.seed,
        }
        command = [str(python), str(WORKER), folder, json.dumps(settings)]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def words_and_tags(rows: TagRows) -> dict[str, list[list[str]]]:
    assert rows.labels is not None
    return {"words": [rows.words_of(row) for row in range(len(rows))], "tags": [list(tags) for tags in rows.labels]}


def tables(by_run: dict[Run, dict[str, Any]]) -> Iterator[str]:
    """Formats the results as one table per task, and omits incomplete methods."""
    for task in STUDIES:
        runs = [run for run in all_runs() if run.task == task and run in by_run]
        if not runs:
            continue
        metrics = [metric for metric in by_run[runs[0]]["dev"] if metric != "step"]
        yield f"\n{task}: mean and standard deviation of {len(SEEDS)} seeds\n"
        yield f"| library | method | split | {' | '.join(metrics)} | minutes |"
        yield "|" + "---|" * (4 + len(metrics))
        for library, method in dict.fromkeys((run.library, run.method) for run in runs):
            found = [by_run[run] for run in runs if (run.library, run.method) == (library, method)]
            if len(found) < len(SEEDS):
                continue
            minutes = f"{statistics.mean(line['seconds'] for line in found) / 60:.1f}"
            for split in ("dev", "test"):
                scores = [[line[split][metric] for line in found if metric in line[split]] for metric in metrics]
                cells = [spread(values, percent=False) for values in scores]
                yield f"| {' | '.join([library, method, split, *cells, minutes])} |"
    if missing := [run for run in all_runs() if run not in by_run]:
        yield f"\n{len(missing)} runs are missing."


def main() -> None:
    data = ("--data_dir", "folder of benchmark downloads")
    run_parts(__doc__, Run, tables, [lambda _: all_runs()], measure, task_of, data=data)


def rounded(scores: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {metric: round(score, 4) for metric, score in value.items()} if isinstance(value, dict) else value
        for name, value in scores.items()
    }


if __name__ == "__main__":
    main()
