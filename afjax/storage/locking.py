"""Locks that keep two processes from writing the same folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator

from afjax.errors import UserError


@contextlib.contextmanager
def only_holder(path: str | os.PathLike[str], message: str) -> Iterator[None]:
    """Holds a lock file within the block.

    Network file systems without locks are not protected.

    Args:
      path: The lock file, which is created if it does not exist.
      message: The error message if another process holds the lock.

    Raises:
      UserError: Another process holds the lock.
      OSError: The file cannot be opened.

    Example:
      >>> with only_holder(".lock", "Another process is training here."):
      ...     print("training")
      training
    """
    with open(path, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(message) from None
        except OSError:
            pass  # Some network file systems have no locks.
        yield
