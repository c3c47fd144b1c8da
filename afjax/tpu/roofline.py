"""How fast a chip could run a program at best: the time that each of its three resources is busy."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from afjax.tpu.chips import Topology
from afjax.tpu.program import Collective, Work

Bound = Literal["compute", "hbm", "interconnect"]


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds of one step.

    Attributes:
      compute_s: Matrix products at the chip's bfloat16 peak.
      hbm_s: Memory traffic at the main memory's bandwidth.
      interconnect_s: Collectives at the bandwidth of the links.
    """

    compute_s: float
    hbm_s: float
    interconnect_s: float

    @property
    def bound(self) -> Bound:
        """Which of them takes longest."""
        seconds: Mapping[Bound, float] = {
            "compute": self.compute_s,
            "hbm": self.hbm_s,
            "interconnect": self.interconnect_s,
        }
        return max(seconds, key=lambda name: seconds[name])

    @property
    def step_s(self) -> float:
        """The longest of them: all three at work at the same time, the optimistic end."""
        return max(self.compute_s, self.hbm_s, self.interconnect_s)

    @property
    def sum_s(self) -> float:
        """One after another, the pessimistic end."""
        return self.compute_s + self.hbm_s + self.interconnect_s


def roofline(work: Work, topology: Topology) -> Roofline:
    """The three times of a program on a slice.

    ``compute_s = matmul_flops / peak``, where the peak is that of bfloat16 operands, which XLA's default precision
    rounds those of float32 to; elementwise arithmetic runs beside the products in units of its own and is left out.
    ``hbm_s = hbm_bytes / bandwidth``. ``interconnect_s`` sums :func:`collective_seconds`.

    Args:
      work: What the program does on one chip.
      topology: The slice.
    """
    return Roofline(
        compute_s=work.matmul_flops / topology.chip.flops_per_s,
        hbm_s=work.hbm_bytes / topology.chip.hbm_bytes_per_s,
        interconnect_s=sum(collective_seconds(collective, topology) for collective in work.collectives),
    )


def collective_seconds(collective: Collective, topology: Topology) -> float:
    """Seconds a step of one collective, if every link of the chip with the fewest is busy all the time.

    Of ``n`` devices and whole arrays of ``bytes``, rings send from each chip ``2 (n - 1) / n * bytes`` for an
    all-reduce, ``(n - 1) / n * bytes`` for an all-gather, a reduce-scatter or an all-to-all, and all ``bytes`` for a
    permutation or a broadcast. Latency (about a microsecond a hop) and hops through other chips are left out.
    """
    n = collective.group_size
    if n < 2 or not topology.links:
        return 0.0
    share = {
        "all-reduce": 2 * (n - 1) / n,
        "all-gather": (n - 1) / n,
        "reduce-scatter": (n - 1) / n,
        "all-to-all": (n - 1) / n,
        "ragged-all-to-all": (n - 1) / n,
    }.get(collective.kind, 1.0)
    return collective.times * share * collective.num_bytes / topology.interconnect_bytes_per_s
