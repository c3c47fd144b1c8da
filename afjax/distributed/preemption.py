"""Stopping in good order: SIGTERM, which is also how Cloud TPU tells that a machine is about to be taken away.

JAX's own notice of preemption (``multihost_utils.reached_preemption_sync_point``) wants step numbers that rise over the
whole life of a process, and Orbax asks it with the numbers of the checkpoints; an experiment of several runs begins
anew at 0 for each. So hosts agree here, with a program of their own beside each step.
"""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from afjax.distributed.hosts import several_hosts
from afjax.distributed.sharding import whole
from afjax.errors import PREEMPTED, PreemptionError


@contextlib.contextmanager
def stopping_between_runs(leave: Callable[[int, str], bool] | None = None) -> Iterator[None]:
    """Ends the block at SIGTERM, but where a run trains, which then saves first; between runs all is saved.

    Args:
      leave: Ends one of several hosts, and the others; see ``hosts.Job.leave``. Of several hosts one that is between
        runs ends at once, as the others may wait for it.

    Raises:
      PreemptionError: SIGTERM came, and this is the only host.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        sentence = "The command was told to stop; the same command goes on from what is saved."
        if leave is None or not leave(PREEMPTED, sentence):
            raise PreemptionError(sentence)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
        if not several_hosts():
            return self._heard
        return self._any(self._to_devices(lambda _: np.full(1, self._heard, np.int32)))

    def answer(self, asked: Any) -> bool:
        """Whether any host had heard the signal when it was asked; the same on all hosts."""
        return bool(asked)
