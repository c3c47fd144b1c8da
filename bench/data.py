"""Times the data pipeline: tokenization, loading from the cache, and batching.

    python bench/data.py --data_dir=DATA
    python bench/data.py --data_dir=DATA --tasks=qqp,mnli --rows=100000

DATA contains the benchmark downloads, or one folder per task with train and dev files. Missing tasks are skipped, and
without MNLI also the measurement of a large file. Close other programs first. Prints the results as Markdown, and as
JSON on the last line.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.tokenization import TokenizedRows
from afjax.distributed.sharding import local_mesh
from afjax.errors import UserError
from afjax.model.setup import single_setup
from afjax.tasks.by_name import find_task
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import load_task
from afjax.tasks.tokenize import tokenize
from afjax.train.single_run import SingleRun
from afjax.trunk.pretrained import Trunk, load_trunk

GLUE = "cola,sst2,mrpc,qqp,stsb,mnli,qnli,rte,wnli"
MNLI_ROWS = 392_702

# This code runs in a separate process. It loads a task's rows, tokenizes them (or loads the token ids from the cache),
# and prints the times and the peak memory.
LOAD = """
import json, sys, time
from pathlib import Path
from afjax.tasks.by_name import find_task
from afjax.tasks.load import load_task
from afjax.data.tokenization import tokenize_rows
from afjax.trunk.pretrained import load_trunk
tokenizer = load_trunk(sys.argv[3]).tokenizer()
begin = time.perf_counter()
rows = load_task(find_task("mnli", sys.argv[1]))["train"]
read = time.perf_counter()
data = tokenize_rows(rows, tokenizer, max_length=128, cache_dir=Path(sys.argv[2]))
end = time.perf_counter()
# getrusage's peak would include the parent's memory before the fork.
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = int(status["VmHWM"].split()[0]) / 2**20
print(json.dumps({"rows": len(data), "read_s": read - begin, "tokens_s": end - read, "peak_memory_gib": peak}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="folder with the tasks")
    parser.add_argument("--tasks", default=GLUE, help=f"names of tasks ({GLUE})")
    parser.add_argument("--trunk", default="minilm")
    parser.add_argument("--rows", type=int, default=MNLI_ROWS, help=f"rows of the large MNLI file ({MNLI_ROWS})")
    parser.add_argument("--steps", type=int, default=20, help="timed training steps per task (20)")
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    trunk = load_trunk(arguments.trunk)
    figures: dict[str, Any] = {"tasks": {}}
    print("| task | rows | tokens per row | rows tokenized per second | batch building, fraction of a step |")
    print("|---|---|---|---|---|")
    for name in arguments.tasks.split(","):
        try:
            task = find_task(name, arguments.data_dir)
            splits = load_task(task)
        except UserError as error:
            print(f"{name} is skipped: {error}", file=sys.stderr)
            continue
        line = figures["tasks"][name] = measure(trunk, task, splits, arguments.steps)
        print(
            f"| {name} | {line['rows']} | {line['tokens_per_row']:.1f} | {line['rows_per_s']:.0f} | "
            f"{line['data_share']:.2%} |",
            flush=True,
        )
    try:
        figures["large"] = large(arguments.data_dir, arguments.trunk, arguments.rows)
    except UserError as error:
        print(f"the large MNLI file is skipped: {error}", file=sys.stderr)
    for source, run in figures.get("large", {}).items():
        print(
            f"\n{run['rows']} rows in MNLI's format, {source}: rows read in {run['read_s']:.1f} s, token ids in "
            f"{run['tokens_s']:.1f} s, peak memory {run['peak_memory_gib']:.2f} GiB."
        )
    print(json.dumps(figures))
    return 0


def measure(trunk: Trunk, task: TaskConfig, splits: Any, num_steps: int) -> dict[str, Any]:
    """Measures tokenization and batch building on one task.

    The results include the rows tokenized per second (best of three attempts), and the fraction of a training step
    spent on building the batch.
    """
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        train = tokenize(splits["train"], trunk.tokenizer(), task, max_length=128, training=True, cache_dir=None)
        seconds.append(time.perf_counter() - begin)
    dev = tokenize(splits["dev"], trunk.tokenizer(), task, max_length=128, training=False, cache_dir=None)
    return {
        "rows": len(train),
        "tokens_per_row": float(train.offsets[-1] / len(train)),
        "rows_per_s": len(train) / min(seconds),
        "data_share": data_share(trunk, task, {"train": train, "dev": dev}, splits["train"].label_names, num_steps),
    }


def data_share(
    trunk: Trunk, task: TaskConfig, data: dict[str, TokenizedRows], labels: tuple[str, ...], num_steps: int
) -> float:
    """Measures the median fraction of a training step spent on building the batch.

    The host and the device do not overlap here: each step waits for its batch.
    """
    setup = single_setup(
        Method(),
        trunk.config,
        name="speed",
        reads=TASK_KINDS[task.kind].reads,
        num_outputs=TASK_KINDS[task.kind].num_outputs(labels),
    )
    params = setup.init(jax.random.key(0), trunk.params)
    run = SingleRun(setup, params, data, task, TrainConfig(), seed=0, mesh=local_mesh())
    state, shares, compiled = run.start, list[float](), set[tuple[int, ...]]()
    batches = run.batches(0)
    while len(shares) < num_steps:
        begin = time.perf_counter()
        batch = next(batches)
        built = time.perf_counter()
        state, scalars = run.step(state, batch, 1e-4)
        jax.block_until_ready(scalars)
        done = time.perf_counter()
        if batch["tokens"].shape in compiled:
            shares.append((built - begin) / (done - begin))
        compiled.add(batch["tokens"].shape)
    return statistics.median(shares)


def large(data_dir: str, trunk: str, num_rows: int) -> dict[str, dict[str, float]]:
    """Times tokenizing and loading a data file as large as MNLI's train split.

    Each measurement runs in a new process.
    """
    task = find_task("mnli", data_dir)
    rows = load_task(task)["train"]
    assert rows.labels is not None
    with tempfile.TemporaryDirectory() as folder:
        mnli = Path(folder, "glue/MNLI")
        mnli.mkdir(parents=True)
        for split, count in (("train", num_rows), ("dev_matched", 100)):
            with (mnli / f"{split}.tsv").open("w", encoding="utf-8") as file:
                file.write("index\tpairID\tsentence1\tsentence2\tlabel1\tgold_label\n")
                for number in range(count):
                    # As in MNLI, each premise appears in three rows, with different hypotheses.
                    row, first = number % len(rows), number // 3
                    texts = [f"{rows.text_a[first % len(rows)]} {first}", f"{rows.text_b[row]} {number}"]
                    texts = [text.replace("\t", " ") for text in texts]
                    label = rows.label_names[rows.labels[row]]
                    file.write("\t".join([str(number), f"{number}n", *texts, label, label]) + "\n")
        command = [sys.executable, "-c", LOAD, folder, str(Path(folder, "cache")), trunk]
        runs = {}
        for source in ("tokenized", "loaded from the cache"):
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            runs[source] = json.loads(output.splitlines()[-1])
    return runs


if __name__ == "__main__":
    sys.exit(main())
