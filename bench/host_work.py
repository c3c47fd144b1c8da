"""Measures the host's work for one run of a study, apart from the training steps.

    python bench/host_work.py --data=DATA

For each task, one `afjax sweep` trains several seeds for one step each, on an encoder with one layer of hidden size 32,
with the tokenizer of `minilm`. The programs are compiled in the first run, and the encoder's work is negligible. The
time between the ends of two runs is therefore the host's work for one run: reading rows, tokenization, initialization,
metrics and files. ``bench/tpu_study.py`` takes the mean as its ``--host``.
"""

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import jax

import afjax
from afjax.trunk.encoder import init_trunk

TASKS = ("cb", "rte", "mrpc", "sick")
SMALL = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder with one folder per task")
    parser.add_argument("--runs", type=int, default=8, help="runs per task, at least 3 (8)")
    arguments = parser.parse_args()
    if arguments.runs < 3:
        parser.error(f"--runs={arguments.runs}; it must be at least 3, because the first two runs compile programs")
    seconds = {}
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        save_small_trunk(root / "trunk")
        for task in TASKS:
            seconds[task] = seconds_per_run(task, arguments.data / task, root, arguments.runs)
            print(f"{task}: {seconds[task]:.2f} s per run", flush=True)
    print(f"mean: {statistics.mean(seconds.values()):.2f} s per run")


def save_small_trunk(folder: Path) -> None:
    """Saves a small random encoder with the tokenizer of `minilm`."""
    minilm = afjax.load_trunk("minilm")
    config = dataclasses.replace(minilm.config, **SMALL)
    afjax.save_trunk(folder, dataclasses.replace(minilm, config=config, params=init_trunk(jax.random.key(0), config)))
    path = folder / "config.json"
    names = config.encoder_family.config_names
    sizes = {names[field]: size for field, size in SMALL.items()}
    path.write_text(json.dumps({**json.loads(path.read_text()), **sizes}))


def seconds_per_run(task: str, data: Path, root: Path, runs: int) -> float:
    """Trains a task's runs, and returns the mean time between the ends of two runs."""
    workdir, seeds = root / task, ",".join(map(str, range(runs)))
    command = [sys.executable, "-m", "afjax", "sweep", f"--config=single:task={task},data={data}"]
    command += [f"--workdir={workdir}", f"--seeds={seeds}", f"--config.trunk={root / 'trunk'}"]
    command += ["--config.train.max_steps=1", "--config.train.max_length=128"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    ends = sorted(path.stat().st_mtime for path in workdir.rglob("result.json"))
    assert len(ends) == runs, workdir
    # The second run compiles the last shared programs.
    return (ends[-1] - ends[1]) / (runs - 2)


if __name__ == "__main__":
    main()
