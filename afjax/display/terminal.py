"""Terminal output: progress bars, messages, warnings and durations."""

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

    They are shown on terminals and in notebooks unless ``TQDM_DISABLE``, tqdm's environment variable, is set.
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
    """Creates a tqdm bar on stderr that is hidden unless :func:`shows_bars`.

    The remaining time is estimated from the mean speed so far, because units take different amounts of time and the
    most recent speed would be misleading.

    Args:
      title: Text before the bar.
      total: Total number of units.
      unit: The unit's name in the singular.
      done: Number of units completed before the bar starts.
      scale: Whether to abbreviate large numbers (k, M, G).
      delay: Seconds before the bar appears. Shorter tasks show no bar.
      leave: Whether to leave the finished bar on the screen.
      disable: Whether to hide the bar even on a terminal.
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
    """Prints a line to stderr above any progress bars, wrapped by :func:`fitted`."""
    import tqdm

    tqdm.tqdm.write("\n".join(fitted(line, sys.stderr)), file=sys.stderr)


def fitted(line: str, stream: IO[str], indent: str = "  ") -> list[str]:
    """Wraps a line at word boundaries if the stream is a terminal.

    A terminal would otherwise break words. Files and pipes get a single line, which is easier to search.

    Args:
      line: One line.
      stream: The output stream.
      indent: Prefix of all lines except the first.
    """
    width = terminal_width(stream)
    return wrapped(line, width, indent) if width else [line]


def terminal_width(stream: IO[str]) -> int | None:
    """Returns the terminal's width in columns.

    Returns None if the stream is not a terminal.
    """
    try:
        # A notebook's stream is not a terminal, but its file descriptor can be the terminal that Jupyter runs in.
        return (os.get_terminal_size(stream.fileno()).columns or None) if stream.isatty() else None
    except (OSError, ValueError, AttributeError):  # An object without a file descriptor.
        return None


def page_width() -> int:
    """Returns the page width for stdout: the terminal's width, up to 120 columns."""
    return min(terminal_width(sys.stdout) or PAGE_WIDTH, PAGE_WIDTH)


def wrapped(text: str, width: int, indent: str = "  ") -> list[str]:
    """Wraps text at word boundaries without breaking long words.

    Args:
      text: One line.
      width: The width in columns.
      indent: Prefix of all lines except the first.

    Example:
      >>> wrapped("Nothing was changed; pass --overwrite.", 24)
      ['Nothing was changed;', '  pass --overwrite.']
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
    """Prints each afjax warning once, as a single line like an error message.

    Warnings from other packages keep Python's format.
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
