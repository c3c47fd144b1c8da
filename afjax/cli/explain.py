"""Exceptions that the user can do something about, as an exit code and a sentence."""

import signal

from afjax.errors import PREEMPTED, PreemptionError, UserError
from afjax.storage.paths import client_errors


def explain(error: BaseException) -> tuple[int, str] | None:
    """Exit code and sentence of what the user can put right, or did; None for any other exception."""
    if isinstance(error, PreemptionError):
        return PREEMPTED, str(error)
    if isinstance(error, UserError):
        # One line, whatever a library's message inside looks like.
        return 2, " ".join(str(error).split())
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE, "The reader of what this command prints has ended."
    if isinstance(error, OSError):
        return 2, f"{error.filename or 'A file'} cannot be used ({error.strerror or error})."
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted; the same command goes on from the last checkpoint."
    if isinstance(error, client_errors()):
        told = " ".join(str(error).split()) or type(error).__name__
        # Credentials, permissions and names are the user's to put right; the rest may pass.
        code = 2 if getattr(error, "code", None) in (401, 403, 404) else 1
        return code, f"Google Cloud Storage does not answer as it should ({told}); try again."
    return None
