"""Times batches with many adapters in afjax, `adapters` 1.3.0 and PEFT on the CPU.

    python bench/routed_vs_torch.py
    python bench/routed_vs_torch.py --trunk=bert-base --num_adapters=64 --rows=64
    python bench/routed_vs_torch.py --rows=16 --length=16,32,64,128

All models have random weights. With a single length, rows have no padding; with several, the rows of a batch cycle
through them. ``adapters`` runs one batch per bottleneck adapter, sequentially. PEFT runs one batch, padded to its
longest row, in which each row selects its LoRA adapter. afjax may split the batch by length.

The last two comparisons run every row with every adapter: afjax's ``predict_all`` against the ``Parallel`` composition
of ``adapters``, and ``predict_all`` against one adapter after another in afjax. afjax's times include building the
batches and fetching the logits. The two sides alternate. Close other programs first.

Prints one line per comparison: the median times, and their ratio.
"""

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from routed_batches import random_rows, random_task, random_trunk
from timing import median_seconds, timed
from vs_adapterhub import DEFAULT_VENV, ask, ready_environment

from afjax import Capacity, RoutedModel
from afjax.serve.requests import Sequences, SharedSequences
from afjax.trunk.sizes import SIZES

PEFT = ("peft==0.21.2",)
COLUMNS = ("comparison", "baseline, ms", "afjax, ms", "baseline / afjax")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", default="minilm", help=f"name of a size: {', '.join(SIZES)} (minilm)")
    parser.add_argument("--rows", type=int, default=32, help="rows per batch (32)")
    parser.add_argument("--texts", type=int, default=1, help="rows to run with every adapter (1)")
    parser.add_argument("--num_adapters", type=int, default=16, help="number of different adapters (16)")
    parser.add_argument("--length", default="64", help="tokens per row, or several lengths (64)")
    parser.add_argument("--drop", type=int, default=0, help="number of lowest layers without an adapter, in afjax (0)")
    parser.add_argument("--repeats", type=int, default=15, help="number of measurements per batch (15)")
    parser.add_argument("--venv", type=Path, default=DEFAULT_VENV, help="virtual environment for adapters and PEFT")
    arguments = parser.parse_args()
    arguments.lengths = tuple(map(int, arguments.length.split(",")))
    python = ready_environment(arguments.venv, PEFT)
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    bottlenecks, lora = routed_model(arguments, "pfeiffer"), routed_model(arguments, "lora")
    comparisons = {
        "adapters, one after another": ("adapters", arguments.rows, mixed(bottlenecks, arguments)),
        "PEFT, LoRA per row": ("peft", arguments.rows, mixed(lora, arguments)),
        "adapters, Parallel": ("parallel", arguments.texts, for_all(bottlenecks, arguments)),
    }
    for name, (library, rows, run) in comparisons.items():
        torch_s, afjax_s = compare(arguments, python, library, rows, run)
        cells = (name, f"{1e3 * torch_s:.1f}", f"{1e3 * afjax_s:.1f}", f"{torch_s / afjax_s:.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)
    one_s, all_s = separate(bottlenecks, arguments)
    print(f"| afjax, one task after another | {1e3 * one_s:.1f} | {1e3 * all_s:.1f} | {one_s / all_s:.2f} |")
    return 0


def routed_model(arguments: argparse.Namespace, preset: str) -> RoutedModel:
    trunk, number = random_trunk(arguments.trunk), arguments.num_adapters
    models = {
        str(name): random_task(trunk, str(name), preset, max(arguments.lengths), drop=arguments.drop)
        for name in range(number)
    }
    sizes = tuple(sorted({1, arguments.texts, arguments.rows, -(-arguments.rows // len(arguments.lengths))}))
    return RoutedModel(trunk, models, Capacity(batch_sizes=sizes, lengths=arguments.lengths, tasks_per_row=number))


def row_lengths(arguments: argparse.Namespace, numbers: Sequence[int]) -> dict[int, int]:
    """Assigns the lengths to the given rows in turn."""
    return {number: arguments.lengths[number % len(arguments.lengths)] for number in numbers}


def mixed(model: RoutedModel, arguments: argparse.Namespace) -> Callable[[], Any]:
    """Builds a function that runs a mixed batch. Its rows use the adapters in turn."""
    parts = []
    for number, name in enumerate(model.names[: arguments.rows]):
        numbers = tuple(range(number, arguments.rows, len(model.names)))
        parts.append(Sequences(model.task(name), random_rows(row_lengths(arguments, numbers)), numbers))
    return lambda: model.outputs(parts)


def for_all(model: RoutedModel, arguments: argparse.Namespace) -> Callable[[], Any]:
    """Builds a function that runs every input with every adapter."""
    numbers = tuple(range(arguments.texts))
    data = random_rows(row_lengths(arguments, numbers))
    group = SharedSequences(tuple(map(model.task, model.names)), data, numbers)
    return lambda: model.outputs_of_all(group)


def separate(model: RoutedModel, arguments: argparse.Namespace) -> list[float]:
    """Times running every input with every adapter.

    Returns the median seconds with one adapter after another, and with all adapters at once.
    """
    numbers = tuple(range(arguments.texts))
    data = random_rows(row_lengths(arguments, numbers))
    tasks = [model.task(name) for name in model.names]

    def one_after_another() -> None:
        for task in tasks:
            model.outputs([Sequences(task, data, numbers)])

    return median_seconds([one_after_another, for_all(model, arguments)], arguments.repeats)


def compare(
    arguments: argparse.Namespace, python: Path, library: str, rows: int, run: Callable[[], Any]
) -> tuple[float, float]:
    """Times PyTorch and afjax alternately, and returns the median seconds of each."""
    config = SIZES[arguments.trunk]
    flags = {
        "library": library,
        "layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "rows": rows,
        "length": arguments.length,
        "num_adapters": arguments.num_adapters,
    }
    worker = Path(__file__).with_name("routed_worker.py")
    words = [str(python), str(worker), *(f"--{name}={value}" for name, value in flags.items())]
    run()
    torch_s, afjax_s = [], []
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert ask(process, "")["ready"], "the worker must first report that it is ready"
        for _ in range(arguments.repeats):
            torch_s.append(ask(process, "step")["seconds"])
            afjax_s.append(timed(run))
        print("stop", file=process.stdin, flush=True)
    return statistics.median(torch_s), statistics.median(afjax_s)


if __name__ == "__main__":
    sys.exit(main())
