"""``afjax bench``: times one step on random weights."""

import argparse
import dataclasses
import json
from typing import Any

from afjax.cli.parsers import add_command, flags, one_of
from afjax.config.adapters import ADAPTER_PRESETS
from afjax.config.from_dict import check_value
from afjax.config.ranges import PositiveInt
from afjax.errors import UserError

EXAMPLE = """\
example:
  afjax bench --trunk=bert-base --method=fusion --mode=train --num_adapters=16 --batch_size=8 --max_length=128 --json"""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "bench", "time one step on random weights", EXAMPLE, run=_run)
    parser.add_argument("--trunk", default="bert-base", help="a named size, or a folder with a config.json (bert-base)")
    parser.add_argument("--method", required=True, choices=("adapter", "fusion", "full"))
    presets = ", ".join(ADAPTER_PRESETS)
    parser.add_argument(
        "--adapter",
        dest="preset",
        metavar="PRESET",
        type=one_of(*ADAPTER_PRESETS),
        default="pfeiffer",
        help=f"adapter preset: {presets} (pfeiffer)",
    )
    parser.add_argument("--mode", required=True, choices=("train", "eval"))
    parser.add_argument("--num_adapters", type=int, default=1, help="number of fused adapters (1)")
    parser.add_argument("--batch_size", type=int, default=8, help="rows per step (8)")
    parser.add_argument("--max_length", type=int, default=128, help="tokens per row (128)")
    parser.add_argument("--num_steps", type=int, default=5, help="number of timed steps (5)")
    parser.add_argument("--scan_layers", action="store_true", help="compile the layers as one loop")
    parser.add_argument(
        "--trunk_dtype", default="float32", choices=("float32", "bfloat16"), help="dtype of the frozen trunk (float32)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON on the last line")


def _run(arguments: argparse.Namespace) -> None:
    from afjax.bench import step_time as bench

    check_value(PositiveInt, arguments.num_steps, "--num_steps")
    if arguments.num_adapters != 1 and arguments.method != "fusion":
        raise UserError(f"--num_adapters has no effect with --method={arguments.method}; leave it out.")
    if arguments.preset != "pfeiffer" and arguments.method == "full":
        raise UserError("--adapter has no effect with --method=full; leave it out.")
    names = [field.name for field in dataclasses.fields(bench.Case)]
    prepared = bench.prepare(bench.Case(**flags(arguments, *names)))
    figures = bench.measure(prepared, num_steps=arguments.num_steps, batch_size=arguments.batch_size)
    print(
        f"{arguments.trunk}, {arguments.method}, {arguments.mode}: median step {figures['median_step_s']:.3f} s, "
        f"{figures['examples_per_s']:.1f} examples/s, compiled in {figures['compile_s']:.1f} s, "
        f"peak memory {figures['peak_memory_gb']:.2f} GB"
    )
    if arguments.json:
        print(json.dumps(figures))
