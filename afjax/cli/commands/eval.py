"""``afjax eval``: scores a stored model on labeled rows."""

import argparse
import json
import sys
from typing import Any

from afjax.cli.evaluation_rows import rows_of
from afjax.cli.parsers import add_command, add_length_flag, add_model_flags, add_source_flags, add_split_flag, flags
from afjax.cli.stored_model import load_stored_model
from afjax.display.terminal import print_line

EXAMPLE = """\
examples:
  afjax eval --store=runs/quickstart/store --trunk=minilm --fusion=target-fusion --head=target-fusion \\
      --source=builtin:target --split=test
  afjax eval --store=store --trunk=minilm --adapter=csqa --head=csqa --data_dir=DATA"""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "eval", "score a stored model on labeled rows", EXAMPLE, run=_run)
    add_model_flags(parser)
    add_length_flag(parser, None)
    add_source_flags(parser)
    add_split_flag(parser)
    parser.add_argument(
        "--confusion",
        action="store_true",
        help="also print a classification task's confusion matrix, as a table and in the JSON object",
    )


def _run(arguments: argparse.Namespace) -> None:
    from afjax.data.notices import blank_texts, no_better_than_majority

    task_model = load_stored_model(arguments)
    rows = rows_of(task_model, **flags(arguments, "split", "source", "data_dir"))
    scores = task_model.evaluate(rows, **flags(arguments, "batch_size", "max_length", "confusion"))
    if arguments.confusion:
        print(scores["confusion"], file=sys.stderr)
        scores["confusion"] = scores["confusion"].to_dict()
    name = task_model.model.head_name
    for notice in (blank_texts(arguments.split, rows), no_better_than_majority(name, rows, scores)):
        if notice:
            print_line(f"Note: {notice}")
    print(json.dumps({"split": arguments.split, "rows": len(rows), **scores}))
