"""Progress bars, messages and durations on a terminal."""

import sys
from typing import Any


def shows_bars() -> bool:
    """Whether stderr can show progress bars: it is a terminal or a notebook, not a file or a pipe."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def progress_bar(title: str, total: int, *, unit: str, done: int = 0, scale: bool = False) -> Any:
    """Returns a tqdm bar on stderr, which prints nothing unless :func:`shows_bars`.

    Args:
      title: Text before the bar.
      total: Total number of units.
      unit: Name of one unit.
      done: Number of units that are already done.
      scale: Whether to abbreviate large numbers (k, M, G).
    """
    import tqdm

    return tqdm.tqdm(
        total=total,
        initial=done,
        desc=title,
        unit=unit,
        unit_scale=scale,
        file=sys.stderr,
        mininterval=0.5,
        dynamic_ncols=True,
        disable=not shows_bars(),
    )


def print_line(line: str) -> None:
    """Prints a line on stderr, above any progress bars."""
    import tqdm

    tqdm.tqdm.write(line, file=sys.stderr)


def duration(seconds: float) -> str:
    """Formats a duration in its two largest units.

    Example:
      >>> duration(3725)
      '1 h 2 min'
    """
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60} min"
