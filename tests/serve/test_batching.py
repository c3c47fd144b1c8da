"""The sequences of many tasks are split into batches with little padding."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afjax.data.tokenization import TokenizedRows
from afjax.serve.batching import RoutedBatch, routed_batches
from afjax.serve.requests import Sequences

LENGTHS = (4, 8, 16)


def sequences(lengths: Sequence[int], number: int | None = None, bank: int = 0) -> Sequences:
    """Makes sequences with the given lengths.

    If ``number`` is given, they belong to the task with this number, which has an entry in ``bank``.
    """
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    tokens = np.arange(1, 1 + sum(lengths), dtype=np.int32)
    task: Any = None if number is None else SimpleNamespace(number=number, entries={bank: None})
    return Sequences(
        task, TokenizedRows(tokens, np.zeros(len(tokens), np.int8), offsets, None, 0), tuple(range(len(lengths)))
    )


def shapes(batches: Sequence[RoutedBatch]) -> list[tuple[int, int, int]]:
    """Returns the number of sequences, batch size and length of each batch."""
    return [(len(batch.members), batch.batch_size, batch.length) for batch in batches]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([16], [(1, 1, 16)]),
        # Batches of 1 and 8 have fewer empty rows than a batch of 32.
        ([16] * 9, [(1, 1, 16), (8, 8, 16)]),
        # Short and long sequences are in different batches if padding would cost more than another call.
        ([4, 16] * 8, [(8, 8, 4), (8, 8, 16)]),
        ([16, 4], [(1, 1, 4), (1, 1, 16)]),
        # The short sequence is in a row that would otherwise be empty.
        ([4, 16, 16, 16, 16, 16, 16, 16], [(8, 8, 16)]),
        ([16] * 40, [(8, 8, 16), (32, 32, 16)]),
    ],
)
def test_batches_have_similar_lengths_and_few_empty_rows(
    lengths: list[int], expected: list[tuple[int, int, int]]
) -> None:
    batches = routed_batches(
        [sequences(lengths)], batch_sizes=(1, 8, 32), lengths=LENGTHS, num_places=(), tokens_per_call=50
    )
    assert shapes(batches) == expected


def test_expensive_calls_lead_to_fewer_batches() -> None:
    parts = [sequences([4, 16] * 8)]
    batches = routed_batches(parts, batch_sizes=(1, 8, 32), lengths=LENGTHS, num_places=(), tokens_per_call=400)
    assert shapes(batches) == [(16, 32, 16)]


def test_batch_has_no_more_entries_than_places() -> None:
    parts = [sequences([8, 8], number=number) for number in range(3)]
    batches = routed_batches(parts, batch_sizes=(1, 8), lengths=LENGTHS, num_places=(2,), tokens_per_call=50)
    assert shapes(batches) == [(2, 8, 8), (4, 8, 8)]
    for batch in batches:
        tasks = [parts[number].task for number, _ in batch.members]
        assert len({task.number for task in tasks if task is not None}) <= 2


def test_inputs_have_the_sequences_and_padding() -> None:
    parts = [sequences([2]), sequences([1, 3], number=7)]
    (batch,) = routed_batches(parts, batch_sizes=(4,), lengths=LENGTHS, num_places=(1,), tokens_per_call=50)
    assert batch == RoutedBatch(((1, 0), (0, 0), (1, 1)), batch_size=4, length=4)
    inputs = batch.inputs(parts, pad_id=9)
    assert inputs["tokens"].tolist() == [[1, 9, 9, 9], [1, 2, 9, 9], [2, 3, 4, 9], [9, 9, 9, 9]]
    assert inputs["mask"].sum(axis=1).tolist() == [1, 2, 3, 0]


def partitions(num_sequences: int, batch_sizes: Sequence[int]) -> Iterator[list[int]]:
    """Yields all splits of a sorted list of sequences into batches.

    A split is a list with the number of sequences per batch.
    """
    if num_sequences == 0:
        yield []
    for count in range(1, min(num_sequences, batch_sizes[-1]) + 1):
        for rest in partitions(num_sequences - count, batch_sizes):
            yield [count, *rest]


def estimated_time(counts: Sequence[int], lengths: Sequence[int], batch_sizes: Sequence[int]) -> int:
    time, end = 0, 0
    for count in counts:
        end += count
        rows = min(size for size in batch_sizes if size >= count)
        time += rows * min(length for length in LENGTHS if length >= lengths[end - 1]) + 50
    return time


@given(
    lengths=st.lists(st.integers(1, 16), min_size=1, max_size=9),
    batch_sizes=st.sampled_from([(1,), (3,), (1, 4), (2, 3, 8), (8,)]),
)
def test_batches_have_the_least_estimated_time(lengths: list[int], batch_sizes: tuple[int, ...]) -> None:
    batches = routed_batches(
        [sequences(lengths)], batch_sizes=batch_sizes, lengths=LENGTHS, num_places=(), tokens_per_call=50
    )
    assert sorted(index for batch in batches for _, index in batch.members) == list(range(len(lengths)))
    shortest_first = sorted(lengths)
    least = min(estimated_time(counts, shortest_first, batch_sizes) for counts in partitions(len(lengths), batch_sizes))
    assert sum(batch.num_tokens + 50 for batch in batches) == least
