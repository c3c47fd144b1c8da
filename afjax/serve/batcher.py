"""Batches the sequences of concurrent requests together."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence, Sized
from concurrent.futures import Future
from typing import Generic, NamedTuple, TypeVar

# A part of a request, whose length is its number of sequences.
Part = TypeVar("Part", bound=Sized)
PartOutputs = TypeVar("PartOutputs")


class QueueFullError(Exception):
    """Too many sequences are queued."""


class TooLargeError(Exception):
    """A request has more sequences than the queue can hold."""


class ClosedError(Exception):
    """The server is shutting down."""


class _Request(NamedTuple, Generic[Part, PartOutputs]):
    parts: Sequence[Part]
    num_sequences: int
    arrival: float
    future: Future[list[PartOutputs]]


class Batcher(Generic[Part, PartOutputs]):
    """Computes requests in one thread, several at a time.

    The first request waits up to ``max_wait_s`` for others to join. Requests that arrive during a computation wait
    until it has finished.
    """

    def __init__(
        self,
        compute: Callable[[Sequence[Part]], list[PartOutputs]],
        *,
        max_batch: int,
        max_wait_s: float,
        max_queue: int,
        on_batch: Callable[[int, int], None] = lambda requests, sequences: None,
    ) -> None:
        """Starts the thread.

        Args:
          compute: Computes the outputs of each part.
          max_batch: The maximum number of sequences to compute together, unless a single request has more.
          max_wait_s: The maximum time to wait for more sequences, in seconds.
          max_queue: The maximum number of sequences that are queued or being computed.
          on_batch: Called with the number of requests and the number of sequences that are computed together.
        """
        self._compute, self._on_batch = compute, on_batch
        self._max_batch, self._max_wait_s, self._max_queue = max_batch, max_wait_s, max_queue
        self._waiting: deque[_Request[Part, PartOutputs]] = deque()
        self._num_sequences = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="afjax-batcher", daemon=True)
        self._thread.start()

    @property
    def num_sequences(self) -> int:
        """The number of sequences that are queued or being computed."""
        return self._num_sequences

    def reserve(self, num_sequences: int) -> None:
        """Reserves space in the queue for a request that is not tokenized yet.

        Args:
          num_sequences: The minimum number of sequences in the request.

        Raises:
          TooLargeError: There are more sequences than the queue can ever hold.
          QueueFullError: There is currently not enough space in the queue.
          ClosedError: :meth:`close` was called.
        """
        with self._changed:
            self._take(num_sequences)

    def release(self, num_sequences: int) -> None:
        """Releases reserved space."""
        with self._changed:
            self._num_sequences -= num_sequences

    def _take(self, num_sequences: int) -> None:
        if self._closed:
            raise ClosedError
        if num_sequences > self._max_queue:
            raise TooLargeError
        if self._num_sequences + num_sequences > self._max_queue:
            raise QueueFullError
        self._num_sequences += num_sequences

    def submit(self, parts: Sequence[Part], *, reserved: int = 0) -> Future[list[PartOutputs]]:
        """Queues a request.

        Args:
          parts: The request's sequences.
          reserved: The number of sequences reserved for this request. The space is released if the request is rejected.

        Returns:
          A future for the outputs of the parts.

        Raises:
          TooLargeError, QueueFullError, ClosedError: The request is rejected, for the same reasons as in
            :meth:`reserve`.
        """
        num_sequences = sum(map(len, parts))
        with self._changed:
            self._num_sequences -= reserved
            self._take(num_sequences)
            request: _Request[Part, PartOutputs] = _Request(parts, num_sequences, time.monotonic(), Future())
            self._waiting.append(request)
            self._changed.notify()
        return request.future

    def close(self) -> None:
        """Rejects new requests, computes the queued ones, and stops the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while requests := self._next_requests():
            # A cancelled request is not computed.
            active = [request for request in requests if request.future.set_running_or_notify_cancel()]
            outputs = self._compute_together(active) if active else []
            # Release the space first. Otherwise, a client that sends its next request at once could be refused.
            with self._changed:
                self._num_sequences -= sum(request.num_sequences for request in requests)
            first = 0
            for request in active:
                if isinstance(outputs, Exception):
                    request.future.set_exception(outputs)
                else:
                    request.future.set_result(outputs[first : first + len(request.parts)])
                first += len(request.parts)

    def _next_requests(self) -> list[_Request[Part, PartOutputs]]:
        """Waits for requests, and returns the next ones to compute together.

        The list is empty if :meth:`close` was called and the queue is empty.
        """
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            while self._waiting and not self._closed and self._waiting_sequences() < self._max_batch:
                left_s = self._waiting[0].arrival + self._max_wait_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            requests: list[_Request[Part, PartOutputs]] = []
            taken = 0
            while self._waiting and (not requests or taken + self._waiting[0].num_sequences <= self._max_batch):
                requests.append(self._waiting.popleft())
                taken += requests[-1].num_sequences
            return requests

    def _waiting_sequences(self) -> int:
        return sum(request.num_sequences for request in self._waiting)

    def _compute_together(self, requests: Sequence[_Request[Part, PartOutputs]]) -> list[PartOutputs] | Exception:
        """Returns the outputs of all parts of the requests, or an error for all requests."""
        try:
            self._on_batch(len(requests), sum(request.num_sequences for request in requests))
            return self._compute([part for request in requests for part in request.parts])
        except Exception as error:
            return error
