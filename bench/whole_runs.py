"""Times entire runs and studies with afjax and with `adapters`.

    python bench/whole_runs.py --data=DATA --results=bench/results/whole_runs.jsonl
    python bench/whole_runs.py --results=bench/results/whole_runs.jsonl --table
    python bench/whole_runs.py --parts=accelerator --platform=cuda,cpu --data=DATA --results=accelerator.jsonl

DATA contains the folders cb, rte, mrpc and sick, each with train and dev files. A run is timed from the start of its
process until its adapter is stored. The benchmark has three parts:

1. ``short``: times one run on CB (4 epochs) and one on MRPC (1 epoch) with afjax and a cold compilation cache, with
   afjax and a warm cache, and with `adapters`. afjax's warm cache contains compiled programs and tokenized rows,
   whereas `adapters` tokenizes its rows in each run.
2. ``study``: times 24 runs of 20 steps with 16 rows (4 tasks, 2 learning rates, 3 seeds) as one ``afjax sweep``, as one
   ``afjax train`` per run, and as one `adapters` process per run. afjax's compilation cache is warm. The sweep runs
   before and after the other two, which alternate run by run. At the end, sweeps with two processes and with one
   process follow.
3. ``accelerator``: 24 runs of 200 steps on a GPU or TPU: as one sweep that trains one run at a time, as one that trains
   24 at a time (``--slots=24``), and as one with eight processes. The first two are timed with a cold and a warm cache.
   One run per task is timed as a separate ``afjax train`` with a warm cache, and one with a cold cache.

The trunk is minilm in float32, and batches in the first part have 32 rows. `adapters` runs in a separate virtual
environment, as in ``vs_adapterhub.py``. It trains with a plain loop on two threads, and pads each batch to its longest
row, rounded up to a multiple of 8 tokens. Close other programs first. Each measurement appends a line to the results
file. To resume, repeat the command.
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from results_file import add_missing, read_results
from vs_adapterhub import DEFAULT_VENV, processor_name, ready_environment

from afjax import load_task, load_trunk, save_trunk
from afjax.config.tasks import TaskConfig
from afjax.display.words import counted

WORKER = Path(__file__).with_name("whole_runs_worker.py")
TASKS = ("cb", "rte", "mrpc", "sick")
LEARNING_RATES, SEEDS = (1e-3, 3e-3), (0, 1, 2)
WEIGHT_DECAY = 0.01
BATCH_SIZES = {"short": 32, "study": 16, "accelerator": 16}
# Ways to run the study as one sweep, with the flags of each.
SWEEPS: Mapping[str, Sequence[str]] = {
    "sweep": (),
    "processes": ("--processes=2",),
    "slots": ("--slots=24",),
    "eight_processes": ("--processes=8",),
}
# Before a measurement with one of these ways, the compilation cache is removed.
COLD = "cold"
STUDY_STEPS, STUDY_LENGTH = {"study": 20, "accelerator": 200}, 64
SHORT_LENGTH, SHORT_EPOCHS = 128, {"cb": 4, "mrpc": 1}


@dataclasses.dataclass(frozen=True, order=True)
class Measurement:
    """One measurement.

    Attributes:
      part: ``short``, ``study`` or ``accelerator``.
      way: ``cold``, ``warm``, ``adapters``, ``separate``, or a sweep in :data:`SWEEPS`. In the part ``accelerator``,
        ways that end with ``_cold`` start with an empty compilation cache.
      task: The task, or empty for a sweep over all tasks.
      learning_rate, seed: The run's learning rate and seed, or 0 for a sweep.
      repeat: The index of the repetition.
    """

    part: str
    way: str
    task: str = ""
    learning_rate: float = 0.0
    seed: int = 0
    repeat: int = 0


def measurements() -> list[Measurement]:
    """Lists all measurements in order. Measurements to compare are adjacent."""
    listed = [
        Measurement("short", way, task, 1e-3, repeat=repeat)
        for task in SHORT_EPOCHS
        for repeat in range(2)
        for way in ("cold", "warm", "adapters")
    ]
    listed.append(Measurement("study", "sweep"))
    for task in TASKS:
        for rate in LEARNING_RATES:
            for seed in SEEDS:
                listed += [Measurement("study", way, task, rate, seed) for way in ("separate", "adapters")]
    listed += [Measurement("study", "sweep", repeat=1), Measurement("study", "processes")]
    listed += [Measurement("study", "sweep", repeat=2), Measurement("study", "processes", repeat=1)]
    separate = [Measurement("accelerator", "separate", task, LEARNING_RATES[0]) for task in TASKS]
    # A measurement with a cold cache leaves the programs for the next ones.
    listed += [Measurement("accelerator", way) for way in ("slots_cold", "slots")]
    listed += [Measurement("accelerator", "slots", repeat=1), Measurement("accelerator", "sweep_cold")]
    listed += [Measurement("accelerator", "sweep"), *separate, Measurement("accelerator", "eight_processes")]
    return [*listed, Measurement("accelerator", "separate_cold", TASKS[0], LEARNING_RATES[0])]


class Machine:
    """Runs the measurements in a temporary folder with its own compilation cache.

    Args:
      data: The folder with the tasks.
      folder: The temporary folder.
      platform: The platforms of ``JAX_PLATFORMS``.
      trunk: ``minilm``, or a folder with its weights.
    """

    def __init__(self, data: Path, folder: Path, platform: str, trunk: str) -> None:
        self.data, self.folder, self.platform, self.trunk = data, folder, platform, trunk
        # Groups of measurements whose programs and rows are in the cache.
        self.cached: set[str] = set()
        save_trunk(folder / "trunk", load_trunk(trunk))
        for task in TASKS:
            rows = load_task(TaskConfig(name=task, source=str(data / task)))
            (folder / f"{task}.json").write_text(json.dumps({name: listed(split) for name, split in rows.items()}))

    def measure(self, wanted: Measurement) -> dict[str, Any]:
        output = self.folder / "output"
        shutil.rmtree(output, ignore_errors=True)
        if wanted.way.endswith(COLD):
            shutil.rmtree(self.folder / "cache", ignore_errors=True)
            self.cached.clear()
        elif wanted.way != "adapters" and cache_group(wanted) not in self.cached:
            # This untimed run fills the caches of compiled programs and tokenized rows. It is also needed when a study
            # is resumed after a measurement with a cold cache.
            if wanted.part in STUDY_STEPS:
                self._sweep(wanted, output, seeds=(0,), rates=LEARNING_RATES[:1], flags=flags_of(wanted) or ())
            else:
                self._afjax(wanted, output)
            shutil.rmtree(output)
        begin = time.monotonic()
        if wanted.way == "adapters":
            scores, memory = self._adapters(wanted, output)
        elif flags_of(wanted) is not None:
            scores, memory = self._sweep(
                wanted, output, seeds=SEEDS, rates=LEARNING_RATES, flags=flags_of(wanted) or ()
            )
        else:
            scores, memory = self._afjax(wanted, output)
        seconds = round(time.monotonic() - begin, 1)
        if wanted.way != "adapters":
            self.cached.add(cache_group(wanted))
        return {"seconds": seconds, "memory_gb": memory, "accuracy": scores, "processor": processor_name()}

    def _afjax(self, wanted: Measurement, output: Path) -> tuple[Any, float]:
        settings = {
            "task.source": self.data / wanted.task,
            "train.learning_rate": wanted.learning_rate,
            "seed": wanted.seed,
            **train_settings(wanted),
        }
        memory = self._run([*afjax("train", self.trunk, output), *overrides(settings)])
        return round(result(output), 4), memory

    def _sweep(
        self, wanted: Measurement, output: Path, seeds: Sequence[int], rates: Sequence[float], flags: Sequence[str] = ()
    ) -> tuple[Any, float]:
        settings = train_settings(wanted)
        grid = {
            "task.source": ",".join(str(self.data / task) for task in TASKS),
            "train.learning_rate": ",".join(map(str, rates)),
        }
        command = [*afjax("sweep", self.trunk, output), *overrides(settings)]
        command += [f"--grid.{name}={values}" for name, values in grid.items()]
        memory = self._run([*command, f"--seeds={','.join(map(str, seeds))}", *flags])
        return [round(result(folder), 4) for folder in sorted((output / "runs").iterdir())], memory

    def _adapters(self, wanted: Measurement, output: Path) -> tuple[Any, float]:
        steps = (
            {"steps": STUDY_STEPS["study"], "max_length": STUDY_LENGTH}
            if wanted.part == "study"
            else {"epochs": SHORT_EPOCHS[wanted.task], "max_length": SHORT_LENGTH}
        )
        settings = {
            "task": wanted.task,
            "learning_rate": wanted.learning_rate,
            "seed": wanted.seed,
            "batch_size": BATCH_SIZES[wanted.part],
            "weight_decay": WEIGHT_DECAY,
            "output": str(output),
            **steps,
        }
        answer = self.folder / "answer"
        python = ready_environment(DEFAULT_VENV)
        memory = self._run([str(python), str(WORKER), str(self.folder), json.dumps(settings)], answer)
        return round(json.loads(answer.read_text().splitlines()[-1])["accuracy"], 4), memory

    def _run(self, command: list[str], answer: Path = Path(os.devnull)) -> float:
        """Runs a command, and returns the peak memory of its largest process, in GB."""
        environment = {**os.environ, "AFJAX_CACHE": str(self.folder / "cache"), "JAX_PLATFORMS": self.platform}
        with answer.open("w") as file, (self.folder / "log").open("w") as log:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=log)
            _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(command)} failed:\n{(self.folder / 'log').read_text()}")
        # macOS reports bytes, other systems report kilobytes.
        return round(usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e9, 2)


def flags_of(wanted: Measurement) -> Sequence[str] | None:
    """Returns the flags of a sweep, or None for other measurements."""
    return SWEEPS.get(wanted.way.removesuffix(f"_{COLD}"))


def cache_group(wanted: Measurement) -> str:
    """Names the measurements that use the same compiled programs and tokenized rows."""
    if wanted.part == "short":
        return f"short {wanted.task}"
    # A step of several runs is a different program.
    return f"{wanted.part} {'slots' if wanted.way.startswith('slots') else 'sweep'}"


def listed(rows: Any) -> dict[str, Any]:
    """Converts a split's texts and labels to lists."""
    texts = [rows.text_a] if rows.text_b is None else [rows.text_a, rows.text_b]
    return {"texts": [list(column) for column in texts], "labels": [int(label) for label in rows.labels]}


def train_settings(wanted: Measurement) -> dict[str, Any]:
    length: dict[str, float]
    if wanted.part in STUDY_STEPS:
        steps = STUDY_STEPS[wanted.part]
        length = {"train.max_steps": steps, "train.eval_every": steps, "train.max_length": STUDY_LENGTH}
    else:
        length = {"train.epochs": float(SHORT_EPOCHS[wanted.task]), "train.max_length": SHORT_LENGTH}
    return {"train.batch_size": BATCH_SIZES[wanted.part], "train.weight_decay": WEIGHT_DECAY, **length}


def afjax(command: str, trunk: str, output: Path) -> list[str]:
    # Use the same task name in all runs. Only the location of the rows differs.
    flags = ("--config=single:task=small", f"--config.trunk={trunk}", f"--workdir={output}")
    return [sys.executable, "-m", "afjax", command, *flags]


def overrides(settings: dict[str, Any]) -> list[str]:
    return [f"--config.{name}={value}" for name, value in settings.items()]


def result(workdir: Path) -> float:
    [only] = json.loads((workdir / "target" / "result.json").read_text())
    return float(only["metrics"]["accuracy"])


def table(results: dict[Measurement, dict[str, Any]]) -> Iterator[str]:
    """Formats the results of each part as a Markdown table.

    The time of separate runs is the mean of the measured ones, times the number of runs.
    """

    def seconds(**wanted: Any) -> list[float]:
        return [
            line["seconds"]
            for run, line in results.items()
            if all(getattr(run, name) == value for name, value in wanted.items())
        ]

    parts = {run.part for run in results}
    if "short" in parts:
        yield "| run | cold cache | warm cache | `adapters` | cold | warm |"
        yield "|---|---|---|---|---|---|"
    for task, epochs in SHORT_EPOCHS.items() if "short" in parts else ():
        by_way = [seconds(part="short", way=way, task=task) for way in ("cold", "warm", "adapters")]
        if not all(by_way):
            continue
        ways = list(map(statistics.mean, by_way))
        cells = [f"{value:.1f} s" for value in ways] + [f"{ways[2] / value:.2f}x" for value in ways[:2]]
        yield f"| {task}, {counted(epochs, 'epoch')} | {' | '.join(cells)} |"
    num_runs = len(TASKS) * len(LEARNING_RATES) * len(SEEDS)
    for part in sorted(parts - {"short"}):
        yield f"\n| {part}, {num_runs} runs | seconds | measurements | peak memory of a process, GB | mean accuracy |"
        yield "|---|---|---|---|---|"
        kinds = dict.fromkeys((run.way, flags_of(run) is not None) for run in results if run.part == part)
        for way, is_sweep in kinds:
            lines = [line for run, line in results.items() if (run.part, run.way) == (part, way)]
            total = statistics.mean(line["seconds"] for line in lines) * (1 if is_sweep else num_runs)
            scores = [score for line in lines for score in (line["accuracy"] if is_sweep else [line["accuracy"]])]
            memory = max(line["memory_gb"] for line in lines)
            yield f"| {way} | {total:.1f} | {len(lines)} | {memory:.2f} | {statistics.mean(scores):.4f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the tasks")
    parser.add_argument("--results", required=True, type=Path, help="output file with one line per measurement")
    parser.add_argument("--parts", default="short,study", help="the parts to measure")
    parser.add_argument("--platform", default="cpu", help="JAX_PLATFORMS of afjax's processes (cpu)")
    parser.add_argument("--trunk", default="minilm", help="minilm, or a folder with its weights (minilm)")
    parser.add_argument(
        "--table", action="store_true", help="print tables of the recorded measurements, without measuring"
    )
    arguments = parser.parse_args()
    results = read_results(arguments.results, Measurement)
    if arguments.table:
        print("\n".join(table(results)))
        return
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(arguments.data, Path(folder), arguments.platform, arguments.trunk)
        wanted = [each for each in measurements() if each.part in arguments.parts.split(",")]
        add_missing(arguments.results, wanted, results, machine.measure)


if __name__ == "__main__":
    main()
