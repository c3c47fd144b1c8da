"""The one exception that means "the caller can put this right"."""

import difflib
from collections.abc import Iterable

# Exit codes of commands; that of a temporary failure, by sysexits.h, and the next one.
PREEMPTED = 75
HOST_LOST = 76


class PreemptionError(Exception):
    """A run was told to stop, and has saved all that it needs to go on; says so in a sentence."""


class UserError(ValueError):
    """A mistake in a file, flag, config or argument.

    The message is one sentence that says what was given, what is allowed and what to do; where there
    is a file it names the file and the line. Commands print it and exit with code 2.
    """


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Returns ``' Did you mean "x"?'`` for the nearest allowed name, or an empty string.

    The given name itself is never offered: the user has tried it already.
    """
    nearest = difflib.get_close_matches(given, [name for name in allowed if name != given], n=1, cutoff=0.5)
    return f' Did you mean "{nearest[0]}"?' if nearest else ""
