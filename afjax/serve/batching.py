"""Batches the sequences of many tasks, with a small number of static shapes."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from afjax.data.batches import Batch
from afjax.serve.requests import Sequences, ServedTask

# The fixed cost per batch (launching it and loading the weights), expressed as a number of tokens. The CPU's value was
# measured with `minilm` and BERT-base. For other devices, the value is a TPU v5e's ratio of operations to bytes per
# second.
_TOKENS_PER_CALL = {"cpu": 50}
_TOKENS_PER_CALL_ELSEWHERE = 250


@dataclasses.dataclass(frozen=True)
class RoutedBatch:
    """Sequences that are computed together.

    Attributes:
      members: ``(part, sequence)`` for each row: the index of a part, and the index of one of its sequences.
      batch_size: The number of rows, including empty rows at the end.
      length: The padded length.
    """

    members: tuple[tuple[int, int], ...]
    batch_size: int
    length: int

    @property
    def num_tokens(self) -> int:
        """The number of tokens, including padding."""
        return self.batch_size * self.length

    def inputs(self, parts: Sequence[Sequences], pad_id: int) -> Batch:
        """Builds the program's input arrays.

        They are ``tokens`` and ``types``, int32, and ``mask``, bool, each ``[batch_size, length]``.

        Args:
          parts: The parts that ``members`` refers to.
          pad_id: The id of the padding token.
        """
        shape = (self.batch_size, self.length)
        tokens = np.full(shape, pad_id, np.int32)
        types, mask = np.zeros(shape, np.int32), np.zeros(shape, bool)
        for row, (number, index) in enumerate(self.members):
            data = parts[number].data
            begin, end = data.offsets[index : index + 2]
            tokens[row, : end - begin], types[row, : end - begin] = data.tokens[begin:end], data.types[begin:end]
            mask[row, : end - begin] = True
        return {"tokens": tokens, "types": types, "mask": mask}


def estimate_tokens_per_call(platform: str) -> int:
    """Estimates the fixed cost per batch, expressed as a number of tokens.

    Args:
      platform: The device's platform, as in JAX.
    """
    return _TOKENS_PER_CALL.get(platform, _TOKENS_PER_CALL_ELSEWHERE)


def routed_batches(
    parts: Sequence[Sequences],
    *,
    batch_sizes: Sequence[int],
    lengths: Sequence[int],
    num_places: Sequence[int],
    tokens_per_call: int,
) -> list[RoutedBatch]:
    """Splits sequences into batches that minimize the estimated time.

    The estimate for a batch is its number of tokens, including padding and empty rows, plus a constant. This favors
    batches of sequences with similar lengths, and small batches over large ones with empty rows.

    Args:
      parts: The sequences of one or several requests.
      batch_sizes: The possible batch sizes, in ascending order.
      lengths: The padded lengths, in ascending order. The last one must fit the longest sequence.
      num_places: The number of places in each bank, which limits the number of different tasks in a batch.
      tokens_per_call: The fixed cost per batch, as a number of tokens; see :func:`estimate_tokens_per_call`.

    Returns:
      The batches. They contain each sequence once, the shortest first.
    """
    members = [(number, index) for number, part in enumerate(parts) for index in range(len(part))]
    sizes = np.concatenate([np.diff(part.data.offsets) for part in parts])
    order = np.argsort(sizes, kind="stable")
    members = [members[index] for index in order]
    padded = np.asarray(lengths)[np.searchsorted(lengths, sizes[order])].tolist()
    tasks = [parts[number].task for number, _ in members]
    all_fit = num_fitting([part.task for part in parts], num_places) == len(parts)
    # Dynamic programming over the sequences in order of length. Batches are filled from their longest sequence down,
    # because a shorter sequence costs no more than an empty row. shortest_times[end] is the minimum time for the first
    # `end` sequences, and choices[end] is their last batch: its first sequence and its number of rows.
    shortest_times, choices = [0], [(0, 0)]
    for end in range(1, len(members) + 1):
        largest = tasks[max(0, end - batch_sizes[-1]) : end]
        num_together = len(largest) if all_fit else num_fitting(largest[::-1], num_places)
        options = []
        for batch_size in batch_sizes:
            begin = end - min(batch_size, num_together)
            options.append((shortest_times[begin] + batch_size * padded[end - 1] + tokens_per_call, begin, batch_size))
        shortest, begin, batch_size = min(options)
        shortest_times.append(shortest)
        choices.append((begin, batch_size))
    batches = []
    end = len(members)
    while end:
        begin, batch_size = choices[end]
        batches.append(RoutedBatch(tuple(members[begin:end]), batch_size, padded[end - 1]))
        end = begin
    return batches[::-1]


def num_fitting(tasks: Sequence[ServedTask | None], num_places: Sequence[int]) -> int:
    """Counts how many of the first tasks fit on the device at once.

    Args:
      tasks: The tasks. The first one always fits. None has no entries.
      num_places: The number of places in each bank.
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
