"""Flags that select finished runs."""

import argparse
from collections.abc import Sequence

from afjax.analysis.sides import split_words
from afjax.errors import UserError


def add_runs_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that select runs, tasks and a metric."""
    parser.add_argument("--runs", required=True, metavar="DIR,...", help="workdirs, sweeps, stores, or their parents")
    parser.add_argument("--tasks", default="", metavar="NAME,...", help="the tasks to show, in this order (all)")
    parser.add_argument(
        "--metric", default="", help="metric to use for all tasks that have it, instead of their main metric"
    )


def split_folders(given: str) -> Sequence[str]:
    """Splits the value of ``--runs`` into folders."""
    folders = split_words(given)
    if "" in folders:
        raise UserError(
            f'--runs is "{given}", which has an empty entry; use comma-separated folders, such as '
            "--runs=runs/rte,runs/mrpc."
        )
    return folders
