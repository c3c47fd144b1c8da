"""The table of chips is complete, and names of slices are parsed."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afjax.errors import UserError
from afjax.tpu.chips import CHIPS, get_topology, parse_topology


@pytest.mark.parametrize(
    ("name", "num_chips", "links", "wrap"),
    [
        ("v5e:1x1", 1, 0, (False, False)),
        ("v5e:2x4", 8, 2, (False, False)),
        ("v6e:8x16", 128, 3, (False, True)),
        ("v6e:16x16", 256, 4, (True, True)),
        ("v4:2x2x1", 4, 2, (False, False, False)),
        ("v5p:2x4x4", 32, 3, (False, False, False)),
        ("v5p:4x4x8", 128, 6, (True, True, True)),
    ],
)
def test_number_of_chips_and_links_of_a_slice(name: str, num_chips: int, links: int, wrap: tuple[bool, ...]) -> None:
    topology = parse_topology(name)
    assert (topology.name, topology.num_chips, topology.links, topology.wrap) == (name, num_chips, links, wrap)
    assert topology.interconnect_bytes_per_s == links * topology.chip.link_bytes_per_s


@pytest.mark.parametrize(("generation", "gigabits"), [("v4", 2400), ("v5e", 1600), ("v5p", 4800), ("v6e", 3200)])
def test_links_sum_to_the_published_interconnect_bandwidth(generation: str, gigabits: int) -> None:
    chip = CHIPS[generation]
    assert 2 * chip.dimensions * chip.link_bytes_per_s * 8 == gigabits * 10**9


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v7:2x2", r'topology "v7:2x2" .*GENERATION:SHAPE .*v4, v5e, v5p, v6e,'),
        ("v5:2x4", r'Did you mean "v5'),
        ("v5e", r'no topology "v5e"; .*v5e:1x1, v5e:2x2, v5e:2x4'),
        ("v5e:3x3", r'no topology "v5e:3x3"; .*v5e:1x1'),
        ("v6e:2x2x1", r"v6e .*v6e:1x1"),
        ("v4:2x2", r"v4 .*v4:2x2x1, .*AxBxC .*multiples of 4 .*A <= B <= C .*at most 4096"),
        ("v4:16x16x32", r"at most 4096"),
        ("v5p:8x4x4", r"A <= B <= C"),
        ("v5p:0x4x4", r"multiples of 4"),
        ("v5e:02x04", r'no topology "v5e:02x04"; .*v5e:1x1'),
        ("v5e:\uff12x\uff14", r"no topology .*; .*v5e:1x1"),
    ],
)
def test_unknown_slice_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_topology(name)


@settings(deadline=None)
@given(st.text(max_size=12) | st.from_regex(r"v(4|5e|5p|6e):\d{1,5}(x\d{1,5}){0,3}", fullmatch=True))
def test_any_name_is_parsed_or_refused(name: str) -> None:
    try:
        topology = parse_topology(name)
    except UserError:
        return
    assert topology.num_chips <= topology.chip.max_chips


def test_missing_compiler_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "libtpu", None)
    with pytest.raises(UserError, match=r"libtpu, .*pip install 'afjax\[tpu\]'"):
        get_topology(parse_topology("v5e:2x2"))


@pytest.mark.usefixtures("needs_libtpu")
@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:1x1", "v5e:2x4", "v5p:2x2x2", "v5p:4x4x4", "v6e:16x16"])
def test_every_device_is_one_chip(name: str) -> None:
    topology = parse_topology(name)
    devices = get_topology(topology).devices
    assert len(devices) == topology.num_chips
    assert {device.num_cores for device in devices} == {topology.chip.cores}
