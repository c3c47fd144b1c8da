"""Trains the same adapters and fusions with afjax and with `adapters`, and compares their scores and times.

    python bench/adapterhub_scores.py --data=DATA --trunk=GTE_SMALL --folder=FOLDER
    python bench/adapterhub_scores.py --table

For each of three seeds, both libraries train a Pfeiffer adapter on each of three tasks, and then a fusion of the three
adapters for rte. Their settings are the same: at most 1,000 train rows, 150 steps of 32 rows, AdamW with linear decay,
and a head on the first token (dense layer, tanh, output layer). The parameters with the best of three dev scores are
kept.

DATA contains one folder per task, each with train and dev files. GTE_SMALL is a local copy of gte-small, as in
``fusion_study.py``. FOLDER stores the adapters. Each run is a separate process, which is timed from its start until its
adapter is stored. afjax and `adapters` run alternately, so that other programs slow both down equally. afjax chooses
its padded lengths and compiles each task's programs with the first seed only; `adapters` pads each batch to its longest
row, and runs in a separate virtual environment, as in ``vs_adapterhub.py``. Each run appends one line to the results
file (``bench/results/adapterhub_scores.jsonl``). To resume, repeat the command.
"""

import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results_file import INPUTS, add_missing, parse_study, read_results, sources_to_repeat, spread, study_parser
from vs_adapterhub import DEFAULT_VENV, processor_name, ready_environment
from whole_runs import WORKER, listed, overrides, result

from afjax import TaskConfig, load_task, load_trunk, save_trunk
from afjax.config.defaults import LEARNING_RATES
from afjax.config.values import Partition

RESULTS = Path(__file__).with_name("results") / "adapterhub_scores.jsonl"
# The tasks and their maximum lengths.
TASKS: Mapping[str, int] = {"mrpc": 80, "sick": 48, "rte": 96}
TARGET = "rte"
SEEDS = (0, 1, 2)
TRAIN_ROWS, BATCH_SIZE, STEPS, EVAL_EVERY, WEIGHT_DECAY = 1000, 32, 150, 50, 0.01


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """One training run, identified by its settings."""

    library: str
    method: Partition
    task: str
    seed: int


def all_runs() -> list[Run]:
    """Lists all runs in order. Runs to compare are adjacent."""
    methods: list[tuple[Partition, str]] = [("adapter", task) for task in TASKS]
    return [
        Run(library, method, task, seed)
        for seed in SEEDS
        for method, task in [*methods, ("fusion", TARGET)]
        for library in ("afjax", "adapters")
    ]


def train_settings(run: Run) -> dict[str, Any]:
    """Returns the settings of a run that both libraries share."""
    return {
        "learning_rate": LEARNING_RATES[run.method],
        "steps": STEPS,
        "eval_every": EVAL_EVERY,
        "batch_size": BATCH_SIZE,
        "max_length": TASKS[run.task],
        "weight_decay": WEIGHT_DECAY,
    }


class Study:
    """Runs the processes. Prepares the rows and the trunk in ``folder``."""

    def __init__(self, data: Path, trunk: Path, folder: Path) -> None:
        self.data, self.folder = data.absolute(), folder.absolute()
        self.python = ready_environment(DEFAULT_VENV)
        pretrained = load_trunk(str(trunk))
        self.trunk = pretrained.sha256[:12]
        save_trunk(self.folder / "trunk", pretrained)
        self.rows = {}
        for task in TASKS:
            config = TaskConfig(name=task, source=str(data / task), train_rows=TRAIN_ROWS)
            rows = load_task(config)
            self.rows[task] = f"{rows['train'].digest()} {rows['dev'].digest()}"
            (self.folder / f"{task}.json").write_text(json.dumps({name: listed(split) for name, split in rows.items()}))

    def inputs(self, run: Run) -> dict[str, Any]:
        """Describes a run's inputs: trunk, rows and settings, but not the code."""
        tasks = TASKS if run.method == "fusion" else (run.task,)
        return {"trunk": self.trunk, "rows": " ".join(self.rows[task] for task in tasks), **train_settings(run)}

    def sources(self, run: Run) -> list[Run]:
        """Lists the runs whose stored adapters this run uses."""
        return [Run(run.library, "adapter", task, run.seed) for task in TASKS] if run.method == "fusion" else []

    def is_stored(self, run: Run) -> bool:
        """Whether the adapter of this run is stored."""
        if run.library == "afjax":
            return (self._store(run) / "adapters" / run.task).exists()
        return (self._store(run) / run.task).exists()

    def _store(self, run: Run) -> Path:
        return self.folder / run.library / str(run.seed)

    def measure(self, run: Run) -> dict[str, Any]:
        begin = time.monotonic()
        accuracy = self._afjax(run) if run.library == "afjax" else self._adapters(run)
        return {
            "accuracy": round(accuracy, 4),
            "seconds": round(time.monotonic() - begin, 1),
            "processor": processor_name(),
            INPUTS: self.inputs(run),
        }

    def _afjax(self, run: Run) -> float:
        workdir = self.folder / "workdir"
        shutil.rmtree(workdir, ignore_errors=True)
        # A run that was stored, but stopped before its result was written, is repeated.
        for artifact in self._store(run).glob(f"*/{run.task}{'-fusion' if run.method == 'fusion' else ''}"):
            shutil.rmtree(artifact)
        settings = {
            "trunk": self.folder / "trunk",
            "seed": run.seed,
            "task.train_rows": TRAIN_ROWS,
            # The same head as in `adapters`.
            "head.pooling": "first",
            "head.pooler": "none",
            "head.hidden_layers": 1,
            "train.warmup": 0.0,
            **{
                f"train.{'max_steps' if name == 'steps' else name}": value
                for name, value in train_settings(run).items()
            },
        }
        config = f"single:task={run.task},data={self.data / run.task}"
        if run.method == "fusion":
            config = f"fusion:target={TARGET},data={self.data},sources={'+'.join(TASKS)}"
        command = [sys.executable, "-m", "afjax", "train", f"--config={config}", f"--workdir={workdir}"]
        self._run([*command, f"--store={self._store(run)}", *overrides(settings)])
        accuracy = result(workdir)
        shutil.rmtree(workdir)
        return accuracy

    def _adapters(self, run: Run) -> float:
        settings = {
            "task": run.task,
            "seed": run.seed,
            **train_settings(run),
            "sources": {source.task: str(self._store(source) / source.task) for source in self.sources(run)},
            "output": str(self._store(run) / (run.task if run.method == "adapter" else "fusion")),
        }
        self._store(run).mkdir(parents=True, exist_ok=True)
        output = self._run([str(self.python), str(WORKER), str(self.folder), json.dumps(settings)])
        return float(json.loads(output.splitlines()[-1])["accuracy"])

    def _run(self, command: list[str]) -> str:
        environment = {**os.environ, "AFJAX_CACHE": str(self.folder / "cache"), "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
        return done.stdout


def table(results: Mapping[Run, Mapping[str, Any]]) -> Iterator[str]:
    """Formats the results as a table, with the mean and standard deviation over the finished seeds."""
    yield "| method | task | afjax | `adapters` | minutes, afjax | minutes, `adapters` | seeds |"
    yield "|---|---|---|---|---|---|---|"
    for method, task in dict.fromkeys((run.method, run.task) for run in all_runs()):
        scores, minutes, counts = [], [], []
        for name in ("afjax", "adapters"):
            lines = [results[run] for run in results if (run.library, run.method, run.task) == (name, method, task)]
            counts.append(len(lines))
            scores.append(spread([line["accuracy"] for line in lines]))
            minutes.append(f"{statistics.mean(line['seconds'] for line in lines) / 60:.1f}" if lines else "")
        yield f"| {' | '.join([method, task, *scores, *minutes, '/'.join(map(str, counts))])} |"
    if missing := [run for run in all_runs() if run not in results]:
        yield f"\n{len(missing)} runs are missing."


def main() -> None:
    arguments = parse_study(study_parser(__doc__, RESULTS))
    if arguments.table:
        print("\n".join(table(read_results(arguments.results, Run))))
        return
    study, runs = Study(arguments.data, arguments.trunk, arguments.folder), all_runs()
    results = read_results(arguments.results, Run, study.inputs, runs)
    repeated = sources_to_repeat(runs, results, study.sources, study.is_stored)
    add_missing(arguments.results, runs, results, study.measure, repeated=repeated)


if __name__ == "__main__":
    main()
