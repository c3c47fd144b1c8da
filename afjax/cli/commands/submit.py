"""``afjax submit``: predicts a benchmark's test sets for its server."""

import argparse
import functools
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.parsers import (
    add_batch_flag,
    add_command,
    add_length_flag,
    add_mismatch_flag,
    add_store_flag,
    add_trunk_flag,
    flags,
    local_file,
    one_of,
)
from afjax.cli.stored_model import load_recorded_trunk
from afjax.errors import UserError

EXAMPLE = """\
examples:
  afjax submit glue --store=store --data_dir=DATA --output=submission
  afjax submit glue --store=store --data_dir=DATA --output=submission --names={task}-fusion --partial
  afjax submit superglue --store=store --data_dir=DATA --output=submission --tasks=boolq,rte
  afjax submit squad --store=store --data_dir=DATA --output=submission --tasks=squad_v2

Each task uses the head of the same name (see --names) and, if the store has it, the fusion or else the adapter of that
name."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "submit", "predict a benchmark's test sets for its server", EXAMPLE, run=_run)
    parser.add_argument("benchmark", metavar="{glue,superglue,squad}", type=one_of("glue", "superglue", "squad"))
    add_store_flag(parser)
    add_trunk_flag(parser)
    parser.add_argument(
        "--data_dir", required=True, type=local_file, help="the folder that contains the tasks' folders"
    )
    parser.add_argument("--output", required=True, type=local_file, help="folder for the files")
    parser.add_argument("--names", default="{task}", help="pattern for the heads' names ({task})")
    parser.add_argument("--tasks", default="", metavar="TASK,TASK", help="the tasks to predict (the benchmark's)")
    parser.add_argument(
        "--split",
        choices=("dev", "test"),
        help="the split to predict for squad (dev); the other benchmarks only have test",
    )
    add_batch_flag(parser)
    add_length_flag(parser, None)
    parser.add_argument(
        "--partial", action="store_true", help="skip missing heads and test sets, whose scores will be meaningless"
    )
    add_mismatch_flag(parser)


def _run(arguments: argparse.Namespace) -> None:
    from afjax.cli import submission
    from afjax.cli.submit_plan import plan

    if arguments.output.is_file():
        raise UserError(f"{arguments.output} is a file; set --output to a folder.")
    use_compilation_cache()
    jobs = plan(
        arguments.benchmark,
        store_folder=arguments.store,
        **flags(arguments, "data_dir", "names", "tasks", "split", "partial"),
    )
    # A plan has at least one head. A head for a different trunk raises an error when its model is loaded.
    heads = list(dict.fromkeys(job.head for job in jobs if job.head))
    trunk = load_recorded_trunk(arguments.trunk, arguments.store, "heads", heads[0])
    # Load all models before the first prediction, to reveal errors early. They use no device memory until they predict.
    load = functools.partial(
        submission.submitted_model, arguments.store, trunk, allow_mismatch=arguments.allow_mismatch
    )
    lines = submission.write(
        arguments.benchmark,
        jobs,
        {head: load(head) for head in heads},
        **flags(arguments, "output", "batch_size", "max_length"),
    )
    print("\n".join(lines))
