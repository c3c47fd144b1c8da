"""``afjax report``: writes an HTML report on a workdir's runs."""

import argparse
import functools
from typing import Any

from afjax.cli.compilation_cache import use_compilation_cache
from afjax.cli.evaluation_rows import rows_of
from afjax.cli.parsers import add_batch_flag, add_command, add_source_flags, local_file
from afjax.config.from_dict import check_value
from afjax.config.ranges import NonNegativeInt, PositiveInt
from afjax.storage.paths import open_path

EXAMPLE = """\
examples:
  afjax report --workdir=runs/quickstart --output=report.html
  afjax report --workdir=runs/sweep-rte --data_dir=DATA --output=report.html --mistakes=50

The report is a single file that needs no network. For a sweep or a folder of workdirs, it shows scores with their
spread over seeds, and evaluates the best run."""


def add(commands: Any) -> None:
    """Adds the command to the parser's commands."""
    parser = add_command(commands, "report", "write an HTML report on a workdir's runs", EXAMPLE, run=_run)
    parser.add_argument("--workdir", required=True, help="a run's or a sweep's folder, or gs://...")
    parser.add_argument("--output", required=True, type=local_file, metavar="FILE.html", help="the output file")
    parser.add_argument("--store", default="", help="the runs' store, if it was moved")
    parser.add_argument("--trunk", default="", help="the runs' trunk, if it was moved (as in the config)")
    add_source_flags(parser, required=False)
    parser.add_argument("--mistakes", type=int, default=20, help="maximum number of misclassified rows to show (20)")
    add_batch_flag(parser)


def _run(arguments: argparse.Namespace) -> None:
    from afjax.analysis.report import write_report
    from afjax.analysis.workdirs import Moved
    from afjax.trunk.pretrained import load_trunk

    use_compilation_cache()
    check_value(NonNegativeInt, arguments.mistakes, "--mistakes")
    check_value(PositiveInt, arguments.batch_size, "--batch_size")
    write_report(
        open_path(arguments.workdir),
        arguments.output,
        rows_of=lambda model: rows_of(model, "dev", source=arguments.source, data_dir=arguments.data_dir),
        load_trunk=functools.cache(load_trunk),
        moved=Moved(store_folder=arguments.store, trunk=arguments.trunk),
        num_mistakes=arguments.mistakes,
        batch_size=arguments.batch_size,
    )
    print(arguments.output)
