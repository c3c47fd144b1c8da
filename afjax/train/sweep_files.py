"""The files of a sweep, in its folder and in the folders of its runs."""

from etils import epath

from afjax.errors import UserError
from afjax.storage.paths import error_text

# The sweep's settings, and its table of runs.
SWEEP_RECORD = "sweep.json"
RUNS_TABLE = "sweep.csv"
# The output of a sweep's run, in the run's folder.
RUN_LOG = "log.txt"


def last_log_line(log: epath.Path) -> str:
    """Returns the last line of a run's log that is not blank, or an empty string if there is none.

    Raises:
      UserError: The log cannot be read.
    """
    if not log.exists():
        return ""
    try:
        text = log.read_bytes().decode("utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{log} cannot be read ({error_text(error)}); restore it from a copy.") from None
    # splitlines also splits at the carriage returns of progress bars.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
