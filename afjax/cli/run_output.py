"""Writes each run's output to its own log if several runs train in one process."""

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


class RunOutput(io.TextIOBase):
    """A stream that writes to the log of the run whose code is running, and to stderr between runs.

    Libraries create log handlers that keep ``sys.stderr``. A handler that is created during one run keeps this stream,
    so it stays usable after that run, and later messages go to the log of their own run.
    """

    def __init__(self) -> None:
        self._stderr = self._target = sys.stderr

    @contextlib.contextmanager
    def to(self, log: Path) -> Iterator[None]:
        """Appends the block's stdout and stderr to a file, line by line."""
        log.parent.mkdir(parents=True, exist_ok=True)
        with (
            log.open("a", buffering=1, encoding="utf-8") as file,
            self._writing_to(file),
            contextlib.redirect_stdout(self),
            contextlib.redirect_stderr(self),
        ):
            yield

    @contextlib.contextmanager
    def _writing_to(self, target: TextIO) -> Iterator[None]:
        self._target = target
        try:
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
