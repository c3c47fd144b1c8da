"""Stopping in good order: SIGTERM, which is also how Cloud TPU tells that a machine is about to be taken away.

JAX's own notice of preemption (``multihost_utils.reached_preemption_sync_point``) wants step numbers that rise over the
whole life of a process, and Orbax asks it with the numbers of the checkpoints; an experiment of several runs begins
anew at 0 for each. So hosts agree here, with a program of their own beside each step.
"""

import functools
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from afjax.sharding import whole


class Preemption:
    """Listens for SIGTERM while its block runs, on every host; a host that hears it tells the others.

    In a thread that is not the main one Python hears no signals, and this listens to the other hosts alone.

    Args:
      mesh: The devices of all hosts.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh, self._heard = mesh, False
        self._before: Any = None
        everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._to_devices = functools.partial(jax.make_array_from_callback, (mesh.size,), everywhere)
        self._any = jax.jit(lambda flags: flags.max(), out_shardings=whole(mesh))

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = True

    def ask(self) -> Any:
        """Begins to ask every host; all hosts must ask as often. :meth:`answer` waits for what they say."""
        if jax.process_count() == 1:
            return self._heard
        return self._any(self._to_devices(lambda _: np.full(1, self._heard, np.int32)))

    def answer(self, asked: Any) -> bool:
        """Whether any host had heard the signal when it was asked; the same on all hosts."""
        return bool(asked)
