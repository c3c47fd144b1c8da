"""Runs a hostile case in a copy of the base folder, captures its output, and detects changed files."""

import contextlib
import dataclasses
import io
import os
import re
import resource
import shutil
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from hostile_case import OUTSIDE, Case

# All outcomes in report order, worst first.
OUTCOMES = (
    "impossible",
    "timeout",
    "killed",
    "traceback",
    "accepted",
    "stray write",
    "refused",
    "warned",
    "accepted as expected",
)
PASSED = ("refused", "warned", "accepted as expected")
TIMEOUT = 60


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of running a case.

    Attributes:
      id: The case's id.
      outcome: One of ``OUTCOMES``.
      detail: The message, the last lines of a traceback, or the files that were written.
      seconds: The case's duration.
    """

    id: str
    outcome: str
    detail: str
    seconds: float

    @property
    def passed(self) -> bool:
        return self.outcome in PASSED


class _TimeoutError(BaseException):
    """Raised when a case times out. It is not an ``Exception``, so that afjax's handlers do not catch it."""


def run_case(case: Case, base: Path, place: Path, *, timeout: float = TIMEOUT) -> Outcome:
    """Runs a case in this process.

    Args:
      case: The case.
      base: The base folder from ``hostile_base.prepare``.
      place: An empty folder. The sandbox is two levels below it, so that paths that leave the sandbox stay inside it.
      timeout: Limit in seconds. It interrupts only Python code.
    """
    sandbox, temporary = place / "outer" / "sandbox", place / "temporary"
    sandbox.mkdir(parents=True)
    for part in base.iterdir():
        if case.needs(part.name):
            (shutil.copytree if part.is_dir() else shutil.copy2)(part, sandbox / part.name)
    temporary.mkdir()
    (place / "outer" / "victim").mkdir()
    (place / "outer" / "victim" / "letter.txt").write_text("not afjax's\n")
    try:
        for damage in case.damage:
            damage(sandbox)
    except (OSError, ValueError, KeyError) as error:  # Other versions of afjax may not write the file.
        return Outcome(case.id, "impossible", f"the damage cannot be done: {type(error).__name__}: {error}", 0.0)
    before = _snapshot(place)
    started = time.monotonic()
    output = io.StringIO()
    code: int | None = 0
    error = ""
    kind = ""
    with (
        contextlib.chdir(sandbox),
        _temporary_folder(temporary),
        _file_limit(case.max_file_bytes),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
        warnings.catch_warnings(record=True) as caught,
        _alarm(timeout),
    ):
        warnings.simplefilter("always")
        try:
            code = _run(case)
        except _TimeoutError:
            kind = "timeout"
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException as raised:
            if case.call and type(raised).__name__ == "UserError":
                code, error = 2, str(raised)
            elif isinstance(raised, KeyboardInterrupt):
                raise
            else:
                kind, error = "traceback", _last_lines(raised)
    seconds = time.monotonic() - started
    changes = _changes(before, _snapshot(place)) + _strays()
    text = output.getvalue() + "".join(f"Warning: {each.message}\n" for each in caught if each.category is UserWarning)
    if case.call:
        text += error
    kind, detail = _judge(case, kind, code, text, error, changes)
    return Outcome(case.id, kind, detail, round(seconds, 2))


def _run(case: Case) -> int:
    if case.call:
        case.call()
        return 0
    from afjax.cli.main import main

    return main(case.argv)


def _judge(case: Case, kind: str, code: int | None, text: str, error: str, changes: list[str]) -> tuple[str, str]:
    """Classifies a case's outcome, and returns it with its detail."""
    shown = f" (and changed: {', '.join(changes[:4])})" if changes else ""
    if kind:
        return kind, (error or text[-400:]) + shown
    if "Traceback (most recent call last)" in text:
        return "traceback", text[-600:] + shown
    if code == 0:
        if case.wanted in ("accepted", "clean"):
            return "accepted as expected", ""
        if case.wanted == "warned" and re.search(
            r"[Ww]arning: |^afjax: |^Note: |is damaged|cannot be read", text, re.MULTILINE
        ):
            return "warned", text[-400:]
        return "accepted", text[-300:] + shown
    lines = text.rstrip("\n").split("\n")
    says = (
        bool(error) if case.call else bool(re.match(r"afjax(: | .*: error: )", lines[-1])) or case.argv[1] == "verify"
    )
    if code != 2 or not says:
        return "traceback", f"exit code {code} with: {text[-400:]}" + shown
    if case.wanted == "accepted":
        return "traceback", f"refused, though the input is good: {lines[-1]}"
    if changes and not case.begins:
        return "stray write", f"{', '.join(changes[:6])} after: {lines[-1]}"
    return "refused", lines[-1][:600]


def _last_lines(error: BaseException) -> str:
    """Formats an exception with its innermost frame in afjax."""
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if f"{os.sep}afjax{os.sep}" in frame.filename
    ]
    place = f"{frames[-1].filename.rpartition('/afjax/')[2]}:{frames[-1].lineno}" if frames else "outside of afjax"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} [{place}]"


# Detection of changed files.


Snapshot = dict[str, tuple[int, ...]]


def _snapshot(folder: Path) -> Snapshot:
    """Returns the mode of each folder below ``folder``, and the mode, size, time, inode and device of each file."""
    found: Snapshot = {}
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                name = os.path.relpath(entry.path, folder)
                if entry.is_dir(follow_symlinks=False):
                    found[name] = (about.st_mode,)
                    pending.append(entry.path)
                else:
                    found[name] = (about.st_mode, about.st_size, about.st_mtime_ns, about.st_ino, about.st_rdev)
    return found


def _changes(before: Snapshot, after: Snapshot) -> list[str]:
    """Lists ``+name`` for new, ``-name`` for removed and ``~name`` for changed files."""
    names = sorted(before.keys() | after.keys())
    signs = {name: "+" if name not in before else "-" if name not in after else "~" for name in names}
    return [f"{signs[name]}{name}" for name in names if before.get(name) != after.get(name)]


def _strays() -> list[str]:
    """Removes and reports a file that a case wrote to ``OUTSIDE``, the absolute path in hostile names."""
    outside = Path(OUTSIDE)
    if not os.path.lexists(outside):
        return []
    if outside.is_dir() and not outside.is_symlink():
        shutil.rmtree(outside)
    else:
        outside.unlink()
    return [f"+{OUTSIDE}"]


# Test environment of a case.


@contextlib.contextmanager
def _temporary_folder(folder: Path) -> Iterator[None]:
    """Makes ``tempfile`` use the folder, so that leftover files are detected."""
    before = tempfile.tempdir
    tempfile.tempdir = str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def _file_limit(num_bytes: int | None) -> Iterator[None]:
    """Makes writes beyond a file size fail with EFBIG. A full disk would raise ENOSPC instead."""
    if num_bytes is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises ``_TimeoutError`` in the main thread after the given time."""

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise _TimeoutError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
