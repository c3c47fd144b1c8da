"""The logs of a run: lines and a progress bar on stderr, ``metrics.jsonl`` and TensorBoard files."""

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from etils import epath

from afjax.display.terminal import print_line, progress_bar, shows_bars
from afjax.storage.paths import is_remote
from afjax.storage.writing import write_text

# Without a progress bar, a line about the step follows after so many seconds without a line.
QUIET_SECONDS = 60.0


class RunLog:
    """Writes the scalars of one run to its folder and shows its progress.

    Evaluations get a line each on stderr. A terminal or notebook also has a progress bar. Elsewhere a line with the
    step and the loss follows after ``QUIET_SECONDS`` without any other.

    ``metrics.jsonl`` has an object a line with ``step`` and the scalars of that step. A resumed run first drops the
    lines behind the step it resumes from, so every step stands there once.

    Object stores have no appending: there, both files are written whole with each :meth:`flush`, and a run that is
    killed loses what came after the last one, which a resumed run writes again.

    Args:
      folder: The run's folder; it exists.
      title: Shown in front of the progress bar.
      num_steps: Steps of the whole run.
      first_step: Steps already done.
    """

    def __init__(self, folder: epath.Path, title: str, num_steps: int, first_step: int) -> None:
        lines = _RewrittenLines if is_remote(folder) else _AppendedLines
        self._lines = lines(folder / "metrics.jsonl", first_step)
        self._board = _Board(folder / "tensorboard", first_step)
        self._bar = progress_bar(title, num_steps, unit="step", done=first_step)
        self._num_steps, self._step, self._last_line = num_steps, first_step, time.monotonic()
        self._title = title
        self._shown: dict[str, str] = {}

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        """Shows the current activity before the bar, or prints it as a line without a bar."""
        if not shows_bars():
            self.say(what)
        self._bar.set_description(f"{self._title}, {what}")
        yield
        self._bar.set_description(self._title, refresh=False)

    def advance(self, loss: float, rate: float) -> None:
        """Moves the bar by one step."""
        self._step += 1
        self._shown |= {"loss": f"{loss:.4f}", "lr": f"{rate:.2e}"}
        self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update()
        if not shows_bars() and time.monotonic() - self._last_line >= QUIET_SECONDS:
            self.say(f"step {self._step} of {self._num_steps}, loss {loss:.4f}")

    def write(self, step: int, scalars: dict[str, Any]) -> None:
        """Records scalars of a step in both files."""
        self._lines.write(json.dumps({"step": step, **scalars}) + "\n")
        self._board.write(step, scalars)

    def flush(self) -> None:
        """Puts all that was written where it stays; in front of a checkpoint, so that no step behind it is lost."""
        self._lines.flush()
        self._board.flush()

    def say(self, text: str) -> None:
        """Prints a line about the run."""
        print_line(f"{self._title}: {text}")
        self._last_line = time.monotonic()

    def evaluated(self, step: int, scores: Mapping[str, float], best: Mapping[str, float], main_metric: str) -> None:
        """Prints the line of an evaluation.

        Args:
          step: After which step.
          scores: The dev metrics to print, in order.
          best: The dev metrics of the best evaluation so far and its ``step``.
          main_metric: The metric that decides.
        """
        numbers = ", ".join(f"{name} {value:.4f}" for name, value in scores.items())
        compared = "best so far" if best["step"] == step else f"best {best[main_metric]:.4f} at step {best['step']:.0f}"
        self._shown[main_metric] = f"{scores[main_metric]:.4f}"
        self.say(f"step {step} of {self._num_steps}, dev {numbers} ({compared})")

    def close(self) -> None:
        self._bar.close()
        with contextlib.closing(self._board), contextlib.closing(self._lines):
            pass


class _AppendedLines:
    """A file of lines on a disk, which has each as soon as it is written."""

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
    """A file of lines on an object store."""

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
    """The log of hosts other than the first: nothing."""

    def __init__(self) -> None:
        pass

    @contextlib.contextmanager
    def during(self, what: str) -> Iterator[None]:
        yield

    def advance(self, loss: float, rate: float) -> None:
        pass

    def write(self, step: int, scalars: dict[str, Any]) -> None:
        pass

    def flush(self) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    def evaluated(self, step: int, scores: Mapping[str, float], best: Mapping[str, float], main_metric: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Board:
    """A TensorBoard file, written by this thread.

    tensorboardX's own SummaryWriter hands events to a thread, and a run whose disk is full then waits for it for ever.
    """

    def __init__(self, folder: epath.Path, first_step: int) -> None:
        from tensorboardX import event_file_writer, summary
        from tensorboardX.proto import event_pb2

        self._event, self._scalar = event_pb2.Event, summary.scalar
        # EventsWriter writes to disks alone.
        self._local = tempfile.TemporaryDirectory() if is_remote(folder) else None
        self._folder = folder
        if self._local is None:
            folder.mkdir(parents=True, exist_ok=True)
        prefix = Path(self._local.name if self._local else folder) / "events"
        self._writer = event_file_writer.EventsWriter(str(prefix), f".{first_step}")
        # Of an earlier file, TensorBoard drops the steps from this one on.
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
        """Writes what is in the temporary folder to the object store."""
        if self._local is not None:
            for file in Path(self._local.name).iterdir():
                (self._folder / file.name).write_bytes(file.read_bytes())


def _lines_until(path: epath.Path, last_step: int) -> list[str]:
    """The lines up to a step, each with its end."""
    return [f"{line}\n" for line in path.read_text().splitlines() if _step_of(line) <= last_step]


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # The line that a killed run was writing.
