"""Concurrent requests share batches, and each request gets its own outputs."""

import threading
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from afjax.data.tokenization import TokenizedRows
from afjax.serve.batcher import Batcher, ClosedError, QueueFullError, TooLargeError
from afjax.serve.requests import Sequences


def part(*values: int) -> Sequences:
    """Makes one sequence per value. The value is its only token."""
    tokens = np.array(values, np.int32)
    data = TokenizedRows(tokens, np.zeros(len(tokens), np.int8), np.arange(len(tokens) + 1), None, 0)
    return Sequences(None, data, tuple(range(len(tokens))))


class FakeModel:
    """A fake model that returns the tokens of each part.

    A call acquires ``released`` before it returns. The token -1 raises an error.
    """

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.started, self.released = threading.Semaphore(0), threading.Semaphore(0)

    def __call__(self, parts: Any) -> Any:
        self.batches.append([int(token) for part in parts for token in part.data.tokens])
        self.started.release()
        self.released.acquire()
        if -1 in self.batches[-1]:
            raise ValueError("broken")
        return [part.data.tokens for part in parts]


def values(future: "Future[Any]") -> list[list[int]]:
    return [outputs.tolist() for outputs in future.result()]


@pytest.mark.parametrize("token", [1, -1], ids=["answered", "failed"])
def test_space_is_free_again_when_a_client_has_its_answer(token: int) -> None:
    model, seen = FakeModel(), []
    batcher = Batcher(model, max_batch=4, max_wait_s=0.0, max_queue=1)
    future = batcher.submit([part(token)])
    # The batcher's thread calls this when it sets the result.
    future.add_done_callback(lambda _: seen.append(batcher.num_sequences))
    model.released.release()
    batcher.close()
    assert seen == [0]


def test_requests_that_arrive_during_a_call_share_the_next_batches() -> None:
    model = FakeModel()
    batcher = Batcher(model, max_batch=4, max_wait_s=0.0, max_queue=100)
    first = batcher.submit([part(1), part(2)])
    model.started.acquire()
    others = [batcher.submit([part(*tokens)]) for tokens in ((3, 4), (5,), (6, 7), (8,))]
    assert batcher.num_sequences == 8
    model.released.release(3)
    assert values(first) == [[1], [2]]
    assert [values(other) for other in others] == [[[3, 4]], [[5]], [[6, 7]], [[8]]]
    batcher.close()
    # The parts are computed in the order of arrival. No batch has more than four sequences.
    assert model.batches == [[1, 2], [3, 4, 5], [6, 7, 8]]
    assert batcher.num_sequences == 0


def test_request_that_is_larger_than_a_batch_is_computed() -> None:
    model = FakeModel()
    batcher = Batcher(model, max_batch=2, max_wait_s=0.0, max_queue=100)
    model.released.release(2)
    assert values(batcher.submit([part(1, 2, 3)])) == [[1, 2, 3]]
    batcher.close()


def test_batch_waits_for_more_requests() -> None:
    model = FakeModel()
    batcher = Batcher(model, max_batch=2, max_wait_s=1000.0, max_queue=100)
    first = batcher.submit([part(1)])
    second = batcher.submit([part(2)])
    model.released.release()
    assert (values(first), values(second)) == ([[1]], [[2]])
    batcher.close()
    assert model.batches == [[1, 2]]


def test_full_queue_refuses_requests() -> None:
    model = FakeModel()
    batcher = Batcher(model, max_batch=1, max_wait_s=0.0, max_queue=3)
    first = batcher.submit([part(1, 2)])
    model.started.acquire()
    with pytest.raises(QueueFullError):
        batcher.submit([part(3, 4)])
    second = batcher.submit([part(3)])
    model.released.release(2)
    assert (values(first), values(second)) == ([[1, 2]], [[3]])
    batcher.close()


def test_queue_space_can_be_reserved_before_the_number_of_sequences_is_known() -> None:
    model = FakeModel()
    batcher = Batcher(model, max_batch=4, max_wait_s=0.0, max_queue=4)
    with pytest.raises(TooLargeError):
        batcher.reserve(5)
    batcher.reserve(2)
    batcher.reserve(2)
    with pytest.raises(QueueFullError):
        batcher.reserve(1)
    batcher.release(2)
    # Both requests have more sequences than they reserved. Only the second request fits into the queue.
    with pytest.raises(TooLargeError):
        batcher.submit([part(1, 2, 3), part(4, 5)], reserved=2)
    assert batcher.num_sequences == 0
    batcher.reserve(1)
    model.released.release()
    assert values(batcher.submit([part(1, 2, 3, 4)], reserved=1)) == [[1, 2, 3, 4]]
    batcher.close()
    assert batcher.num_sequences == 0
    with pytest.raises(ClosedError):
        batcher.reserve(1)


def test_error_only_fails_the_requests_of_its_batch() -> None:
    model = FakeModel()
    batcher = Batcher(model, max_batch=1, max_wait_s=0.0, max_queue=10)
    broken, valid = batcher.submit([part(-1)]), batcher.submit([part(2)])
    model.released.release(2)
    with pytest.raises(ValueError, match="broken"):
        broken.result()
    assert values(valid) == [[2]]
    batcher.close()
    assert batcher.num_sequences == 0


def test_cancelled_requests_are_not_computed() -> None:
    model = FakeModel()
    batcher = Batcher(model, max_batch=1, max_wait_s=0.0, max_queue=10)
    first = batcher.submit([part(1)])
    model.started.acquire()
    cancelled, last = batcher.submit([part(2)]), batcher.submit([part(3)])
    assert cancelled.cancel()
    model.released.release(2)
    assert (values(first), values(last)) == ([[1]], [[3]])
    batcher.close()
    assert model.batches == [[1], [3]]


def test_close_computes_the_waiting_requests() -> None:
    model = FakeModel()
    batcher = Batcher(model, max_batch=8, max_wait_s=1000.0, max_queue=10)
    waiting = batcher.submit([part(1)])
    model.released.release()
    batcher.close()
    assert values(waiting) == [[1]]
    with pytest.raises(ClosedError):
        batcher.submit([part(2)])
