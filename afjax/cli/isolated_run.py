"""Runs an ``afjax`` command that exits with its parent process.

This module is used by ``afjax sweep --isolate``. The parent holds the other end of this process's standard input open
and never writes to it. If the parent is killed, the operating system closes that end.
"""

import os
import sys
import threading

from afjax.cli.main import main

# The exit code if the parent has exited. No process receives it.
ORPHANED = 1


def _end_with_parent() -> None:
    # Read the file descriptor, because a daemon thread that holds the lock of sys.stdin would break Python's shutdown.
    while os.read(0, 1):
        pass
    # Exit at once to release the run's folder for a restarted sweep. The run resumes from its last checkpoint.
    os._exit(ORPHANED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main())
