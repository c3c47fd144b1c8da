"""Exceptions for user errors and preempted runs, and the exit codes of commands."""

import difflib
from collections.abc import Iterable

# Exit codes of commands. 75 is EX_TEMPFAIL in sysexits.h; 76 is the next number.
PREEMPTED = 75
HOST_LOST = 76


class PreemptionError(BaseException):
    """A run was preempted and has saved everything needed to resume it.

    Like KeyboardInterrupt, this is not an Exception. A signal handler can raise it in any code, including code that
    catches all Exceptions of a library.
    """


class OtherHostError(Exception):
    """Another host of this run has crashed. Its log has the traceback."""


class UserError(ValueError):
    """A mistake in a file, flag, config or argument.

    The message states the invalid value, the allowed values and a remedy. For an error in a file, it includes the path
    and the line. Commands print the message and exit with code 2.

    Example:
      >>> from afjax import TaskConfig
      >>> TaskConfig(name="rte", kind="classificaton")
      Traceback (most recent call last):
          ...
      afjax.errors.UserError: task.kind is "classificaton"; allowed: ... Did you mean "classification"?
    """


class TemporaryError(UserError):
    """Cloud Storage failed in a way that may not happen again.

    Commands exit with code 1, so that launch scripts start them again.
    """


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error of JAX says that a computation does not fit in a device's memory."""
    return "RESOURCE_EXHAUSTED" in str(error)


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """Returns ``' Did you mean "x"?'`` for the nearest allowed name, or ``''``.

    The given name itself is never suggested.
    """
    nearest = difflib.get_close_matches(given, [name for name in allowed if name != given], n=1, cutoff=0.5)
    return f' Did you mean "{nearest[0]}"?' if nearest else ""
