"""Finds runs without a result: failed runs of a sweep, and stopped or active runs."""

import csv
import dataclasses
import io
import math
import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from etils import epath

from afjax.analysis.workdirs import ExperimentRecord, find_folders
from afjax.display.words import cut
from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.storage.paths import error_text, open_path
from afjax.train.sweep_files import RUN_LOG, RUNS_TABLE, SWEEP_RECORD, last_log_line

# Longer log lines are truncated to keep tables readable.
_LINE = 300


@dataclasses.dataclass(frozen=True)
class UnfinishedRun:
    """A run without a result.

    Attributes:
      title: The run's folder relative to the searched folder.
      failed: Whether its sweep recorded a failure. Other runs were stopped, or are still training.
      last_line: The last line of the run's log, or empty if it has no log.
    """

    title: str
    failed: bool
    last_line: str = ""


def find_unfinished(workdir: epath.Path, experiments: Sequence[ExperimentRecord]) -> list[UnfinishedRun]:
    """Finds the runs without a result in a workdir, a sweep or a folder of these.

    Args:
      workdir: The folder.
      experiments: All experiments in the folder. Runs that failed before they wrote their config are missing.

    Returns:
      The runs, with failed runs first.

    Raises:
      UserError: The table of a sweep is damaged or cannot be read.
    """
    workdir = open_path(workdir)
    finished = {experiment.workdir for experiment in experiments if experiment.results}
    sweeps = [folder for kind, folder in find_folders(workdir) if kind == "sweep"]
    failed = [sweep / name for sweep in sweeps for name in failed_names(sweep) if sweep / name not in finished]
    stopped = [
        experiment.workdir
        for experiment in experiments
        if not experiment.results and experiment.workdir not in failed and experiment.workdir != workdir
    ]
    return [
        UnfinishedRun(
            folder.relative_to(workdir).as_posix(), folder in failed, cut(last_log_line(folder / RUN_LOG), _LINE)
        )
        for folder in [*failed, *stopped]
    ]


def count_planned(workdir: epath.Path) -> int:
    """Counts the planned runs of a sweep, or of one host's part, including runs that have not started.

    If the folder does not belong to a sweep, the result is 0.

    Raises:
      UserError: The sweep's record is damaged.
    """
    path = open_path(workdir) / SWEEP_RECORD
    advice = "to write it again, run the afjax sweep command again"
    record = read_json(path, advice=advice)
    if record is None:
        return 0
    grid, seeds = record.get("grid"), record.get("seeds")
    values = [seeds, *(grid.values() if isinstance(grid, dict) else [None])]
    if not all(isinstance(each, list) for each in values):
        raise UserError(f"{path} is damaged (it does not record a grid and seeds); {advice}.")
    total = math.prod(map(len, values))
    # A host of a divided sweep trains only its part; see sweep_plan.part_of.
    if part := re.fullmatch(r"host-(\d+)-of-([1-9]\d*)", path.parent.name):
        host, num_hosts = int(part[1]), int(part[2])
        return (host + 1) * total // num_hosts - host * total // num_hosts
    return total


def failed_names(sweep: epath.Path) -> list[str]:
    """Reads the folders of a sweep's failed runs from its table, relative to the sweep.

    Raises:
      UserError: The table is damaged or cannot be read.
    """
    path = sweep / RUNS_TABLE
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
        names = [row["folder"] for row in rows if row["status"] == "failed"]
        # The table may come from elsewhere, so it must not lead out of the sweep's folder.
        if all(_is_run_folder(PurePosixPath(name).parts) for name in names):
            return names
        problem = "a run's folder is not runs/NAME"
    except (csv.Error, KeyError, TypeError, UnicodeDecodeError):
        problem = "it does not list runs"
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error_text(error)}); restore it from a copy.") from None
    raise UserError(f"{path} is damaged ({problem}); to write it again, run the afjax sweep command again.")


def _is_run_folder(parts: Sequence[str]) -> bool:
    return len(parts) == 2 and parts[0] == "runs" and parts[1] != ".." and len(parts[1]) <= 255
