"""Runs an ``afjax`` command that ends with the process that started it, for ``afjax sweep --isolate``.

The parent keeps the other end of this process's standard input open and writes nothing to it. If the parent is killed,
the operating system closes that end.
"""

import os
import sys
import threading

from afjax.cli.main import main

# The exit code if the parent has ended. No process reads it.
ORPHANED = 1


def _end_with_parent() -> None:
    # Read the file descriptor itself. A daemon thread that holds the lock of sys.stdin would break Python's shutdown.
    while os.read(0, 1):
        pass
    # End at once, so that the run's folder is free when the sweep is started again. The run resumes from its last
    # checkpoint.
    os._exit(ORPHANED)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.exit(main())
