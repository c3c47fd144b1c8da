"""Batches of sequences of many tasks, with a small number of static shapes."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from afjax.data.batches import Batch
from afjax.serve.requests import Sequences


@dataclasses.dataclass(frozen=True)
class RoutedBatch:
    """Sequences that are computed together.

    Attributes:
      members: ``(number of the part, number of the part's sequence)`` of each sequence, in order.
      inputs: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch_size, length]``. The last rows can be empty.
    """

    members: tuple[tuple[int, int], ...]
    inputs: Batch

    @property
    def batch_size(self) -> int:
        """The number of rows, including empty ones."""
        return int(self.inputs["tokens"].shape[0])


def routed_batches(
    parts: Sequence[Sequences],
    *,
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
    pad_id: int,
    max_tasks: int,
) -> Iterator[RoutedBatch]:
    """Yields batches with every sequence once, shortest first.

    Args:
      parts: The sequences of one or several requests.
      batch_sizes: The numbers of rows that a batch can have, in ascending order.
      lengths: The padded lengths, in ascending order. The longest sequence fits into the last one.
      pad_id: The id of the padding token.
      max_tasks: The largest number of tasks in a batch.
    """
    members = [(number, index) for number, part in enumerate(parts) for index in range(len(part))]
    sizes = np.concatenate([np.diff(part.data.offsets) for part in parts])
    order = [members[index] for index in np.argsort(sizes, kind="stable")]
    first = 0
    while first < len(order):
        last = _end_of_batch(parts, order, first, batch_sizes, max_tasks)
        yield _make_batch(parts, order[first:last], batch_sizes, lengths, pad_id)
        first = last


def _end_of_batch(
    parts: Sequence[Sequences], order: Sequence[tuple[int, int]], first: int, batch_sizes: Sequence[int], max_tasks: int
) -> int:
    """The index after a batch's last sequence: a full batch, or the remaining ones, of at most ``max_tasks`` tasks."""
    last = min(first + batch_sizes[-1], len(order))
    numbers: set[int] = set()
    for index in range(first, last):
        task = parts[order[index][0]].task
        if task is not None:
            numbers.add(task.number)
        if len(numbers) > max_tasks:
            return index
    return last


def _make_batch(
    parts: Sequence[Sequences],
    members: Sequence[tuple[int, int]],
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
    pad_id: int,
) -> RoutedBatch:
    batch_size = min(size for size in batch_sizes if size >= len(members))
    offsets = [parts[number].data.offsets[index : index + 2] for number, index in members]
    longest = max(int(end - begin) for begin, end in offsets)
    length = min(size for size in lengths if size >= longest)
    tokens = np.full((batch_size, length), pad_id, np.int32)
    types, mask = np.zeros((batch_size, length), np.int32), np.zeros((batch_size, length), bool)
    for row, ((number, _), (begin, end)) in enumerate(zip(members, offsets, strict=True)):
        data = parts[number].data
        tokens[row, : end - begin], types[row, : end - begin] = data.tokens[begin:end], data.types[begin:end]
        mask[row, : end - begin] = True
    return RoutedBatch(tuple(members), {"tokens": tokens, "types": types, "mask": mask})
