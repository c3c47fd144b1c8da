"""Measures host memory, and returns freed memory to the system."""

import ctypes
import os
import resource
import sys


def physical_memory() -> int:
    """Returns this machine's memory in bytes, or ``sys.maxsize`` if it is unknown."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def peak_host_memory() -> int:
    """Returns this process's peak memory in bytes."""
    # macOS counts in bytes, other systems in kilobytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def return_freed_memory() -> None:
    """Trims the C library's heap, which returns freed memory to the system.

    XLA's compiler frees several hundred megabytes that the C library would keep, which increases a run's peak memory on
    a CPU. glibc also has a heap per thread and keeps the memory that its threads free, so a server whose adapters
    change would grow for a long time. Does nothing if the C library is not glibc.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(0)
