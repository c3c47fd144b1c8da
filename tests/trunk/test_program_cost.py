"""The cost of a program in tokens."""

import dataclasses

import pytest

from afjax.data.lengths import PaddedLengths
from afjax.trunk.program_cost import SPEEDS, expected_seconds, program_tokens
from afjax.trunk.sizes import SIZES


def test_cost_is_the_number_of_tokens_computed_while_a_program_compiles() -> None:
    trunk, speed = SIZES["bert-base"], SPEEDS["cpu"]
    cost = program_tokens(trunk, "cpu")
    # 85 million weights in the layers' matrices, with two operations each, forward and backward.
    operations = cost.train * 4 * 84_934_656
    assert operations / speed.flops_per_s == pytest.approx(12 * speed.train_s)
    assert cost.dev * 2 * 84_934_656 / speed.flops_per_s == pytest.approx(12 * speed.dev_s)


def test_programs_cost_more_on_fast_devices_and_for_small_trunks() -> None:
    costs = [program_tokens(SIZES[size], "cpu").train for size in ("bert-large", "bert-base", "minilm")]
    assert costs == sorted(costs)
    by_platform = [program_tokens(SIZES["bert-base"], platform).train for platform in ("cpu", "gpu", "tpu")]
    assert by_platform == sorted(by_platform)


def test_expected_time_is_for_compiling_programs_and_computing_tokens() -> None:
    trunk, cost = SIZES["minilm"], program_tokens(SIZES["minilm"], "cpu")
    lengths = PaddedLengths((32, 64), (16,))
    # As many tokens as cost one program each.
    compiling, computing = expected_seconds(trunk, "cpu", 1, lengths, (cost.train, cost.dev))
    train_s, dev_s = 6 * SPEEDS["cpu"].train_s, 6 * SPEEDS["cpu"].dev_s
    assert compiling == pytest.approx(2 * train_s + dev_s)
    assert computing == pytest.approx(train_s + dev_s)
    assert expected_seconds(trunk, "cpu", 4, lengths, (cost.train, cost.dev)) == pytest.approx(
        (compiling, computing / 4)
    )


def test_unknown_platform_counts_as_gpu() -> None:
    trunk = dataclasses.replace(SIZES["minilm"], num_layers=2)
    assert program_tokens(trunk, "metal") == program_tokens(trunk, "gpu")
