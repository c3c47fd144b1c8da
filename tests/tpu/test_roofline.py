"""Lower bounds of a step's time depend on operations, bytes and collectives."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afjax.tpu.chips import parse_topology
from afjax.tpu.program import Collective, Work
from afjax.tpu.roofline import collective_seconds, roofline

# A chip at a corner of this slice has two links of 50 GB/s.
V5E = parse_topology("v5e:2x4")
GATHER = Collective(kind="all-gather", num_bytes=10**9, times=1, group_size=8)


def work(matmul_flops: int = 0, hbm_bytes: int = 0, collectives: tuple[Collective, ...] = ()) -> Work:
    return Work(
        flops=matmul_flops,
        matmul_flops=matmul_flops,
        bytes_accessed=hbm_bytes,
        hbm_bytes=hbm_bytes,
        collectives=collectives,
        uncounted=(),
    )


@pytest.mark.parametrize(
    ("given_work", "bound", "seconds"),
    [
        (work(matmul_flops=197 * 10**12), "compute", 1.0),
        (work(hbm_bytes=819 * 10**9), "hbm", 1.0),
        (work(collectives=(dataclasses.replace(GATHER, times=800),)), "interconnect", 7.0),
    ],
)
def test_busiest_resource_bounds_the_step(given_work: Work, bound: str, seconds: float) -> None:
    times = roofline(given_work, V5E)
    assert times.bound == bound
    assert times.step_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("all-reduce", 14 / 8),
        ("all-gather", 7 / 8),
        ("reduce-scatter", 7 / 8),
        ("all-to-all", 7 / 8),
        ("collective-permute", 1),
    ],
)
def test_collective_time_depends_on_the_share_of_bytes_sent(kind: str, share: float) -> None:
    collective = dataclasses.replace(GATHER, kind=kind, times=3)
    assert collective_seconds(collective, V5E) == pytest.approx(3 * share * 1e9 / 100e9)


def test_single_chip_sends_nothing() -> None:
    assert collective_seconds(GATHER, parse_topology("v5e:1x1")) == 0
    assert collective_seconds(dataclasses.replace(GATHER, group_size=1), V5E) == 0


@settings(deadline=None)
@given(st.integers(0, 10**15), st.integers(0, 10**12), st.integers(0, 10**10), st.sampled_from([2, 4, 8]))
def test_step_time_is_the_longest_part_and_at_most_the_sum(flops: int, traffic: int, sent: int, group: int) -> None:
    collective = dataclasses.replace(GATHER, num_bytes=sent, group_size=group)
    times = roofline(work(flops, traffic, (collective,)), V5E)
    parts = {"compute": times.compute_s, "hbm": times.hbm_s, "interconnect": times.interconnect_s}
    assert times.step_s == parts[times.bound] == max(parts.values())
    assert times.step_s <= times.sum_s <= 3 * times.step_s
