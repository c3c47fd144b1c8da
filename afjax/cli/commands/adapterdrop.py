"""``afjax adapterdrop``: measures score and speed as adapters are dropped."""

import argparse
from typing import Any

from afjax.cli.curves import add_curve_flags, show_curve
from afjax.cli.evaluation_rows import rows_of
from afjax.cli.parsers import add_command, add_model_flags
from afjax.cli.stored_model import load_stored_model
from afjax.storage.writing import check_output

EXAMPLE = """\
example:
  afjax adapterdrop --store=runs/quickstart/store --trunk=minilm --adapter=entail --head=entail \\
      --source=builtin:entail --output=adapterdrop.csv"""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(
        commands, "adapterdrop", "measure score and speed as adapters are dropped layer by layer", EXAMPLE, run=_run
    )
    add_model_flags(parser)
    add_curve_flags(parser)
    parser.add_argument("--from_top", action="store_true", help="start with the last layers (default: the first)")


def _run(arguments: argparse.Namespace) -> None:
    from afjax.analysis.adapterdrop import adapterdrop_curve

    if arguments.output is not None:
        check_output(arguments.output)
    task_model = load_stored_model(arguments)
    rows = rows_of(task_model, arguments.split, source=arguments.source, data_dir=arguments.data_dir)
    points = adapterdrop_curve(task_model, rows, from_top=arguments.from_top, batch_size=arguments.batch_size)
    show_curve(points, task_model.task.main_metric, arguments.output)
