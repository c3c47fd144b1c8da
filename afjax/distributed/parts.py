"""Divides a machine's devices and cores among independent processes.

The devices are TPU chips or GPUs. JAX reads the environment variables that limit a process when it first uses a device,
so they must be set before that. None of these functions initializes JAX's backend.
"""

import contextlib
import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from afjax.display.words import counted
from afjax.distributed.hosts import on_cloud_tpu
from afjax.errors import UserError

# The total fraction of a GPU's memory that the processes on this GPU allocate.
GPU_MEMORY = 0.9
# The environment variables for a process's fraction of GPU memory: JAX's current name and its former name.
GPU_MEMORY_SETTINGS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
# The first process's TPU runtime listens on this port. Further processes use the next ports.
FIRST_TPU_PORT = 8476


@dataclasses.dataclass(frozen=True)
class Devices:
    """The devices of this machine that JAX may use.

    Attributes:
      tpu_chips: Indices of the TPU chips.
      gpus: Indices or identifiers of the GPUs.
    """

    tpu_chips: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


def find_devices(root: Path = Path("/dev")) -> Devices:
    """Finds this machine's TPU chips and GPUs.

    Variables such as ``CUDA_VISIBLE_DEVICES`` limit them.
    """
    chips = _count(root, r"accel\d+") or _count(root / "vfio", r"\d+") if on_cloud_tpu() else 0
    return Devices(_visible("TPU_VISIBLE_CHIPS", chips), _visible("CUDA_VISIBLE_DEVICES", _count(root, r"nvidia\d+")))


def _count(folder: Path, pattern: str) -> int:
    with contextlib.suppress(OSError):
        return sum(bool(re.fullmatch(pattern, name)) for name in os.listdir(folder))
    return 0


def _visible(variable: str, count: int) -> tuple[str, ...]:
    if not count:
        return ()
    given = os.environ.get(variable)
    return tuple(map(str, range(count))) if given is None else tuple(filter(None, given.split(",")))


def check_processes(processes: int, devices: Devices) -> None:
    """Raises UserError if there are more processes than TPU chips.

    Processes cannot share a TPU chip.
    """
    chips = len(devices.tpu_chips)
    if 0 < chips < processes:
        raise UserError(
            f"{processes:,} processes cannot share {counted(chips, 'TPU chip')}; use at most "
            f"--processes={chips}. --slots=N trains N runs at a time on a chip."
        )


def device_settings(number: int, processes: int, devices: Devices) -> Mapping[str, str]:
    """Returns the environment variables that limit a process to its devices.

    On a TPU, each process gets one chip. If there are at least as many GPUs as processes, the GPUs are divided among
    them. Otherwise, each process gets one GPU, and processes on the same GPU get equal fractions of its memory.

    Args:
      number: The process's index, from 0.
      processes: The number of processes.
      devices: The machine's devices.
    """
    if devices.tpu_chips:
        chip, port = devices.tpu_chips[number], str(FIRST_TPU_PORT + number)
        return {
            "TPU_VISIBLE_CHIPS": chip,
            # Describe a machine with one chip. Without these settings and its own port, a process would claim all
            # chips.
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": f"localhost:{port}",
            "TPU_PROCESS_PORT": port,
            "CLOUD_TPU_TASK_ID": "0",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        }
    if devices.gpus:
        count = len(devices.gpus)
        sharing = len(range(number % count, processes, count))
        return {
            "CUDA_VISIBLE_DEVICES": ",".join(devices.gpus[number % count :: processes]),
            GPU_MEMORY_SETTINGS[0]: f"{GPU_MEMORY / sharing:.3f}",
        }
    return {}


def use_part(number: int, processes: int) -> None:
    """Limits this process to its share of the machine's devices and cores.

    Call this before JAX first uses a device.

    Args:
      number: The process's index, from 0.
      processes: The number of processes.
    """
    settings = dict(device_settings(number, processes, find_devices()))
    if any(name in os.environ for name in GPU_MEMORY_SETTINGS):
        settings.pop(GPU_MEMORY_SETTINGS[0], None)
    os.environ.update(settings)
    if sys.platform == "linux":
        cores = sorted(os.sched_getaffinity(0))
        # Some containers forbid setting the affinity. The processes then share all cores.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, cores[number % len(cores) :: processes])
