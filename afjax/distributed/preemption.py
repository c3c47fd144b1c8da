"""Handles SIGTERM and delays Ctrl-C.

Cloud TPU also sends SIGTERM before it preempts a machine. JAX's own preemption notice
(``multihost_utils.reached_preemption_sync_point``) requires step numbers that increase over the lifetime of the
process, and Orbax calls it with the step numbers of checkpoints. In an experiment with several runs, these numbers
restart at 0 for each run. Instead, a small program runs after each step, with which the hosts agree on whether any of
them has received SIGTERM.
"""

import contextlib
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from afjax.distributed.hosts import several_hosts
from afjax.distributed.sharding import replicated
from afjax.errors import PREEMPTED, PreemptionError


@contextlib.contextmanager
def stopping_between_runs(leave: Callable[[int, str], bool] | None = None) -> Iterator[None]:
    """Stops the block on SIGTERM, except while a run is training.

    A training run handles SIGTERM itself and saves its state before it stops (:class:`Preemption`). If SIGTERM arrives
    between runs, everything is already saved, so the block stops immediately.

    Args:
      leave: Ends all hosts of a multi-host job; see ``hosts.Job.leave``. A host that is between two runs ends all hosts
        immediately, because the others may be waiting for it.

    Raises:
      PreemptionError: SIGTERM was received and this is the only host.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    previous, show = signal.signal(signal.SIGTERM, _Stop(leave)), sys.unraisablehook

    def show_others(ignored: Any) -> None:
        # Python prints the traceback of each exception that it ignores. A PreemptionError needs none, because the next
        # run reads _Stop.received.
        if not isinstance(ignored.exc_value, PreemptionError):
            show(ignored)

    sys.unraisablehook = show_others
    try:
        yield
    finally:
        sys.unraisablehook = show
        signal.signal(signal.SIGTERM, previous)


class _Stop:
    """The SIGTERM handler of :func:`stopping_between_runs`.

    Attributes:
      received: Whether SIGTERM was received. Python ignores exceptions in some code, such as destructors. If it ignored
        the PreemptionError, the next run reads this attribute.
    """

    def __init__(self, leave: Callable[[int, str], bool] | None) -> None:
        self._leave, self.received = leave, False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        sentence = "The command was stopped by SIGTERM; run the same command again to resume."
        if self._leave is None or not self._leave(PREEMPTED, sentence):
            raise PreemptionError(sentence)


@contextlib.contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block.

    A second Ctrl-C takes effect immediately.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed during the block.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    received = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received = True
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, remember)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if received:
            previous(signal.SIGINT, None)


class Preemption:
    """Listens for SIGTERM during its block, so that all hosts stop together.

    Every host needs such a block. Blocks may overlap and end in any order. A signal reaches every active block, and
    every block that begins before these have ended. Because Python only receives signals in the main thread, a block in
    any other thread only notices the signals of other hosts.

    Args:
      mesh: The devices of all hosts.
    """

    def __init__(self, mesh: Mesh) -> None:
        # Only the main thread listens.
        self._listener: _Listener | None = None
        everywhere = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
        self._to_devices = functools.partial(jax.make_array_from_callback, (mesh.size,), everywhere)
        self._any = jax.jit(lambda flags: flags.max(), out_shardings=replicated(mesh))

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is threading.main_thread():
            current = signal.getsignal(signal.SIGTERM)
            self._listener = current if isinstance(current, _Listener) else _Listener()
            self._listener.blocks += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None and threading.current_thread() is threading.main_thread():
            self._listener.blocks -= 1
            current: Any = signal.getsignal(signal.SIGTERM)
            if not self._listener.blocks and current is self._listener:
                signal.signal(signal.SIGTERM, self._listener.before)

    def ask(self) -> Any:
        """Starts asking all hosts whether they have received SIGTERM.

        This does not wait: pass the result to :meth:`answer`. All hosts must call this method equally often.
        """
        received = self._listener is not None and self._listener.received
        if not several_hosts():
            return received
        return self._any(self._to_devices(lambda _: np.full(1, received, np.int32)))

    def answer(self, asked: Any) -> bool:
        """Waits for the result of :meth:`ask`.

        The result is whether any host had received SIGTERM. It is the same on all hosts.
        """
        return bool(asked)


class _Listener:
    """The SIGTERM handler of all overlapping :class:`Preemption` blocks.

    Attributes:
      blocks: The number of active blocks.
      received: Whether SIGTERM was received since the first of them began.
      before: The handler to restore after the last of them.
    """

    def __init__(self) -> None:
        self.blocks, self.received = 0, False
        self.before: Any = signal.signal(signal.SIGTERM, self)
        # An assignment of False would undo a signal that has arrived since the line above.
        if isinstance(self.before, _Stop) and self.before.received:
            self.received = True

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
