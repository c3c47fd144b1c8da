"""What a run has taken so far: time and memory, over all its starts."""

import time
from typing import Any

import jax
from etils import epath

from afjax.distributed.host_memory import peak_host_memory
from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.storage.writing import write_json

# In a run's folder. Two runs of the same bits differ in this file alone, so nothing but reports reads it.
USAGE = "usage.json"


class Usage:
    """Measures one start of a run, and adds it to what earlier starts took.

    ``usage.json`` has ``step`` and ``seconds`` up to the last checkpoint (what a killed run did behind it was for
    nothing and is not counted), ``starts``, the ``devices`` and, in bytes, ``host_memory``, the most that this process
    has held, and ``device_memory``, the most of any device, where the backend tells.

    Args:
      folder: The run's folder; it exists.
      step: Steps already done.
    """

    def __init__(self, folder: epath.Path, step: int) -> None:
        self._path, self._step, self._begin = folder / USAGE, step, time.monotonic()
        self._earlier = read_usage(folder) if step else {}

    def write(self, step: int) -> None:
        """Writes what was taken up to a step; nothing where this start has done no step."""
        if step == self._step:
            return
        earlier = self._earlier
        devices = jax.devices()
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()]
        values = {
            "step": step,
            "seconds": earlier.get("seconds", 0.0) + time.monotonic() - self._begin,
            "starts": earlier.get("starts", 0) + 1,
            "devices": f"{len(devices)} × {devices[0].device_kind}",
            "host_memory": max(earlier.get("host_memory", 0), peak_host_memory()),
            "device_memory": max(earlier.get("device_memory", 0), *peaks),
        }
        write_json(self._path, values)


def read_usage(folder: epath.Path) -> dict[str, Any]:
    """What a run's ``usage.json`` holds; empty where there is none that can be read (older runs have none)."""
    try:
        return read_json(folder / USAGE) or {}
    except UserError:
        return {}
