"""Locks that keep two processes from writing the same folder."""

import contextlib
import fcntl
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from afjax.errors import UserError
from afjax.storage.paths import AnyPath


def wait_until_free(paths: Iterable[AnyPath], *, seconds: float) -> bool:
    """Waits until no process holds any of the lock files.

    Args:
      paths: Lock files. Files that do not exist are not held.
      seconds: The maximum time to wait.

    Returns:
      Whether all of them are free.

    Example:
      >>> wait_until_free(["missing.lock"], seconds=1.0)
      True
    """
    held = [path for path in paths if _is_held(path)]
    end = time.monotonic() + seconds if held else 0.0
    while held and time.monotonic() < end:
        time.sleep(0.1)
        held = [path for path in held if _is_held(path)]
    return not held


def _is_held(path: AnyPath) -> bool:
    try:
        with open(path, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # The file does not exist or cannot be locked.
        return False
    return False


@contextlib.contextmanager
def only_holder(path: AnyPath, message: str) -> Iterator[Callable[[], bool]]:
    """Holds a lock file within the block.

    Network file systems without locks are not protected.

    Args:
      path: The lock file, which is created if it does not exist.
      message: The error message if another process holds the lock.

    Yields:
      A function that returns whether the lock file is still at its path. If it was moved, deleted or replaced, another
      process may hold a lock at the same path.

    Raises:
      UserError: Another process holds the lock.
      OSError: The file cannot be opened.

    Example:
      >>> with only_holder(".lock", "Another process is training here.") as is_in_place:
      ...     print("training", is_in_place())
      training True
    """
    with open(path, "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(message) from None
        except OSError:
            pass  # Some network file systems have no locks.
        # Compare contents, because inode numbers change on some network file systems.
        holder = uuid.uuid4().hex
        with contextlib.suppress(OSError):  # The disk may be full.
            os.truncate(lock.fileno(), 0)
            os.write(lock.fileno(), holder.encode())
        is_written = os.fstat(lock.fileno()).st_size == len(holder)

        def is_in_place() -> bool:
            try:
                return not is_written or Path(path).read_text() == holder
            except FileNotFoundError:
                return False

        try:
            yield is_in_place
        finally:
            with contextlib.suppress(OSError):
                os.truncate(lock.fileno(), 0)
