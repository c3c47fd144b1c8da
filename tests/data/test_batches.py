"""Batches contain every row once and have few shapes. Their order depends only on seed and epoch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afjax.data.batches import Batch, Batching, batches_per_epoch, eval_batches, padding_share, train_batches
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError

LENGTHS = (4, 8, 12)
PAD = 99


def make_data(row_lengths: list[int], *, labels: np.ndarray | None = None) -> TokenizedRows:
    """Creates rows with the given lengths. Row r has the tokens 1000 r, 1000 r + 1, ... and alternating types."""
    tokens = [1000 * row + np.arange(length) for row, length in enumerate(row_lengths)]
    flat = np.concatenate([*tokens, np.zeros(0)]).astype(np.int32)
    return TokenizedRows(flat, (flat % 2).astype(np.int8), np.cumsum([0, *row_lengths]), labels, 0)


def check(batches: list[Batch], data: TokenizedRows, batch_size: int) -> None:
    """Checks the batches' shapes and contents, and that every row occurs exactly once."""
    seen: list[int] = []
    for batch in batches:
        length = batch["tokens"].shape[1]
        assert length in LENGTHS
        for name, dtype in (("tokens", np.int32), ("types", np.int32), ("mask", np.bool_)):
            assert batch[name].shape == (batch_size, length)
            assert batch[name].dtype == dtype
        for name, dtype in (("weights", np.float32), ("rows", np.int32)):
            assert batch[name].shape == (batch_size,)
            assert batch[name].dtype == dtype
        real = batch["rows"] >= 0
        assert np.array_equal(batch["weights"], real.astype(np.float32))
        assert batch["mask"][~real].sum() == 0
        widest = int(data.lengths[batch["rows"][real]].max())
        assert length == min(allowed for allowed in LENGTHS if allowed >= widest)
        for place, row in enumerate(batch["rows"]):
            ids = data.tokens[data.offsets[row] : data.offsets[row + 1]] if row >= 0 else data.tokens[:0]
            assert batch["tokens"][place].tolist() == [*ids.tolist(), *[PAD] * (length - len(ids))]
            assert batch["types"][place].tolist() == [*(ids % 2).tolist(), *[0] * (length - len(ids))]
            assert batch["mask"][place].tolist() == [index < len(ids) for index in range(length)]
            if data.labels is not None:
                assert batch["labels"][place] == (data.labels[row] if row >= 0 else 0)
        seen += batch["rows"][real].tolist()
    assert sorted(seen) == list(range(len(data)))


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        np.array_equal(first[name], second[name]) for first, second in zip(one, other, strict=True) for name in first
    )


row_lengths = st.lists(st.integers(1, 12), min_size=1, max_size=40)


@given(row_lengths, st.integers(1, 9), st.integers(0, 2**40), st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_train_batches(lengths: list[int], batch_size: int, seed: int, epoch: int) -> None:
    data = make_data(lengths, labels=np.arange(len(lengths), dtype=np.int32))

    def batches(start: int = 0) -> list[Batch]:
        return list(train_batches(data, Batching(batch_size, LENGTHS, PAD), seed=seed, epoch=epoch, start=start))

    whole = batches()
    check(whole, data, batch_size)
    assert len(whole) == batches_per_epoch(len(data), batch_size)
    assert sum((batch["rows"] < 0).any() for batch in whole) <= 1
    assert same(whole, batches())
    for start in (0, 1, len(whole) - 1, len(whole), len(whole) + 1):
        assert same(batches(start), whole[start:])


@given(row_lengths, st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_eval_batches(lengths: list[int], batch_size: int) -> None:
    data = make_data(lengths, labels=np.linspace(0, 1, len(lengths), dtype=np.float32))
    batches = list(eval_batches(data, Batching(batch_size, LENGTHS, PAD)))
    check(batches, data, batch_size)
    assert len(batches) == batches_per_epoch(len(data), batch_size)
    widths = [batch["tokens"].shape[1] for batch in batches]
    assert widths == sorted(widths)
    assert batches[0]["labels"].dtype == np.float32


@given(row_lengths, st.integers(1, 9))
@settings(max_examples=50, deadline=None)
def test_padding_share_matches_the_batches(lengths: list[int], batch_size: int) -> None:
    data = make_data(lengths)
    batches = list(train_batches(data, Batching(batch_size, LENGTHS, PAD), seed=0, epoch=0))
    counted = 1 - sum(batch["mask"].sum() for batch in batches) / sum(batch["mask"].size for batch in batches)
    assert padding_share(data, batch_size=batch_size, lengths=LENGTHS) == pytest.approx(counted)


def orders(*, seed: int, epoch: int) -> list[int]:
    data = make_data([3] * 50)
    batches = train_batches(data, Batching(8, LENGTHS, PAD), seed=seed, epoch=epoch)
    return [int(row) for batch in batches for row in batch["rows"]]


def test_order_changes_with_seed_and_epoch() -> None:
    assert orders(seed=0, epoch=0) == orders(seed=0, epoch=0)
    assert len({tuple(orders(seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_order_does_not_depend_on_contents() -> None:
    one = make_data([3] * 20)
    other = TokenizedRows(one.tokens + 1, one.types, one.offsets, np.ones(20, np.int32), 0)
    rows = [
        [batch["rows"].tolist() for batch in train_batches(data, Batching(8, LENGTHS, 0), seed=1, epoch=2)]
        for data in (one, other)
    ]
    assert rows[0] == rows[1]


def test_rows_of_equal_length_share_batches() -> None:
    data = make_data([3, 12] * 40)
    batches = list(train_batches(data, Batching(8, LENGTHS, PAD), seed=0, epoch=0))
    assert sorted(batch["tokens"].shape[1] for batch in batches) == [4] * 5 + [12] * 5


def test_unlabeled_rows_have_zero_labels() -> None:
    (batch,) = eval_batches(make_data([3, 5]), Batching(3, LENGTHS, PAD))
    assert batch["labels"].tolist() == [0, 0, 0]
    assert batch["labels"].dtype == np.int32


def test_no_rows_give_no_batches() -> None:
    data = make_data([])
    assert not list(train_batches(data, Batching(8, LENGTHS, PAD), seed=0, epoch=0))
    assert not list(eval_batches(data, Batching(8, LENGTHS, PAD)))


@pytest.mark.parametrize(
    ("batch_size", "lengths", "named"),
    [(0, (8,), "batch_size is 0"), (8, (), r"lengths is \(\)"), (8, (8, 4), r"\(8, 4\)"), (8, (0, 4), r"\(0, 4\)")],
)
def test_invalid_batches_are_refused(batch_size: int, lengths: tuple[int, ...], named: str) -> None:
    with pytest.raises(UserError, match=named):
        Batching(batch_size, lengths, PAD)


def test_row_longer_than_the_maximum_length_is_refused() -> None:
    data = make_data([3, 9])
    for batches in (
        train_batches(data, Batching(2, (4, 8), PAD), seed=0, epoch=0),
        eval_batches(data, Batching(2, (4, 8), PAD)),
    ):
        with pytest.raises(UserError, match=r"9 tokens.*length is 8"):
            next(batches)
