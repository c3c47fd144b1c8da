"""Roofline model: the time that each of a chip's resources takes.

The resources are its compute units, memory and interconnect.
"""

import dataclasses
from typing import Literal, get_args

from afjax.tpu.chips import Topology
from afjax.tpu.program import Collective, Work

Bound = Literal["compute", "hbm", "interconnect"]


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Seconds per step for each resource.

    Attributes:
      compute_s: Time for the matrix products at the chip's bfloat16 peak.
      hbm_s: Time for the memory traffic at the HBM bandwidth.
      interconnect_s: Time for the collectives at the links' bandwidth.
    """

    compute_s: float
    hbm_s: float
    interconnect_s: float

    @property
    def bound(self) -> Bound:
        """The bottleneck: the resource that takes longest."""
        return max(get_args(Bound), key=lambda name: float(getattr(self, f"{name}_s")))

    @property
    def step_s(self) -> float:
        """Optimistic step time, with all three resources fully overlapped."""
        return max(self.compute_s, self.hbm_s, self.interconnect_s)

    @property
    def sum_s(self) -> float:
        """Pessimistic step time, without any overlap."""
        return self.compute_s + self.hbm_s + self.interconnect_s


def roofline(work: Work, topology: Topology) -> Roofline:
    """Computes the roofline of a program on a slice.

    ``compute_s = matmul_flops / peak``, where the peak is for bfloat16 operands because XLA's default precision rounds
    float32 operands to bfloat16. Elementwise arithmetic is ignored, because it runs concurrently in separate units.
    ``hbm_s = hbm_bytes / bandwidth``. ``interconnect_s`` is the sum of :func:`collective_seconds`.

    Args:
      work: The program's work on one chip.
      topology: The slice.
    """
    return Roofline(
        compute_s=work.matmul_flops / topology.chip.flops_per_s,
        hbm_s=work.hbm_bytes / topology.chip.hbm_bytes_per_s,
        interconnect_s=sum(collective_seconds(collective, topology) for collective in work.collectives),
    )


def collective_seconds(collective: Collective, topology: Topology) -> float:
    """Computes a collective's time per step, in seconds.

    The chip with the fewest links is assumed to be the bottleneck and to use all its links fully. With ``n`` devices
    and full arrays of ``bytes``, each chip in a ring sends ``2 (n - 1) / n * bytes`` for an all-reduce,
    ``(n - 1) / n * bytes`` for an all-gather, a reduce-scatter or an all-to-all, and ``bytes`` for a permutation or a
    broadcast. Latency (about a microsecond per hop) and hops through other chips are ignored.
    """
    n = collective.group_size
    if n < 2 or not topology.links:
        return 0.0
    passes = {"all-reduce": 2, "all-gather": 1, "reduce-scatter": 1, "all-to-all": 1, "ragged-all-to-all": 1}
    share = passes[collective.kind] * (n - 1) / n if collective.kind in passes else 1.0
    return collective.times * share * collective.num_bytes / topology.interconnect_bytes_per_s
