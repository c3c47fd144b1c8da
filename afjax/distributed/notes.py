"""Notes to the user."""

from afjax.display.terminal import print_line
from afjax.distributed.hosts import is_first_host


def note(sentence: str) -> None:
    """Prints one line to stderr, on the first host only."""
    if is_first_host():
        print_line(f"Note: {sentence}")
