"""Predicts how long a study takes on a TPU chip, in separate processes or in one.

    python bench/tpu_study.py --data=DATA --output=study.csv

The study trains Pfeiffer adapters on BERT-base (bfloat16 trunk, layers as a loop) for cb, rte, mrpc and sick, with two
learning rates and three seeds. These are 24 runs of three epochs, with 32 rows of at most 128 tokens per step. No TPU
is needed (docs/scaling.md): the TPU compiler runs on this machine, and each step is assumed to take the shortest
possible time. The costs for each length are appended to the output file, and lengths that are already in the file are
skipped.

The script assumes that the TPU's host is as fast as this machine. A process takes ``--start`` seconds before it traces
its first program. The other host work of a run (initializing parameters, metrics, files) takes ``--host`` seconds; the
default was measured with ``bench/host_work.py``.
Separate runs with a cold cache compile all their programs. With a warm cache, each program takes ``--read`` seconds.
"""

import argparse
import dataclasses
from pathlib import Path

from results_file import add_to_csv, read_csv

from afjax import Batching, eval_batches, load_task, load_trunk, tokenize, train_batches
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import batches_per_epoch
from afjax.data.lengths import Workload, choose_lengths
from afjax.tpu.chips import parse_topology
from afjax.tpu.plan import MethodCase, plan_method
from afjax.tpu.report import report
from afjax.train.padded_heads import padded_outputs
from afjax.trunk.program_cost import program_tokens
from afjax.trunk.sizes import trunk_size

TASKS, RUNS_PER_TASK, EPOCHS = ("cb", "rte", "mrpc", "sick"), 6, 3
CONFIG = TrainConfig(batch_size=32, max_length=128, epochs=float(EPOCHS))
COLUMNS = ("topology", "length", "train_compile_s", "train_step_s", "eval_compile_s", "eval_step_s")


@dataclasses.dataclass(frozen=True)
class Work:
    """The work of one run.

    Attributes:
      train, dev: The padded lengths of all training steps and of all evaluation steps.
      num_outputs: The number of outputs of the padded head.
    """

    train: tuple[int, ...]
    dev: tuple[int, ...]
    num_outputs: int

    @property
    def programs(self) -> set[tuple[str, int, int]]:
        """The programs to compile for the run: kind, length and number of outputs."""
        return {("train", length, self.num_outputs) for length in self.train} | {
            ("eval", length, self.num_outputs) for length in self.dev
        }


def work_of(name: str, data: Path) -> Work:
    """Computes the work of a run, with the padded lengths for a TPU."""
    trunk = load_trunk("minilm")  # minilm has BERT's vocabulary.
    task = TaskConfig(name=name, source=str(data / name))
    rows = load_task(task)
    train, dev = (
        tokenize(rows[split], trunk.tokenizer(), task, max_length=CONFIG.max_length, training=split == "train")
        for split in ("train", "dev")
    )
    num_steps = CONFIG.num_steps(batches_per_epoch(len(train), CONFIG.batch_size))
    cost = program_tokens(trunk_size("bert-base"), "tpu")
    work = Workload(train=[train], dev=[dev], config=CONFIG, num_steps=num_steps, num_evaluations=EPOCHS)
    lengths = choose_lengths(work, cost, common=True)
    train_batching, dev_batching = (
        Batching(CONFIG.batch_size, chosen, trunk.config.pad_id) for chosen in (lengths.train, lengths.dev)
    )
    steps = [
        batch["tokens"].shape[1]
        for epoch in range(EPOCHS)
        for batch in train_batches(train, train_batching, seed=0, epoch=epoch)
    ]
    evaluations = EPOCHS * [batch["tokens"].shape[1] for batch in eval_batches(dev, dev_batching)]
    num_outputs = padded_outputs(task.kind, len(rows["train"].label_names))
    return Work(tuple(steps), tuple(evaluations), num_outputs)


def costs_of(length: int, topology: str) -> dict[str, str]:
    """Compiles both steps for a padded length, and computes their costs."""
    plan = plan_method(
        MethodCase(method="pfeiffer", num_adapters=1, num_tasks=1, batch_size=CONFIG.batch_size, max_length=length)
    )
    found = report(plan, parse_topology(topology), fit=False)
    assert found.train is not None, "a batch of 32 rows must fit"
    assert found.evaluate is not None, "the evaluation step must be compiled"
    numbers = (
        *(found.train.compile_s, found.train.roofline.step_s),
        *(found.evaluate.compile_s, found.evaluate.roofline.step_s),
    )
    return dict(zip(COLUMNS, (topology, str(length), *(f"{number:.5g}" for number in numbers)), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder with one folder per task")
    parser.add_argument("--output", required=True, type=Path, help="output file with one line per length")
    parser.add_argument("--topology", default="v5e:1x1", help="one chip (v5e:1x1)")
    parser.add_argument(
        "--start", type=float, default=2.9, help="seconds until a process traces its first program (2.9)"
    )
    parser.add_argument("--host", type=float, default=0.27, help="seconds of other host work per run (0.27)")
    parser.add_argument("--read", type=float, default=2.0, help="seconds to trace and load a cached program (2.0)")
    arguments = parser.parse_args()
    works = {task: work_of(task, arguments.data) for task in TASKS}
    lines = read_csv(arguments.output, COLUMNS)
    costs = {int(line["length"]): line for line in lines if line["topology"] == arguments.topology}
    for length in sorted({length for work in works.values() for length in (*work.train, *work.dev)} - costs.keys()):
        costs[length] = costs_of(length, arguments.topology)
        add_to_csv(arguments.output, COLUMNS, costs[length])

    def steps(work: Work) -> float:
        train = sum(float(costs[length]["train_step_s"]) for length in work.train)
        return train + sum(float(costs[length]["eval_step_s"]) for length in work.dev)

    def compiled(programs: set[tuple[str, int, int]], read: bool) -> float:
        if read:
            return arguments.read * len(programs)
        return sum(float(costs[length][f"{kind}_compile_s"]) for kind, length, _ in programs)

    for task, work in works.items():
        lengths = [sorted(set(each)) for each in (work.train, work.dev)]
        print(f"{task}: {len(work.train)} steps, lengths {lengths[0]}, dev lengths {lengths[1]}, {steps(work):.2f} s")
    every = set.union(*(work.programs for work in works.values()))
    print(f"{len(every)} programs")
    for cache, read in (("empty", False), ("warm", True)):
        alone = {task: arguments.start + compiled(work.programs, read) for task, work in works.items()}
        separate = sum(RUNS_PER_TASK * (alone[task] + arguments.host + steps(work)) for task, work in works.items())
        runs = sum(RUNS_PER_TASK * (arguments.host + steps(work)) for work in works.values())
        one = arguments.start + compiled(every, read) + runs
        print(f"{cache} cache: separate runs {separate:.0f} s, one program {one:.0f} s, ratio {separate / one:.1f}")


if __name__ == "__main__":
    main()
