"""Batches of sequences of many tasks, with a small number of static shapes."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from afjax.data.batches import Batch
from afjax.serve.requests import Sequences, ServedTask


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
    num_places: Sequence[int],
) -> Iterator[RoutedBatch]:
    """Yields batches with every sequence once, shortest first.

    Args:
      parts: The sequences of one or several requests.
      batch_sizes: The numbers of rows that a batch can have, in ascending order.
      lengths: The padded lengths, in ascending order. The longest sequence fits into the last one.
      pad_id: The id of the padding token.
      num_places: The largest number of different entries of each bank in a batch.
    """
    members = [(number, index) for number, part in enumerate(parts) for index in range(len(part))]
    sizes = np.concatenate([np.diff(part.data.offsets) for part in parts])
    order = [members[index] for index in np.argsort(sizes, kind="stable")]
    first = 0
    while first < len(order):
        last = _end_of_batch(parts, order, first, batch_sizes, num_places)
        yield _make_batch(parts, order[first:last], batch_sizes, lengths, pad_id)
        first = last


def num_batch_rows(num_sequences: int, batch_sizes: Sequence[int]) -> int:
    """Returns the number of rows of the batches with a number of sequences, if their entries fit into the banks.

    Args:
      num_sequences: The number of sequences.
      batch_sizes: The numbers of rows that a batch can have, in ascending order.
    """
    num_full, rest = divmod(num_sequences, batch_sizes[-1])
    return num_full * batch_sizes[-1] + (min(size for size in batch_sizes if size >= rest) if rest else 0)


def _end_of_batch(
    parts: Sequence[Sequences],
    order: Sequence[tuple[int, int]],
    first: int,
    batch_sizes: Sequence[int],
    num_places: Sequence[int],
) -> int:
    """The index after a batch's last sequence: a full batch, or the sequences whose entries fit into the banks."""
    last = min(first + batch_sizes[-1], len(order))
    tasks = [parts[number].task for number, _ in order[first:last]]
    return first + num_fitting(tasks, num_places)


def num_fitting(tasks: Sequence[ServedTask | None], num_places: Sequence[int]) -> int:
    """Returns how many of the first tasks have all of their entries on the device at once.

    Args:
      tasks: The tasks. The first one fits. None uses no entry.
      num_places: The number of places of each bank.
    """
    entries: list[set[int]] = [set() for _ in num_places]
    for index, task in enumerate(tasks):
        if task is None:
            continue
        for bank in task.entries:
            entries[bank].add(task.number)
            if len(entries[bank]) > num_places[bank]:
                return index
    return len(tasks)


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
