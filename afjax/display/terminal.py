"""Progress bars, messages, warnings and durations on a terminal."""

import contextlib
import os
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

PAGE_WIDTH = 120


def shows_bars() -> bool:
    """Whether to show progress bars.

    Terminals and notebooks show them, unless tqdm's environment variable ``TQDM_DISABLE`` is set. Files and pipes
    cannot show them.
    """
    return not os.environ.get("TQDM_DISABLE") and (sys.stderr.isatty() or "ipykernel" in sys.modules)


def progress_bar(
    title: str,
    total: int,
    *,
    unit: str,
    done: int = 0,
    scale: bool = False,
    delay: float = 0.0,
    leave: bool = True,
    disable: bool = False,
) -> Any:
    """Returns a tqdm bar on stderr, which prints nothing unless :func:`shows_bars`.

    The time left is estimated from the mean speed so far. The most recent speed would mislead, because some units take
    longer than others.

    Args:
      title: Text before the bar.
      total: Total number of units.
      unit: Name of one unit.
      done: Number of units that are already done.
      scale: Whether to abbreviate large numbers (k, M, G).
      delay: Seconds before the bar is shown. A shorter task shows no bar.
      leave: Whether the bar stays on the screen at its end.
      disable: Whether to show no bar, even on a terminal.
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
        smoothing=0,
        dynamic_ncols=True,
        delay=delay,
        leave=leave,
        disable=disable or not shows_bars(),
    )


def print_line(line: str) -> None:
    """Prints a line on stderr, above any progress bars.

    On a terminal, the line is wrapped by :func:`fitted`.
    """
    import tqdm

    tqdm.tqdm.write("\n".join(fitted(line, sys.stderr)), file=sys.stderr)


def fitted(line: str, stream: IO[str], indent: str = "  ") -> list[str]:
    """Wraps a line between words if the stream is a terminal.

    A terminal itself would wrap the line within words. Files and pipes get one line, so that it can be searched.

    Args:
      line: One line.
      stream: The stream that the line is for.
      indent: The text with which all lines except the first begin.
    """
    width = terminal_width(stream)
    return wrapped(line, width, indent) if width else [line]


def terminal_width(stream: IO[str]) -> int | None:
    """Returns a terminal's number of columns, or None for any other stream."""
    try:
        # A notebook's stream is not a terminal, but its file descriptor can be the terminal that Jupyter runs in.
        return (os.get_terminal_size(stream.fileno()).columns or None) if stream.isatty() else None
    except (OSError, ValueError, AttributeError):  # An object without a file descriptor.
        return None


def page_width() -> int:
    """Returns the width of pages on stdout.

    It is at most 120 columns, and not more than the terminal has.
    """
    return min(terminal_width(sys.stdout) or PAGE_WIDTH, PAGE_WIDTH)


def wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """Wraps text between words. Words that are longer than a line are not broken.

    Args:
      text: One line.
      width: The number of columns.
      indent: The text with which all lines except the first begin.

    Example:
      >>> wrapped("Nothing was changed; give --overwrite.", 24)
      ['Nothing was changed;', '  give --overwrite.']
    """
    return textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


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


@contextlib.contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Prints each of afjax's own warnings once, on one line like an error.

    Other warnings keep Python's format.
    """
    printed: set[str] = set()
    original = warnings.formatwarning

    def one_line(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if category is not UserWarning or not Path(filename).is_relative_to(Path(__file__).parents[1]):
            return original(message, category, filename, lineno, line)
        text = "\n".join([*fitted(f"afjax: {' '.join(str(message).split())}", sys.stderr), ""])
        if text in printed:
            return ""
        printed.add(text)
        return text

    warnings.formatwarning = one_line
    try:
        yield
    finally:
        warnings.formatwarning = original
