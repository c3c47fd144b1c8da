"""The TPU generations: what a chip can do, and which slices of them there are."""

import contextlib
import dataclasses
import math
import os
import re
import tempfile
import types
from collections.abc import Iterator, Mapping
from typing import Any

from afjax.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """One chip of a TPU generation. A JAX device is a chip.

    Attributes:
      name: ``v5e``.
      flops_per_s: Peak of matrix products with bfloat16 operands.
      hbm_bytes: What programs may take of its main memory.
      hbm_bytes_per_s: That memory's bandwidth.
      link_bytes_per_s: What one interconnect link carries in one direction; a torus of d dimensions has 2 d a chip.
      dimensions: Of the interconnect's torus.
      cores: Tensor cores. Where there are two they work as one device ("megacore").
      max_chips: In the largest slice.
    """

    name: str
    flops_per_s: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    dimensions: int
    cores: int
    max_chips: int


_GIB = 2**30

# Google's tables, https://docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, read in 2026: "Peak compute per chip
# (bf16)", "HBM capacity" and "HBM bandwidth per chip", and "Bidirectional inter-chip interconnect (ICI) bandwidth (per
# chip)", which is twice the links times what one carries in one direction. Of the capacity the system keeps a part;
# ``hbm_bytes`` is what libtpu 0.0.42 says is available, and beyond which it refuses to compile.
CHIPS: Mapping[str, Chip] = types.MappingProxyType(
    {
        chip.name: chip
        for chip in (
            # 275 TFLOP/s, 32 GiB at 1200 GB/s. The page has no interconnect bandwidth: 6 links of 50 GB/s, 2400 Gbit/s,
            # go with its all-reduce bandwidth of 1.1 PB/s for 4096 chips, and with the 45 GB/s a link that "How to
            # Scale Your Model" (https://jax-ml.github.io/scaling-book/tpus) reckons with.
            Chip(
                name="v4",
                flops_per_s=275e12,
                hbm_bytes=int(30.75 * _GIB),
                hbm_bytes_per_s=1200e9,
                link_bytes_per_s=50e9,
                dimensions=3,
                cores=2,
                max_chips=4096,
            ),
            # 197 TFLOP/s, 16 GB at 819 GB/s (newer: 800 GiB/s), 400 GB/s both ways over 4 links.
            Chip(
                name="v5e",
                flops_per_s=197e12,
                hbm_bytes=int(15.75 * _GIB),
                hbm_bytes_per_s=819e9,
                link_bytes_per_s=50e9,
                dimensions=2,
                cores=1,
                max_chips=256,
            ),
            # 459 TFLOP/s, 95 GiB at 2765 GB/s, 1200 GB/s both ways over 6 links. 8960 chips a pod, 6144 a job.
            Chip(
                name="v5p",
                flops_per_s=459e12,
                hbm_bytes=int(95.74 * _GIB),
                hbm_bytes_per_s=2765e9,
                link_bytes_per_s=100e9,
                dimensions=3,
                cores=2,
                max_chips=6144,
            ),
            # 918 TFLOP/s, 32 GB at 1638 GB/s, 800 GB/s both ways over 4 links (3584 Gbit/s one way on older pages;
            # 102.4 TB/s of all-reduce bandwidth for 256 chips are 400 GB/s a chip).
            Chip(
                name="v6e",
                flops_per_s=918e12,
                hbm_bytes=int(31.25 * _GIB),
                hbm_bytes_per_s=1638e9,
                link_bytes_per_s=100e9,
                dimensions=2,
                cores=1,
                max_chips=256,
            ),
        )
    }
)

# The slices that the pages above list for v5e and v6e; of v4 and v5p those smaller than a cube of 64 chips.
_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice of a generation's chips.

    Attributes:
      chip: What it is made of.
      shape: Chips along each axis of the interconnect.
    """

    chip: Chip
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """``v5e:2x4``."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape)

    @property
    def wrap(self) -> tuple[bool, ...]:
        """Along which axes the last chip has a link to the first: full ones of a flat torus, all of whole cubes."""
        if self.chip.dimensions == 2:
            return tuple(size == 16 for size in self.shape)
        return (all(size % 4 == 0 for size in self.shape),) * 3

    @property
    def links(self) -> int:
        """How many links the chip with the fewest has within the slice."""
        return sum((2 if wraps else 1) for size, wraps in zip(self.shape, self.wrap, strict=True) if size > 1)

    @property
    def interconnect_bytes_per_s(self) -> float:
        """What the chip with the fewest links can send, all of them together; 0 for one chip alone."""
        return self.links * self.chip.link_bytes_per_s


def parse_topology(name: str) -> Topology:
    """Reads a topology's name, ``v5e:2x4``.

    Raises:
      UserError: There is no such generation, or no such slice of it.
    """
    generation, _, sizes = name.partition(":")
    if generation not in CHIPS:
        raise UserError(
            f'The topology "{name}" names no known TPU; take GENERATION:SHAPE with one of {", ".join(CHIPS)}, such as '
            f"v5e:2x4 or v5p:2x2x2.{did_you_mean(generation, CHIPS)}"
        )
    chip = CHIPS[generation]
    # Written as Topology.name writes it: not 02x04, nor the digits of other scripts, which \d and int() take too.
    size = "[1-9][0-9]{0,3}"
    shape = tuple(map(int, sizes.split("x"))) if re.fullmatch(f"{size}(x{size})*", sizes) else ()
    if not _exists(chip, shape):
        raise UserError(f'There is no topology "{name}"; {_allowed(chip)}.')
    return Topology(chip, shape)


def _exists(chip: Chip, shape: tuple[int, ...]) -> bool:
    if chip.dimensions == 2:
        return shape in _FLAT
    cubes = len(shape) == 3 and all(size % 4 == 0 for size in shape) and sorted(shape) == list(shape)
    return shape in _SMALL or (cubes and math.prod(shape) <= chip.max_chips)


def _allowed(chip: Chip) -> str:
    if chip.dimensions == 2:
        return f"of {chip.name} there are {', '.join(f'{chip.name}:{a}x{b}' for a, b in _FLAT)}"
    small = ", ".join(f"{chip.name}:{'x'.join(map(str, shape))}" for shape in _SMALL)
    return (
        f"of {chip.name} there are {small}, and AxBxC of multiples of 4 with A <= B <= C and at most {chip.max_chips} "
        f"chips, such as {chip.name}:4x4x4 and {chip.name}:4x4x8"
    )


def get_topology(topology: Topology) -> Any:
    """The JAX devices of a slice to compile for, as ``get_topology_desc`` describes them; there need be no TPU.

    ``.devices`` of the result are as many as there are chips.

    Raises:
      UserError: The TPU's compiler is not installed.
    """
    # Without it libtpu asks the cloud's metadata server what machine this is, for minutes where there is none.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # One process at a time may use a machine's TPUs; compiling uses none, so it need not wait for another one's lock.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    from jax.experimental import topologies

    try:
        import libtpu  # noqa: F401
    except ImportError:
        raise UserError(
            "Programs for TPUs are compiled by libtpu, which is not installed; run pip install 'afjax[tpu]'."
        ) from None
    # One chip is described as a host of its own; hosts of all other slices have four.
    host = (1, 1, 1) if topology.num_chips == 1 else (2, 2, 1)
    with _quiet_stderr():
        return topologies.get_topology_desc(
            platform="tpu",
            topology_name=topology.name,
            chip_config_name="megacore" if topology.chip.cores == 2 else "default",
            chips_per_host_bounds=host,
            wrap=(*topology.wrap, False)[:3],
        )


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Keeps back what native code writes to stderr (libtpu's warnings that there is no TPU); shown if it fails."""
    with tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(saved, kept.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
