"""Progress of ``afjax sweep``: finished runs, bars for active runs, and time left."""

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.cli.sweep_plan import Run, Sweep
from afjax.cli.sweep_results import Outcome, score_text, write_tables
from afjax.display.terminal import duration, print_line, progress_bar, shows_bars

# Without progress bars, the active runs' steps are printed after this many seconds without output.
QUIET_SECONDS = 60.0


class SweepProgress:
    """Reports a sweep's runs on stderr, and writes its CSV files after each run.

    Args:
      sweep: The sweep.
      own: The runs of this host.
      workdir: The sweep's folder.
      outcomes: ``{run's name: outcome}`` for the runs that are already finished.
      slots: The number of runs that train at a time.

    Attributes:
      outcomes: ``{run's name: outcome}`` for all finished and failed runs.
    """

    def __init__(
        self, sweep: Sweep, own: Sequence[Run], workdir: Path, outcomes: Mapping[str, Outcome], slots: int
    ) -> None:
        self.outcomes = dict(outcomes)
        self._sweep, self._own, self._workdir, self._slots = sweep, own, workdir, slots
        self._begun: dict[str, float] = {}
        self._seconds: list[float] = []
        # For each active run: its bar, its number of finished steps, and its total number of steps.
        self._active: dict[str, tuple[Any, int, int]] = {}
        self._last_line = 0.0
        finished = sum(run.name in outcomes for run in own)
        self._total = progress_bar("sweep", len(own), unit="run", done=finished, leave=False)
        for run in own:
            if run.name in outcomes:
                print_line(f"{self._title(run)}: {score_text(outcomes[run.name])} (done before)")

    def close(self) -> None:
        """Removes the progress bars."""
        for bar in [*(bar for bar, *_ in self._active.values()), self._total]:
            bar.close()

    def started(self, run: Run) -> None:
        """Records the start of a run."""
        self._begun[run.name] = self._last_line = time.monotonic()

    def trained(self, run: Run, done: int, num_steps: int) -> None:
        """Shows a run's progress.

        Args:
          run: The run.
          done: The number of finished steps.
          num_steps: The total number of steps, which changes if a fusion trains its adapters first.
        """
        bar, _, earlier_total = self._active.get(run.name) or (None, 0, num_steps)
        if bar is None:
            bar = progress_bar(self._title(run), num_steps, unit="step", done=done, leave=False)
        if earlier_total != num_steps or bar.n > done:
            bar.initial = 0
            bar.reset(num_steps)
        bar.update(done - bar.n)
        self._active[run.name] = bar, done, num_steps
        if not shows_bars() and time.monotonic() - self._last_line >= QUIET_SECONDS:
            self._last_line = time.monotonic()
            by_name = {run.name: run for run in self._sweep.runs}
            for name, (_, finished, total) in self._active.items():
                print_line(f"{self._title(by_name[name])}: step {finished:,} of {total:,}")

    def ended(self, run: Run, outcome: Outcome, failure: str) -> None:
        """Prints a run's outcome and the estimated time left, and writes the CSV files.

        Args:
          run: The run.
          outcome: The run's outcome.
          failure: A description of the failure; empty if the run finished.
        """
        if run.name in self._active:
            self._active.pop(run.name)[0].close()
        self._last_line = time.monotonic()
        elapsed = self._last_line - self._begun.get(run.name, self._last_line)
        self.outcomes[run.name] = outcome
        waiting = sum(run.name not in self.outcomes for run in self._own)
        # Failed runs may end early, so the time estimate ignores them.
        self._seconds += [] if failure else [elapsed]
        remaining = ""
        if self._seconds and waiting:
            rounds = max(1.0, waiting / self._slots)
            remaining = f"; about {duration(statistics.mean(self._seconds) * rounds)} left"
        print_line(f"{self._title(run)}: {failure or score_text(outcome)} ({duration(elapsed)}{remaining})")
        write_tables(self._sweep, self.outcomes, self._workdir)
        self._total.update()

    def _title(self, run: Run) -> str:
        return f"[{self._sweep.runs.index(run) + 1}/{len(self._sweep.runs)}] {run.title}"
