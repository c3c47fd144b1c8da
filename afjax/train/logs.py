"""The logs of a run: stderr, ``metrics.jsonl`` and TensorBoard files."""

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from afjax.display.terminal import duration, print_line, progress_bar, shows_bars
from afjax.storage.paths import is_remote
from afjax.storage.writing import write_text

# Without a progress bar, the current step is printed after this many seconds without output.
QUIET_SECONDS = 60.0


class RunLog:
    """Writes a run's scalars to its folder and shows its progress.

    Each evaluation prints one line to stderr. A terminal or notebook also shows a progress bar. Without a bar, these
    lines include the elapsed and the remaining time, and the step and its loss are printed after ``QUIET_SECONDS``
    without output.

    Each line of ``metrics.jsonl`` is an object with ``step`` and that step's scalars. A resumed run first drops the
    lines after its checkpoint's step, so nothing is recorded twice.

    Because object stores do not support appending, each :meth:`flush` rewrites both files there. A killed run loses the
    scalars since the last flush, but the resumed run writes them again.

    Args:
      folder: The run's folder, which must exist.
      title: Shown before the progress bar.
      num_steps: Total number of steps.
      first_step: Number of steps already done.
    """

    def __init__(self, folder: epath.Path, title: str, num_steps: int, first_step: int) -> None:
        lines = _RewrittenLines if is_remote(folder) else _AppendedLines
        self._lines = lines(folder / "metrics.jsonl", first_step)
        self._board = _Board(folder / "tensorboard", first_step)
        self._bar = progress_bar(title, num_steps, unit="step", done=first_step)
        self._title, self._num_steps, self._first_step, self._step = title, num_steps, first_step, first_step
        self._begun = self._last_line = time.monotonic()
        self._compiling = 0.0

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Shows that a step is compiling, in the progress bar or as a line.

        Compile time does not count in the estimate of the remaining time.
        """
        if not shows_bars():
            self.say(f"compiling {what}")
        begun = time.monotonic()
        with self._described(f"compiling {what}"):
            yield
        self._compiling += time.monotonic() - begun
        # Exclude the time from the bar's own estimate, too.
        self._bar.unpause()

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Shows in the progress bar that the dev rows are being evaluated."""
        with self._described("evaluating"):
            yield

    @contextlib.contextmanager
    def _described(self, activity: str) -> Iterator[None]:
        self._bar.set_description(f"{self._title}, {activity}")
        try:
            yield
        finally:
            self._bar.set_description(self._title, refresh=False)

    def advance(self, loss: float) -> None:
        """Advances the progress bar by one step and shows the step's loss."""
        self._step += 1
        self._bar.set_postfix({"loss": f"{loss:.4f}"}, refresh=False)
        self._bar.update()
        if not shows_bars() and time.monotonic() - self._last_line >= QUIET_SECONDS:
            self.say(f"step {self._step:,} of {self._num_steps:,}, loss {loss:.4f}{self._times()}")

    def write(self, step: int, scalars: dict[str, Any]) -> None:
        """Records a step's scalars in both files."""
        self._lines.write(json.dumps({"step": step, **scalars}) + "\n")
        self._board.write(step, scalars)

    def flush(self) -> None:
        """Writes buffered scalars to the files.

        Call this before saving a checkpoint, or scalars may be lost.
        """
        self._lines.flush()
        self._board.flush()

    def say(self, text: str) -> None:
        """Prints one line, starting with the run's title."""
        print_line(f"{self._title}: {text}")
        self._last_line = time.monotonic()

    def evaluated(self, step: int, scores: Mapping[str, float], best: Mapping[str, float], main_metric: str) -> None:
        """Prints the result of an evaluation.

        Args:
          step: Number of finished steps.
          scores: The dev metrics to print, in order.
          best: The dev metrics of the best evaluation so far, and its ``step``.
          main_metric: The metric that selects the best parameters.
        """
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        best_step = int(best["step"])
        compared = "best so far" if best_step == step else f"best {best[main_metric]:.4f} at step {best_step:,}"
        times = "" if shows_bars() else self._times()
        self.say(f"step {step:,} of {self._num_steps:,}, dev {numbers} ({compared}){times}")

    def _times(self) -> str:
        """Formats the elapsed time and, if steps remain, the estimated remaining time."""
        elapsed = time.monotonic() - self._begun
        text = f"; {duration(elapsed)} elapsed"
        if self._first_step < self._step < self._num_steps:
            speed = (elapsed - self._compiling) / (self._step - self._first_step)
            text += f", about {duration(speed * (self._num_steps - self._step))} left"
        return text

    def finished(self) -> None:
        """Prints the time since the run began or was resumed."""
        elapsed, since = duration(time.monotonic() - self._begun), " since it was resumed" if self._first_step else ""
        compiling = duration(self._compiling)
        self.say(f"finished in {elapsed}{since}, including {compiling} for the first step of each length")

    def close(self) -> None:
        self._bar.close()
        with contextlib.closing(self._board), contextlib.closing(self._lines):
            pass


class _AppendedLines:
    """A text file on a local disk. Every line is flushed immediately."""

    def __init__(self, path: epath.Path, first_step: int) -> None:
        if path.exists():
            write_text(path, "".join(_lines_until(path, first_step)))
        self._file = path.open("a")

    def write(self, line: str) -> None:
        self._file.write(line)
        self._file.flush()

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._file.close()


class _RewrittenLines:
    """A text file on an object store. Every flush rewrites it."""

    def __init__(self, path: epath.Path, first_step: int) -> None:
        self._path = path
        self._lines = _lines_until(path, first_step) if path.exists() else []

    def write(self, line: str) -> None:
        self._lines.append(line)

    def flush(self) -> None:
        write_text(self._path, "".join(self._lines))

    def close(self) -> None:
        self.flush()


class SilentLog(RunLog):
    """A log that does nothing, for finished runs and for all hosts except the first."""

    def __init__(self) -> None:
        pass

    def _ignore(self, *_: Any, **__: Any) -> None:
        pass

    @contextlib.contextmanager
    def _ignore_block(self, *_: Any, **__: Any) -> Iterator[None]:
        yield

    compiling = evaluating = _ignore_block
    advance = write = flush = say = evaluated = finished = close = _ignore


class _Board:
    """Writes a TensorBoard file from the calling thread.

    tensorboardX's SummaryWriter writes from a background thread. If the disk is full, the run would wait for that
    thread forever.
    """

    def __init__(self, folder: epath.Path, first_step: int) -> None:
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2

        self._event, self._scalar = event_pb2.Event, summary.scalar
        # EventsWriter can only write to a local disk.
        self._local = tempfile.TemporaryDirectory() if is_remote(folder) else None
        self._folder = folder
        if self._local is None:
            folder.mkdir(parents=True, exist_ok=True)
        prefix = Path(self._local.name if self._local else folder) / "events"
        self._writer = event_file_writer.EventsWriter(str(prefix), f".{first_step}")
        # Make TensorBoard discard events after first_step that were logged before the run was resumed.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.write_event(self._event(step=first_step + 1, wall_time=time.time(), session_log=start))

    def write(self, step: int, scalars: dict[str, Any]) -> None:
        for name, value in scalars.items():
            event = self._event(step=step, wall_time=time.time(), summary=self._scalar(name, value))
            self._writer.write_event(event)

    def flush(self) -> None:
        self._writer.flush()
        self._copy()

    def close(self) -> None:
        self._writer.close()
        with self._local or contextlib.nullcontext():
            self._copy()

    def _copy(self) -> None:
        """Copies the temporary folder to the object store."""
        if self._local is not None:
            for file in Path(self._local.name).iterdir():
                (self._folder / file.name).write_bytes(file.read_bytes())


def _lines_until(path: epath.Path, last_step: int) -> list[str]:
    """Reads the lines up to and including a step, with line endings."""
    return [f"{line}\n" for line in path.read_text().splitlines() if _step_of(line) <= last_step]


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # The run was killed while writing this line.
