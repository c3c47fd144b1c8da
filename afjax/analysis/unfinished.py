"""Finds runs without a result: failed runs of a sweep, and stopped or active runs."""

import csv
import dataclasses
import io
from collections.abc import Sequence

from etils import epath

from afjax.analysis.workdirs import ExperimentRecord
from afjax.errors import UserError
from afjax.storage.paths import open_path
from afjax.train.workdir import RUN_LOG, RUNS_TABLE

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
    failed = [folder for folder in _failed_runs(workdir) if folder not in finished]
    stopped = [
        experiment.workdir
        for experiment in experiments
        if not experiment.results and experiment.workdir not in failed and experiment.workdir != workdir
    ]
    return [
        UnfinishedRun(folder.relative_to(workdir).as_posix(), folder in failed, _last_line(folder / RUN_LOG))
        for folder in [*failed, *stopped]
    ]


def _failed_runs(workdir: epath.Path) -> list[epath.Path]:
    """Returns the folders of failed runs, as recorded by the sweeps in a folder."""
    # If several hosts trained a sweep, each host's part is a folder with its own table.
    sweeps = [workdir, *sorted(path for path in workdir.iterdir() if path.is_dir())]
    failed = []
    for sweep in sweeps:
        path = sweep / RUNS_TABLE
        if not path.exists():
            continue
        table = csv.DictReader(io.StringIO(_text(path)))
        if not {"status", "folder"} <= set(table.fieldnames or ()):
            raise UserError(
                f"{path} is damaged (it needs the columns status and folder); to write it again, run the afjax sweep "
                "command again."
            )
        failed += [sweep / row["folder"] for row in table if row["status"] == "failed" and row["folder"]]
    return failed


def _last_line(log: epath.Path) -> str:
    if not log.exists():
        return ""
    # splitlines also splits at the carriage returns of progress bars.
    lines = [line.strip() for line in _text(log).splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    return last if len(last) <= _LINE else f"{last[:_LINE]}…"


def _text(path: epath.Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}); restore it from a copy.") from None
