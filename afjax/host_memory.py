"""The host's memory."""

import ctypes
import sys


def return_freed_memory() -> None:
    """Hands memory that is freed, but kept by the C library for later, back to the system.

    XLA's compiler leaves several hundred megabytes of it behind, which on a CPU counts towards a run's peak.
    Elsewhere than on glibc this does nothing.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
