"""The rank and scaling of LoRA in a module."""

import math
from typing import NamedTuple


class Scale(NamedTuple):
    """The rank and scaling of a module's LoRA.

    Attributes:
      rank: The rank.
      alpha: PEFT's alpha, multiplied by the square root of the rank for rank-stabilized LoRA.
      scaling: Scaling factor for LoRA's output, ``alpha / rank``.
    """

    rank: int
    alpha: float
    scaling: float


def scale_of(rank: int, alpha: float, rank_stabilized: bool) -> Scale:
    """Computes a module's scaling from its rank and PEFT's alpha."""
    alpha = alpha * math.sqrt(rank) if rank_stabilized else alpha
    return Scale(rank, alpha, alpha / rank)
