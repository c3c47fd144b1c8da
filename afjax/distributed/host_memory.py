"""The host's memory."""

import ctypes
import os
import sys


def physical_memory() -> int:
    """The bytes of memory that this machine has; a very large number if the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def peak_host_memory() -> int:
    """The most bytes of memory that this process has held; 0 if the system does not say."""
    try:
        import resource
    except ImportError:  # Windows.
        return 0
    # macOS counts in bytes, other systems in kilobytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def return_freed_memory() -> None:
    """Hands memory that is freed, but kept by the C library for later, back to the system.

    XLA's compiler leaves several hundred megabytes of it behind, which on a CPU counts towards a run's peak.
    Elsewhere than on glibc this does nothing.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
