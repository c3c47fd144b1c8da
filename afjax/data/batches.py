"""Builds batches that have one of a few static shapes.

A batch is a dict of arrays:

- ``tokens``: int32 [B, T].
- ``types``: int32 [B, T].
- ``mask``: bool [B, T], true for tokens and false for padding.
- ``labels``: int32 or float32 [B]; zeros if the split is unlabeled.
- ``weights``: float32 [B]; 1 for rows of the split, 0 for padding rows.
- ``rows``: int32 [B], row indices in the split; -1 for padding rows.

B is always the batch size, and T is one of a few padded lengths. Padding rows have an all-false mask and the label 0
(-1 at every token for tagging).

For multiple choice, ``tokens``, ``types`` and ``mask`` are [B, C, T], where C is the maximum number of choices in the
split. Missing choices have an all-false mask. ``labels`` is [B, 2] for span tasks, float32 [B, labels] for multi-label
tasks, and int32 [B, T] for tagging, with -1 for tokens without a label.

With several hosts, each host builds only its own rows of every batch. Only ``rows`` covers all hosts.
"""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from afjax.config.from_dict import check_value
from afjax.config.ranges import PositiveInt
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Batching:
    """Batch size, padded lengths and padding token.

    Attributes:
      batch_size: Global batch size, summed over hosts.
      lengths: Allowed padded lengths, in strictly increasing order. The last must fit the longest row.
      pad_id: Id of the padding token.

    Raises:
      UserError: ``batch_size`` is below 1, or ``lengths`` is empty, not positive or not strictly increasing.

    Example:
      >>> from afjax import Batching
      >>> Batching(batch_size=32, lengths=(64, 128), pad_id=0)
      Batching(batch_size=32, lengths=(64, 128), pad_id=0)
    """

    batch_size: int
    lengths: tuple[int, ...]
    pad_id: int

    def __post_init__(self) -> None:
        check_value(PositiveInt, self.batch_size, "batch_size")
        if not self.lengths or self.lengths[0] < 1 or list(self.lengths) != sorted(set(self.lengths)):
            raise UserError(
                f"lengths is {self.lengths}; it must have one or more positive lengths in strictly increasing order, "
                "such as (32, 64, 128)."
            )


def batches_per_epoch(num_rows: int, batch_size: int) -> int:
    return -(-num_rows // batch_size)


def train_batches(
    data: TokenizedRows, batching: Batching, *, seed: int, epoch: int, start: int = 0, part: slice = slice(None)
) -> Iterator[Batch]:
    """Yields one epoch of shuffled batches.

    Each row occurs once. The order depends only on ``seed`` and ``epoch``. Rows of similar length are batched together.
    Leftover rows that do not fill a batch at their padded length are moved to the next longer length, so at most one
    batch per epoch is partial.

    Args:
      data: The split.
      batching: Batch size, padded lengths and padding token.
      seed, epoch: Non-negative integers.
      start: Number of batches to skip without building them.
      part: The slice of each batch that this host builds. A batch's ``rows`` always covers all hosts.

    Yields:
      Dicts of NumPy arrays: ``tokens`` and ``types`` int32, ``mask`` bool, each ``[batch_size, length]``;
      ``labels`` int32 or float32 ``[batch_size]``; ``weights`` float32 ``[batch_size]``; and ``rows`` int32
      ``[batch_size]``. ``length`` is one of the padded lengths. See :mod:`afjax.data.batches` for multiple-choice,
      span, multi-label and tagging tasks.

    Raises:
      UserError: A row is longer than the longest padded length.

    Example:
      >>> import numpy as np
      >>> from afjax import Batching, train_batches
      >>> from afjax.data.tokenization import TokenizedRows
      >>> tokens, types, labels = np.arange(1, 7, dtype=np.int32), np.zeros(6, np.int8), np.array([1, 0], np.int32)
      >>> data = TokenizedRows(tokens, types, np.array([0, 2, 6]), labels, truncated=0)  # rows of 2 and 4 tokens
      >>> batching = Batching(batch_size=2, lengths=(4, 8), pad_id=0)
      >>> for batch in train_batches(data, batching, seed=0, epoch=0):
      ...     print(batch["tokens"].shape, sorted(batch["rows"].tolist()))
      (2, 4) [0, 1]
    """
    for rows in train_groups(data.lengths, batching.batch_size, batching.lengths, seed, epoch)[start:]:
        yield make_batch(data, rows, batching, part)


def eval_batches(data: TokenizedRows, batching: Batching, *, part: slice = slice(None)) -> Iterator[Batch]:
    """Yields batches for evaluation, with the shortest rows first.

    Each row occurs once.

    Args:
      data: The split.
      batching: Batch size, padded lengths and padding token.
      part: The slice of each batch that this host builds. A batch's ``rows`` always covers all hosts.

    Yields:
      Batches as in :func:`train_batches`.

    Raises:
      UserError: A row is longer than the longest padded length.

    Example:
      >>> import numpy as np
      >>> from afjax import Batching, eval_batches
      >>> from afjax.data.tokenization import TokenizedRows
      >>> tokens, types = np.arange(1, 7, dtype=np.int32), np.zeros(6, np.int8)
      >>> data = TokenizedRows(tokens, types, np.array([0, 4, 6]), labels=None, truncated=0)  # rows of 4 and 2 tokens
      >>> batch = next(eval_batches(data, Batching(batch_size=2, lengths=(4, 8), pad_id=0)))
      >>> batch["tokens"].tolist()
      [[5, 6, 0, 0], [1, 2, 3, 4]]
    """
    for rows in eval_groups(data.lengths, batching.batch_size):
        yield make_batch(data, rows, batching, part)


def train_groups(
    row_lengths: np.ndarray, batch_size: int, lengths: Sequence[int], seed: int, epoch: int
) -> list[np.ndarray]:
    """Shuffles rows and groups them by padded length.

    Returns the row indices of each batch.
    """
    rng = np.random.default_rng([seed, epoch])
    order = rng.permutation(len(row_lengths))
    buckets = bucket_of(row_lengths[order], lengths)
    groups: list[np.ndarray] = []
    leftover = order[:0]
    for bucket in range(len(lengths)):
        waiting = np.concatenate([leftover, order[buckets == bucket]])
        full = len(waiting) - len(waiting) % batch_size
        groups += list(waiting[:full].reshape(-1, batch_size))
        leftover = waiting[full:]
    if len(leftover):
        groups.append(leftover)
    return [groups[index] for index in rng.permutation(len(groups))]


def eval_groups(row_lengths: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Groups rows in order of length. Returns the row indices of each batch."""
    order = np.argsort(row_lengths, kind="stable")
    return [order[first : first + batch_size] for first in range(0, len(order), batch_size)]


def bucket_of(row_lengths: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
    """Returns the index of the smallest padded length that fits each row.

    Raises:
      UserError: A row is longer than the longest padded length.
    """
    buckets = np.searchsorted(np.asarray(lengths), row_lengths)
    if len(buckets) and buckets.max() == len(lengths):
        raise UserError(
            f"A row has {row_lengths.max()} tokens, but the longest padded length is {lengths[-1]}. Add a longer "
            "length, or tokenize with a smaller max_length."
        )
    return buckets


def make_batch(data: TokenizedRows, rows: np.ndarray, batching: Batching, part: slice = slice(None)) -> Batch:
    """Builds a batch from row indices; see :func:`train_batches`."""
    count, batch_size, lengths = len(rows), batching.batch_size, batching.lengths
    sequences = sequences_of(data, rows, batch_size)  # [B] or [B, C]
    present = sequences >= 0
    starts = np.where(present, data.offsets[sequences], 0)
    sequence_lengths = np.where(present, data.offsets[sequences + 1] - starts, 0)
    # All hosts run the same program, so the padded length is based on all rows and not only on this host's.
    length = lengths[bucket_of(sequence_lengths.ravel(), lengths).max()]
    starts, sequence_lengths = starts[part], sequence_lengths[part]
    positions = np.arange(length)
    mask = positions < sequence_lengths[..., None]
    # The index at padding positions is arbitrary, because the token there is replaced by the padding token.
    indices = np.where(mask, starts[..., None] + positions, 0)
    return {
        "tokens": np.where(mask, data.tokens[indices], batching.pad_id).astype(np.int32),
        "types": np.where(mask, data.types[indices], 0).astype(np.int32),
        "mask": mask,
        "labels": _batch_labels(data, rows, batch_size)[part]
        if data.token_labels is None
        else np.where(mask, data.token_labels[indices], -1).astype(np.int32),
        "weights": (np.arange(batch_size) < count)[part].astype(np.float32),
        "rows": np.pad(rows, (0, batch_size - count), constant_values=-1).astype(np.int32),
    }


def _batch_labels(data: TokenizedRows, rows: np.ndarray, batch_size: int) -> np.ndarray:
    """Gathers the labels of a batch, [B, ...], padded with zeros."""
    split_labels = np.zeros((0,), np.int32) if data.labels is None else data.labels
    labels = np.zeros((batch_size, *split_labels.shape[1:]), split_labels.dtype)
    if data.labels is not None:
        labels[: len(rows)] = data.labels[rows]
    return labels


def sequences_of(data: TokenizedRows, rows: np.ndarray, batch_size: int) -> np.ndarray:
    """Maps rows to sequence indices: int64 [B], or [B, C] for multiple choice.

    The index is -1 for missing rows and choices.
    """
    if data.choices is None:
        return np.pad(rows.astype(np.int64), (0, batch_size - len(rows)), constant_values=-1)
    sequences = np.full((batch_size, data.num_choices), -1, np.int64)
    numbers = data.choices[rows][:, None] + np.arange(data.num_choices)
    sequences[: len(rows)] = np.where(numbers < data.choices[rows + 1][:, None], numbers, -1)
    return sequences


def padding_share(
    data: TokenizedRows, *, batch_size: int, lengths: Sequence[int], training: bool = True, padding_rows: bool = True
) -> float:
    """Computes the fraction of padding tokens in one training epoch or one evaluation.

    Missing choices count as padding.

    Args:
      data: The split.
      batch_size: Rows per batch.
      lengths: The padded lengths.
      training: Whether the rows are batched as in training, or as in an evaluation.
      padding_rows: Whether to count padding rows that fill up a batch. In small splits, they can contain most of the
        tokens.
    """
    if training:
        groups = train_groups(data.lengths, batch_size, lengths, seed=0, epoch=0)
    else:
        groups = eval_groups(data.lengths, batch_size)
    sizes = np.array([len(rows) for rows in groups])
    starts = np.cumsum(sizes) - sizes
    longest = np.maximum.reduceat(data.lengths[np.concatenate(groups)], starts)
    padded = np.asarray(lengths)[bucket_of(longest, lengths)]
    tokens = int(np.sum(padded * (batch_size if padding_rows else sizes)))
    return 1.0 - float(data.offsets[-1]) / (tokens * data.num_choices)
