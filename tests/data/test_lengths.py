"""A padded length is only added if it saves more time than compiling its program takes."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afjax.config.training import TrainConfig
from afjax.data.batches import padding_share
from afjax.data.lengths import (
    MOST,
    PaddedLengths,
    ProgramTokens,
    Workload,
    _cheapest,
    choose_lengths,
    eval_lengths,
    inference_lengths,
    ladder,
    run_tokens,
    train_lengths,
)
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError

CONFIG = TrainConfig(max_length=40, batch_size=4)
PROGRAM_TOKENS = 100_000
COST = ProgramTokens(train=PROGRAM_TOKENS, dev=PROGRAM_TOKENS)


def rows_of(lengths: list[int]) -> TokenizedRows:
    tokens = np.zeros(sum(lengths), np.int32)
    return TokenizedRows(tokens, tokens.astype(np.int8), np.cumsum([0, *lengths]), None, 0)


def lengths_of(*train: TokenizedRows, num_steps: int = 10**6, config: TrainConfig = CONFIG, **given: Any) -> tuple:
    """Chooses training-batch lengths, by default for a run so long that compilation costs almost nothing."""
    return train_lengths(train, config, PROGRAM_TOKENS, num_steps=num_steps, **given)


def test_rows_of_equal_length_use_one_padded_length() -> None:
    assert lengths_of(rows_of([8] * 12)) == (8,)


def test_second_length_must_save_enough_padding_over_the_run() -> None:
    data = rows_of([8] * 40 + [32] * 40)
    # With one length, half of the steps have 4 rows with 24 padding tokens each.
    enough = 2 * -(-PROGRAM_TOKENS // (4 * 24))
    assert lengths_of(data, num_steps=enough - 10) == (32,)
    assert lengths_of(data, num_steps=enough + 10) == (8, 32)
    assert padding_share(data, batch_size=4, lengths=(8, 32)) == 0


def test_short_run_has_one_length() -> None:
    lengths = np.random.default_rng(0).integers(4, 128, 300).tolist()
    config = TrainConfig(max_length=128, batch_size=32)
    assert lengths_of(rows_of(lengths), num_steps=10, config=config) == (128,)
    assert len(lengths_of(rows_of(lengths), num_steps=1000, config=config)) > 2


def test_tokens_of_a_run_include_padding_and_are_weighted_by_task() -> None:
    short, long = rows_of([3] * 8), rows_of([10] * 6)
    lengths = PaddedLengths(train=(4, 16), dev=(16,))
    given: dict[str, Any] = {"config": CONFIG, "num_steps": 10, "num_evaluations": 5}
    single = run_tokens(Workload(train=[short], dev=[long], **given), lengths)
    # A step has 4 rows of 4 tokens. An evaluation has 2 batches of 4 rows of 16 tokens, including 2 padding rows.
    assert (single.train, single.dev) == (pytest.approx(10 * 4 * 4), pytest.approx(5 * 2 * 4 * 16))
    # A batch of an epoch with 6 rows also has 2 padding rows.
    both = run_tokens(Workload(train=[short, long], dev=[short, long], shares=[3, 1], **given), lengths)
    assert both.train == pytest.approx(10 * (0.75 * 4 * 4 + 0.25 * 4 * 16))
    assert both.dev == pytest.approx(5 * (2 + 2) * 4 * 16)


def test_few_rows_are_padded_to_max_length_to_share_the_program() -> None:
    rows = rows_of([8] * 12)
    # Each step has 4 rows with 32 additional padding tokens. The limit for all steps together is the number of tokens
    # that can be computed in a twentieth of a program's compile time.
    enough = PROGRAM_TOKENS // 20 // (4 * 32)
    assert lengths_of(rows, num_steps=enough - 1, common=True) == (40,)
    assert lengths_of(rows, num_steps=enough + 1, common=True) == lengths_of(rows, num_steps=1) == (8,)
    # An evaluation has 3 batches of 4 rows.
    enough = PROGRAM_TOKENS // 20 // (12 * 32)
    for num_evaluations, expected in ((enough, (40,)), (enough + 1, (8,))):
        assert eval_lengths([rows], CONFIG, PROGRAM_TOKENS, num_evaluations=num_evaluations, common=True) == expected


def test_large_batches_are_not_padded_to_max_length() -> None:
    for max_length, expected in ((128, (128,)), (129, (8,))):
        config = TrainConfig(max_length=max_length, batch_size=32)
        assert train_lengths([rows_of([8])], config, 1e9, num_steps=1, common=True) == expected
        assert eval_lengths([rows_of([8])], config, 1e9, common=True) == expected


def test_dev_rows_have_their_own_lengths() -> None:
    train, dev = rows_of([8] * 12), rows_of([39] * 10 + [4] * 10)
    work = Workload(train=[train], dev=[dev], config=CONFIG, num_steps=10, num_evaluations=1)
    found = choose_lengths(work, COST)
    assert found == PaddedLengths(train=(8,), dev=(40,))
    # With enough evaluations, compiling a program for the short dev rows pays off.
    found = choose_lengths(dataclasses.replace(work, num_evaluations=10**4), COST)
    assert found == PaddedLengths(train=(8,), dev=(4, 40))
    # The third batch has both short and long rows.
    assert padding_share(dev, batch_size=4, lengths=(4, 40), training=False) == 1 - (390 + 40) / (2 * 16 + 3 * 160)


def test_predicting_few_rows_reuses_programs_across_calls() -> None:
    few, many = rows_of([4] * 100 + [39]), rows_of([4] * 39_000 + [39] * 1000)
    assert inference_lengths(few, batch_size=4, max_length=40) == (10, 20, 30, 40)
    assert inference_lengths(many, batch_size=4, max_length=40) == (4, 40)


@pytest.mark.parametrize("num_rows", [1, 50_000])
def test_predicting_rows_that_are_too_long_is_refused(num_rows: int) -> None:
    with pytest.raises(UserError) as refused:
        inference_lengths(rows_of([39] * num_rows), batch_size=4, max_length=38)
    assert all(fact in str(refused.value) for fact in ("39", "38", "max_length"))


def test_candidate_lengths() -> None:
    assert ladder(1, 128) == [2]
    assert ladder(31, 128) == [*range(2, 25, 2), 28, 32]
    assert ladder(125, 126) == [*range(2, 25, 2), *range(28, 49, 4), 56, 64, 72, 80, 96, 112, 126]
    assert ladder(500, 512)[-6:] == [224, 256, 320, 384, 448, 512]


def test_configured_lengths_are_used() -> None:
    config = TrainConfig(max_length=40, buckets=(10, 20))
    work = Workload(train=[rows_of([8] * 12)], dev=[rows_of([8])], config=config, num_steps=1, num_evaluations=1)
    found = choose_lengths(work, COST)
    assert found == PaddedLengths(train=(10, 20, 40), dev=(10, 20, 40))
    assert eval_lengths([rows_of([8])], config, PROGRAM_TOKENS) == (10, 20, 40)


def test_rarely_sampled_tasks_count_little() -> None:
    short, long = rows_of([8] * 40), rows_of([32] * 40)
    assert lengths_of(short, long, shares=[1.0, 1.0], num_steps=10**5) == (8, 32)
    assert lengths_of(short, long, shares=[1.0, 1e5], num_steps=10**5) == (32,)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=200), st.integers(1, 10**5))
def test_chosen_number_of_lengths_has_the_lowest_cost(lengths: list[int], num_steps: int) -> None:
    data = rows_of(lengths)
    chosen = lengths_of(data, num_steps=num_steps)
    assert list(chosen) == sorted(set(chosen))
    allowed = ladder(max(lengths), CONFIG.max_length)
    assert max(lengths) <= chosen[-1] == allowed[-1]
    assert set(chosen) <= set(allowed)
    most = min(MOST, len(allowed), max(1, -(-len(lengths) // 4) // 2))
    assert len(chosen) <= most
    tokens = num_steps * 4 * sum(lengths) / len(lengths)

    def cost(option: tuple[int, ...]) -> float:
        share = padding_share(data, batch_size=4, lengths=option)
        return tokens / (1 - share) + PROGRAM_TOKENS * len(option)

    options = _cheapest(np.bincount(lengths, minlength=41).astype(float), np.array(allowed))[:most]
    least = min(map(cost, options))
    assert cost(chosen) == pytest.approx(least)
    common, longest = lengths_of(data, num_steps=num_steps, common=True), (CONFIG.max_length,)
    if common != chosen:
        assert common == longest
        assert cost(longest) - least <= PROGRAM_TOKENS / 20 * (1 + 1e-6)
    elif chosen != longest:
        assert cost(longest) - least >= PROGRAM_TOKENS / 20 * (1 - 1e-6)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5), min_size=5, max_size=9), st.integers(1, 4))
def test_best_lengths_equal_an_exhaustive_search(counts: list[int], number: int) -> None:
    weights = np.array([0.0, *counts])
    weights[-1] += 1
    lengths = range(1, len(weights))

    def places(chosen: tuple[int, ...]) -> float:
        return sum(weights[length] * min(end for end in chosen if end >= length) for length in lengths)

    found = _cheapest(weights, np.array(lengths))[number - 1]
    options = [chosen for chosen in itertools.combinations(lengths, number) if chosen[-1] == lengths[-1]]
    assert places(found) == pytest.approx(min(map(places, options)))
