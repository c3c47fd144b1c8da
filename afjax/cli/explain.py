"""Translates exceptions that the user can act on into an exit code and a message."""

import contextlib
import signal
from collections.abc import Iterator

from afjax.errors import PREEMPTED, PreemptionError, UserError
from afjax.storage.paths import client_errors


def explain(error: BaseException) -> tuple[int, str] | None:
    """Translates an exception into an exit code and a message.

    Returns None for all other exceptions, such as those caused by bugs. Callers then show the traceback.
    """
    if isinstance(error, PreemptionError):
        return PREEMPTED, str(error)
    if isinstance(error, UserError):
        # Make it one line, because it can contain a library's message of several lines.
        return 2, " ".join(str(error).split())
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE, "The program that reads this command's output has exited."
    if isinstance(error, OSError):
        return 2, f"{error.filename or 'A file'} cannot be used ({error.strerror or error})."
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; run the same command again to resume from the last checkpoint."
    if isinstance(error, client_errors()):
        message = " ".join(str(error).split()) or type(error).__name__
        # The user can correct credentials, permissions and names. Other errors may be temporary.
        code = 2 if getattr(error, "code", None) in (401, 403, 404) else 1
        return code, f"Google Cloud Storage failed ({message}); try again."
    return None


@contextlib.contextmanager
def explained_memory_error() -> Iterator[None]:
    """Converts JAX's out-of-memory error to a UserError that names the settings to change.

    Raises:
      UserError: The computation in the block does not fit the devices' memory.
    """
    import jax

    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0]
        if not reason.startswith("RESOURCE_EXHAUSTED"):
            raise
        raise UserError(
            f"The run does not fit the devices' memory ({reason}); use fewer rows (train.batch_size), "
            "remat=layers, trunk_dtype=bfloat16, or mesh.fsdp."
        ) from error
