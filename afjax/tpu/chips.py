"""Specifications of TPU chips and the available slices of each generation."""

import contextlib
import dataclasses
import math
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from afjax.errors import UserError, did_you_mean


@dataclasses.dataclass(frozen=True)
class Chip:
    """The specifications of a TPU chip, which is one JAX device.

    Attributes:
      name: The generation, such as ``v5e``.
      flops_per_s: Peak FLOP/s of matrix products with bfloat16 operands.
      hbm_bytes: Main memory (HBM) available to programs, in bytes.
      hbm_bytes_per_s: HBM bandwidth, in bytes per second.
      link_bytes_per_s: One-way bandwidth of one interconnect link, in bytes per second. In a d-dimensional torus, every
        chip has 2 d links.
      dimensions: Number of dimensions of the interconnect torus.
      cores: Number of TensorCores. Two TensorCores act as one device ("megacore").
      max_chips: Number of chips in the largest slice.
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

# Sources: Google's tables, https://docs.cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e}, as of 2026: "Peak compute per chip
# (bf16)", "HBM capacity" and "HBM bandwidth per chip", and "Bidirectional inter-chip interconnect (ICI) bandwidth (per
# chip)", which is twice the number of links times the one-way bandwidth of a link. Because the system reserves part of
# the HBM, ``hbm_bytes`` is the capacity that libtpu 0.0.42 reports as available. It refuses to compile programs that
# need more.
_CHIPS = (
    # Columns: name, flops_per_s, hbm_bytes, hbm_bytes_per_s, link_bytes_per_s.
    #
    # 275 TFLOP/s, 32 GiB at 1200 GB/s. The page does not list the interconnect bandwidth. 6 links of 50 GB/s
    # (2400 Gbit/s) are consistent with its all-reduce bandwidth of 1.1 PB/s for 4096 chips, and with the 45 GB/s per
    # link in "How to Scale Your Model" (https://jax-ml.github.io/scaling-book/tpus).
    Chip("v4", 275e12, int(30.75 * _GIB), 1200e9, 50e9, dimensions=3, cores=2, max_chips=4096),
    # 197 TFLOP/s, 16 GB at 819 GB/s (newer pages: 800 GiB/s), 400 GB/s in both directions over 4 links.
    Chip("v5e", 197e12, int(15.75 * _GIB), 819e9, 50e9, dimensions=2, cores=1, max_chips=256),
    # 459 TFLOP/s, 95 GiB at 2765 GB/s, 1200 GB/s in both directions over 6 links. 8960 chips per pod, at most 6144 per
    # job.
    Chip("v5p", 459e12, int(95.74 * _GIB), 2765e9, 100e9, dimensions=3, cores=2, max_chips=6144),
    # 918 TFLOP/s, 32 GB at 1638 GB/s, 800 GB/s in both directions over 4 links. (Older pages list 3584 Gbit/s in one
    # direction, but the all-reduce bandwidth of 102.4 TB/s for 256 chips is 400 GB/s per chip.)
    Chip("v6e", 918e12, int(31.25 * _GIB), 1638e9, 100e9, dimensions=2, cores=1, max_chips=256),
)
CHIPS = {chip.name: chip for chip in _CHIPS}

# v5e and v6e slice shapes, from the pages above.
_FLAT = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
# v4 and v5p slice shapes that are smaller than a cube of 64 chips.
_SMALL = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))


@dataclasses.dataclass(frozen=True)
class Topology:
    """A slice: chips of one generation, connected in a grid or torus.

    Attributes:
      chip: The chip's specifications.
      shape: Number of chips along each axis of the interconnect.
    """

    chip: Chip
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The slice's name, such as ``v5e:2x4``."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def num_chips(self) -> int:
        return math.prod(self.shape)

    @property
    def wrap(self) -> tuple[bool, ...]:
        """Whether the last chip along each axis is linked to the first.

        In a two-dimensional torus, an axis wraps if it has all 16 chips. In three dimensions, all axes wrap if the
        slice consists of full 4x4x4 cubes; otherwise none do.
        """
        if self.chip.dimensions == 2:
            return tuple(size == 16 for size in self.shape)
        return (all(size % 4 == 0 for size in self.shape),) * 3

    @property
    def links(self) -> int:
        """Number of links of the chip with the fewest links within the slice."""
        return sum((2 if wraps else 1) for size, wraps in zip(self.shape, self.wrap, strict=True) if size > 1)

    @property
    def interconnect_bytes_per_s(self) -> float:
        """Total one-way bandwidth of the chip with the fewest links; 0 for one chip."""
        return self.links * self.chip.link_bytes_per_s


def parse_topology(name: str) -> Topology:
    """Parses a topology's name, such as ``v5e:2x4``.

    Raises:
      UserError: The generation is unknown, or it has no slice of this shape.
    """
    generation, _, sizes = name.partition(":")
    if generation not in CHIPS:
        raise UserError(
            f'The topology "{name}" is not a known TPU; use GENERATION:SHAPE with one of {", ".join(CHIPS)}, such as '
            f"v5e:2x4 or v5p:2x2x2.{did_you_mean(generation, CHIPS)}"
        )
    chip = CHIPS[generation]
    # Accept only the format of Topology.name. \d and int() would also accept 02x04 and non-ASCII digits.
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
        return f"{chip.name} has {', '.join(f'{chip.name}:{a}x{b}' for a, b in _FLAT)}"
    small = ", ".join(f"{chip.name}:{'x'.join(map(str, shape))}" for shape in _SMALL)
    return (
        f"{chip.name} has {small}, and AxBxC of multiples of 4 with A <= B <= C and at most {chip.max_chips} "
        f"chips, such as {chip.name}:4x4x4 and {chip.name}:4x4x8"
    )


def get_topology(topology: Topology) -> Any:
    """Builds a JAX topology, for compiling programs without a TPU.

    Its ``devices`` attribute has one JAX device per chip.

    Raises:
      UserError: The TPU compiler (libtpu) is not installed.
    """
    # Otherwise libtpu queries the cloud's metadata server for the machine type, which takes minutes to time out outside
    # the cloud.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    # libtpu's lock lets only one process at a time use a machine's TPUs. Compiling does not use them.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    from jax.experimental import topologies

    try:
        import libtpu  # noqa: F401
    except ImportError:
        raise UserError(
            "Compiling for TPUs requires libtpu, which is not installed; run pip install 'afjax[tpu]'."
        ) from None
    # The host of a one-chip slice has one chip. In all other slices, hosts are described with four chips each.
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
    """Captures the stderr of native code, and prints it only if the block raises.

    This hides libtpu's warnings that the machine has no TPU.
    """
    with tempfile.TemporaryFile() as captured:
        saved = os.dup(2)
        os.dup2(captured.fileno(), 2)
        try:
            yield
        except BaseException:
            captured.seek(0)
            os.write(saved, captured.read())
            raise
        finally:
            os.dup2(saved, 2)
            os.close(saved)
