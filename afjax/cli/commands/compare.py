"""``afjax compare``: tests whether B is better than A on the same rows."""

import argparse
import functools
import json
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.evaluation_rows import rows_of
from afjax.cli.parsers import (
    add_batch_flag,
    add_command,
    add_length_flag,
    add_mismatch_flag,
    add_source_flags,
    add_split_flag,
    flags,
)
from afjax.config.from_dict import check_value
from afjax.config.ranges import NonNegativeInt, PositiveInt

EXAMPLE = """\
examples:
  afjax compare adapter:target fusion:target-fusion --store=runs/quickstart/store --trunk=minilm \\
      --source=builtin:target
  afjax compare runs/rte-0,runs/rte-1,runs/rte-2 runs/fusion-0,runs/fusion-1,runs/fusion-2 --data_dir=DATA --json

A and B are stored models (adapter:NAME, fusion:NAME, head:NAME; append :HEAD if the head's name differs) or workdirs.
Separate several runs with commas. They are paired in order. A sweep over seeds expands to its runs."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "compare", "test whether B is better than A on the same rows", EXAMPLE, run=_run)
    parser.add_argument("a", metavar="A", help="models from --store, such as adapter:rte, or workdirs")
    parser.add_argument("b", metavar="B", help="the models or workdirs to compare A with")
    parser.add_argument("--store", default="", help="the models' store, or the workdirs' store if it was moved")
    parser.add_argument("--trunk", default="", help="the trunk, if it was moved")
    parser.add_argument("--task", default="", help="the task, if a run has several")
    add_mismatch_flag(parser)
    add_source_flags(parser, required=False)
    add_split_flag(parser)
    parser.add_argument("--metric", default="", help="the metric to compare (the task's main metric)")
    parser.add_argument("--resamples", type=int, default=10_000, help="number of bootstrap resamples (10000)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the bootstrap (0)")
    add_length_flag(parser, None)
    add_batch_flag(parser)
    parser.add_argument("--json", action="store_true", help="print JSON on the last line")


def _run(arguments: argparse.Namespace) -> None:
    from afjax.analysis import compare as comparing
    from afjax.analysis.sides import open_sides
    from afjax.analysis.workdirs import Moved
    from afjax.trunk.pretrained import load_trunk

    use_compilation_cache()
    check_value(PositiveInt, arguments.resamples, "--resamples")
    check_value(NonNegativeInt, arguments.seed, "--seed")
    moved = Moved(arguments.store, arguments.trunk)
    # Cache the trunk, because both sides usually share it.
    load = functools.cache(load_trunk)
    first, second = (
        open_sides(text, load, moved=moved, **flags(arguments, "task", "allow_mismatch"))
        for text in (arguments.a, arguments.b)
    )
    comparison = comparing.compare(
        first,
        second,
        rows_of(first[0].model, **flags(arguments, "split", "source", "data_dir")),
        bootstrap=comparing.Bootstrap(arguments.resamples, arguments.seed),
        **flags(arguments, "metric", "batch_size", "max_length"),
    )
    print("\n".join(comparing.to_lines(comparison)))
    if arguments.json:
        print(json.dumps(comparing.to_json(comparison)))
