"""Measures a run's time and memory across restarts."""

import time
from typing import Any

import jax
from etils import epath

from afjax.distributed.host_memory import peak_host_memory
from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.storage.writing import write_json

# The folders of bit-identical runs differ only in this file, so only reports may read it.
USAGE = "usage.json"


class Usage:
    """Measures a run's usage since this start, and adds the usage of earlier starts.

    ``usage.json`` has ``step`` and ``seconds`` up to the last checkpoint, ``starts``, ``devices``, and two peaks in
    bytes: ``host_memory`` of this process, and ``device_memory`` of any device, if the backend reports it. Work that a
    killed run lost after its last checkpoint is not counted.

    Args:
      folder: The run's folder, which must exist.
      step: Number of steps already done.
    """

    def __init__(self, folder: epath.Path, step: int) -> None:
        self._path, self._step, self._begin = folder / USAGE, step, time.monotonic()
        self._earlier = read_usage(folder) if step else {}

    def write(self, step: int) -> None:
        """Writes the usage up to a step.

        Does nothing if this start has not finished any step.
        """
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
    """Reads a run's ``usage.json``, and drops invalid values.

    Returns ``{}`` if the file is damaged or missing, as in older runs.
    """
    try:
        usage = read_json(folder / USAGE) or {}
    except UserError:
        return {}
    # read_json refuses NaN and infinity.
    return {
        key: value for key, value in usage.items() if key == "devices" or (type(value) in (int, float) and value >= 0)
    }
