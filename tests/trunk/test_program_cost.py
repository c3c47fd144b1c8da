"""The cost of compiling a program is converted to a number of tokens.

The time of a run is estimated.
"""

import dataclasses

import pytest

from afjax.data.lengths import PaddedLengths, RunTokens
from afjax.trunk.program_cost import SPEEDS, program_tokens, run_seconds
from afjax.trunk.sizes import SIZES


def test_cost_is_the_number_of_tokens_computed_while_a_program_compiles() -> None:
    trunk, speed = SIZES["bert-base"], SPEEDS["cpu"]
    cost = program_tokens(trunk, "cpu")
    # The layers' matrices have 85 million weights. Each weight takes two operations per token in the forward pass, and
    # two in the backward pass.
    operations = cost.train * 4 * 84_934_656
    assert operations / speed.flops_per_s == pytest.approx(12 * speed.train_s)
    assert cost.dev * 2 * 84_934_656 / speed.flops_per_s == pytest.approx(12 * speed.dev_s)


def test_programs_cost_more_on_fast_devices_and_for_small_trunks() -> None:
    costs = [program_tokens(SIZES[size], "cpu").train for size in ("bert-large", "bert-base", "minilm")]
    assert costs == sorted(costs)
    by_platform = [program_tokens(SIZES["bert-base"], platform).train for platform in ("cpu", "gpu", "tpu")]
    assert by_platform == sorted(by_platform)


def test_unknown_platform_counts_as_gpu() -> None:
    trunk = dataclasses.replace(SIZES["minilm"], num_layers=2)
    assert program_tokens(trunk, "metal") == program_tokens(trunk, "gpu")


def test_run_time_is_compile_time_plus_compute_time() -> None:
    trunk, speed, layers = SIZES["bert-base"], SPEEDS["cpu"], 12
    lengths, tokens = PaddedLengths(train=(16, 32), dev=(32,)), RunTokens(train=1000.0, dev=300.0)
    frozen = run_seconds(trunk, "cpu", lengths, tokens, num_devices=1, train_passes=2)
    assert frozen.compiling == pytest.approx(layers * (2 * speed.train_s + speed.dev_s))
    forward_s = 2 * 84_934_656 / speed.flops_per_s
    assert frozen.total - frozen.compiling == pytest.approx(forward_s * (2 * 1000 + 300))
    trained = run_seconds(trunk, "cpu", lengths, tokens, num_devices=4, train_passes=3)
    assert trained.total - trained.compiling == pytest.approx(forward_s * (3 * 1000 + 300) / 4)
