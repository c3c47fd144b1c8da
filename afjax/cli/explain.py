"""Converts exceptions that the user can act on to an exit code and a message."""

import contextlib
import signal
from collections.abc import Iterator

from afjax.errors import (
    HOST_LOST,
    PREEMPTED,
    OtherHostError,
    PreemptionError,
    TemporaryError,
    UserError,
    is_out_of_memory,
)
from afjax.storage.paths import client_error_text, error_text, is_temporary


def explain(error: BaseException) -> tuple[int, str] | None:
    """Converts an exception that the user can act on to an exit code and a message.

    Returns None for other exceptions, such as bugs, whose traceback the caller should show.
    """
    if isinstance(error, PreemptionError):
        return PREEMPTED, str(error)
    if isinstance(error, UserError):
        # Join lines, because the message can contain a library's multi-line message.
        message = " ".join(str(error).split())
        if isinstance(error, TemporaryError):
            return 1, message
        # The message may give advice for a permanent error.
        retry = "The network or Google Cloud Storage failed, so run the same command again first."
        return (1, f"{message} {retry}") if is_temporary(error) else (2, message)
    if isinstance(error, OtherHostError):
        return HOST_LOST, str(error)
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE, "The program reading this command's output has exited."
    if isinstance(error, Exception) and (text := client_error_text(error)):
        return 1 if is_temporary(error) else 2, text
    if isinstance(error, OSError):
        return 2, f"{error.filename or 'A file'} cannot be used ({error_text(error)})."
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; run the same command again to resume from the last checkpoint."
    return None


@contextlib.contextmanager
def explained_memory_error() -> Iterator[None]:
    """Converts JAX's out-of-memory error to a UserError with settings to change.

    Raises:
      UserError: The computation in the block does not fit in the devices' memory.
    """
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            f"The run does not fit in the devices' memory ({error_text(error)}); reduce train.batch_size, or set "
            "remat=layers, trunk_dtype=bfloat16 or mesh.fsdp."
        ) from error
