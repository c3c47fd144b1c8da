"""``afjax table``: prints the papers' tables from finished runs."""

import argparse
from typing import Any

from afjax.cli.finished_runs import add_runs_flags, split_folders
from afjax.cli.parsers import add_command, flags, local_file, one_of
from afjax.display.terminal import print_line
from afjax.storage.writing import check_output, write_output

EXAMPLE = """\
examples:
  afjax table adapterfusion --runs=runs
  afjax table houlsby --runs=runs/rte-full,runs/rte-sizes,runs/store --by_size --format=markdown
  afjax table arrows --runs=runs --format=latex --output=arrows.tex

Layouts: adapterfusion (tasks by methods), arrows and differences (AdapterFusion's table 2 and figure 3), pals (methods
and samplers), houlsby (parameters, scores). The table is followed by the commands that train missing cells."""


# The names in afjax.analysis.tables.LAYOUTS and afjax.analysis.formats.FORMATS. Importing these modules takes time.
LAYOUTS = ("adapterfusion", "arrows", "differences", "pals", "houlsby")
FORMATS = ("text", "markdown", "latex", "csv")


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "table", "print the papers' tables from finished runs", EXAMPLE, run=_run)
    parser.add_argument("layout", metavar="LAYOUT", type=one_of(*LAYOUTS), help=", ".join(LAYOUTS))
    add_runs_flags(parser)
    parser.add_argument("--methods", default="", metavar="NAME,...", help="the methods to show, in this order (all)")
    parser.add_argument(
        "--seeds", default="", metavar="SEED,...", help="seeds that each cell should have (all seeds found)"
    )
    parser.add_argument("--by_size", action="store_true", help="treat each adapter size as a separate method")
    parser.add_argument(
        "--format", type=one_of(*FORMATS), default="text", metavar="NAME", help=f"{', '.join(FORMATS)} (text)"
    )
    parser.add_argument("--output", type=local_file, help="the output file (the terminal)")


def _run(arguments: argparse.Namespace) -> None:
    from afjax.analysis import formats, runs, tables
    from afjax.errors import UserError

    if arguments.by_size and arguments.layout == "arrows":
        raise UserError("--by_size does not work with the layout arrows; leave it out.")
    output = arguments.output
    if output is not None:
        check_output(output)
    grid = tables.make_grid(
        runs.collect(split_folders(arguments.runs)),
        **flags(arguments, "tasks", "methods", "seeds", "metric", "by_size"),
        by_sampler=arguments.layout == "pals",
    )
    text = formats.FORMATS[arguments.format](tables.make_table(arguments.layout, grid))
    if output is None:
        print(text, end="")
    else:
        write_output(output, text)
        print_line(f"Written to {output}")
