"""Writes the output of several runs in one process to one log per run."""

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path


class RunOutput(io.TextIOBase):
    """A stream that writes to the active run's log, or to stderr between runs.

    Libraries create log handlers that keep a reference to ``sys.stderr``. A handler created during one run keeps a
    reference to this stream. The handler therefore stays usable after that run, and later messages go to the log of the
    run that emits them.
    """

    def __init__(self) -> None:
        self._stderr = self._target = sys.stderr

    @contextlib.contextmanager
    def to(self, log: Path) -> Iterator[None]:
        """Appends the block's stdout and stderr to a file, line by line."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", buffering=1, encoding="utf-8") as file:
            self._target = file
            try:
                with contextlib.redirect_stdout(self), contextlib.redirect_stderr(self):
                    yield
            finally:
                self._target = self._stderr

    def write(self, text: str) -> int:
        return self._target.write(text)

    def flush(self) -> None:
        self._target.flush()

    def isatty(self) -> bool:
        return self._target.isatty()

    def fileno(self) -> int:
        return self._target.fileno()

    def writable(self) -> bool:
        return True
