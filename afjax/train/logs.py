"""What a run tells while it goes: a progress bar, ``metrics.jsonl`` and TensorBoard files."""

import json
import sys
from pathlib import Path
from typing import Any


class RunLog:
    """Writes the scalars of one run to its folder and shows its progress.

    ``metrics.jsonl`` has an object a line with ``step`` and the scalars of that step. A resumed run first drops the
    lines behind the step it resumes from, so every step stands there once.

    Args:
      folder: The run's folder; it exists.
      title: Shown in front of the progress bar.
      num_steps: Steps of the whole run.
      first_step: Steps already done.
    """

    def __init__(self, folder: Path, title: str, num_steps: int, first_step: int) -> None:
        import tensorboardX
        import tqdm

        path = folder / "metrics.jsonl"
        kept = []
        if path.exists():
            kept = [line for line in path.read_text().splitlines() if _step_of(line) <= first_step]
        path.write_text("".join(f"{line}\n" for line in kept))
        self._file = path.open("a")
        self._board = tensorboardX.SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1)
        self._bar = tqdm.tqdm(
            total=num_steps,
            initial=first_step,
            desc=title,
            unit="step",
            file=sys.stderr,
            # Not a terminal, then a log file: a line every half minute.
            mininterval=0.5 if sys.stderr.isatty() else 30.0,
            dynamic_ncols=sys.stderr.isatty(),
        )
        self._shown: dict[str, str] = {}

    def advance(self, loss: float, rate: float) -> None:
        """Moves the bar by one step."""
        self._shown |= {"loss": f"{loss:.4f}", "lr": f"{rate:.2e}"}
        self._bar.set_postfix(self._shown, refresh=False)
        self._bar.update()

    def write(self, step: int, scalars: dict[str, Any]) -> None:
        """Records scalars of a step in both files."""
        self._file.write(json.dumps({"step": step, **scalars}) + "\n")
        self._file.flush()
        for name, value in scalars.items():
            self._board.add_scalar(name, value, step)

    def show(self, name: str, value: float) -> None:
        """Shows a number behind the bar from now on."""
        self._shown[name] = f"{value:.4f}"

    def close(self) -> None:
        self._bar.close()
        self._file.close()
        self._board.close()


def _step_of(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return float("inf")  # The line that a killed run was writing.
