"""Flags that select finished runs."""

import argparse
from collections.abc import Sequence

from afjax.errors import UserError
from afjax.storage.paths import expanded


def add_runs_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that select runs, tasks and a metric."""
    parser.add_argument("--runs", required=True, metavar="DIR,...", help="workdirs, sweeps, stores, or folders of them")
    parser.add_argument("--tasks", default="", metavar="NAME,...", help="the tasks, in this order (all)")
    parser.add_argument(
        "--metric", default="", help="a metric to use instead of the main metric of each task that has it"
    )


def split_folders(given: str) -> Sequence[str]:
    """Splits the value of ``--runs`` into folders."""
    folders = [folder.strip() for folder in given.split(",")]
    if "" in folders:
        raise UserError(f'--runs is "{given}"; give folders separated by commas, as in --runs=runs/rte,runs/mrpc.')
    return [folder if folder.startswith("gs://") else str(expanded(folder)) for folder in folders]
