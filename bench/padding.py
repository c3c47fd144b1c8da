"""Prints each task's padded lengths and fraction of padding, at default settings.

    python bench/padding.py --data_dir=DATA
    python bench/padding.py --data_dir=DATA --tasks=cola,mrpc --train_rows=300

DATA contains the benchmark downloads, or one folder per task with train and dev files. Missing tasks are skipped, and
built-in tasks need no data. The script does not train.
"""

import argparse
import sys

from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import batches_per_epoch, padding_share
from afjax.data.lengths import Workload, choose_lengths
from afjax.data.sources.builtin import GRAMMARS
from afjax.errors import UserError
from afjax.tasks.by_name import find_task
from afjax.tasks.load import load_task
from afjax.tasks.tokenize import tokenize
from afjax.trunk.pretrained import Trunk, load_trunk
from afjax.trunk.program_cost import program_tokens

GLUE = "cola,sst2,mrpc,qqp,stsb,mnli,qnli,rte,wnli"
COLUMNS = ("task", "train rows", "tokens per row", "lengths", "padding", "dev rows", "lengths", "padding")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", default="", help="folder with the tasks")
    parser.add_argument("--tasks", default=GLUE, help=f"names of tasks ({GLUE})")
    parser.add_argument("--trunk", default="minilm")
    parser.add_argument("--train_rows", type=int, default=0, help="maximum number of train rows; 0 for all")
    arguments = parser.parse_args()
    trunk = load_trunk(arguments.trunk)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for name in arguments.tasks.split(","):
        try:
            task = (
                TaskConfig(name=name, source=f"builtin:{name}")
                if name in GRAMMARS
                else find_task(name, arguments.data_dir)
            )
            splits = load_task(task)
        except UserError as error:
            print(f"{name} is skipped: {error}", file=sys.stderr)
            continue
        if arguments.train_rows:
            splits["train"] = splits["train"].every(arguments.train_rows)
        print(f"| {' | '.join(measure(trunk, task, splits))} |", flush=True)
    return 0


def measure(trunk: Trunk, task: TaskConfig, splits: dict) -> list[str]:
    """Computes one row of the table.

    It includes the padded lengths of a default run, and the padding in one epoch.
    """
    config = TrainConfig()
    train, dev = (
        tokenize(
            splits[name],
            trunk.tokenizer(),
            task,
            max_length=config.max_length,
            training=name == "train",
            cache_dir=None,
        )
        for name in ("train", "dev")
    )
    num_steps = config.num_steps(batches_per_epoch(len(train), config.batch_size))
    work = Workload(train=[train], dev=[dev], config=config, num_steps=num_steps, num_evaluations=int(config.epochs))
    lengths = choose_lengths(work, program_tokens(trunk.config, "cpu"), common=True)
    return [
        task.name,
        str(len(train)),
        f"{train.offsets[-1] / len(train):.1f}",
        ", ".join(map(str, lengths.train)),
        f"{padding_share(train, batch_size=config.batch_size, lengths=lengths.train):.1%}",
        str(len(dev)),
        ", ".join(map(str, lengths.dev)),
        f"{padding_share(dev, batch_size=config.batch_size, lengths=lengths.dev, training=False):.1%}",
    ]


if __name__ == "__main__":
    sys.exit(main())
