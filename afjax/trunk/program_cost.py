"""Estimates the cost of compiling one more program as a number of tokens.

A run with more padded lengths computes fewer padding tokens, but compiles more programs.
"""

import dataclasses
import types
from collections.abc import Mapping

from afjax.data.lengths import ProgramTokens
from afjax.trunk.config import TrunkConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """Typical speeds of a platform.

    Attributes:
      train_s: Seconds to trace and compile one layer of a training step.
      dev_s: Seconds to trace and compile one layer of an evaluation step.
      flops_per_s: Floating-point operations per second.
    """

    train_s: float
    dev_s: float
    flops_per_s: float


# The CPU's values are measured on two vCPUs, with minilm and BERT-base (docs/results.md). A TPU compiles BERT-base's
# training step in 43 s (docs/scaling.md). The TPU's other values and the GPU's are rough estimates.
SPEEDS: Mapping[str, Speed] = types.MappingProxyType(
    {
        "cpu": Speed(train_s=0.6, dev_s=0.15, flops_per_s=1.8e11),
        "gpu": Speed(train_s=1.0, dev_s=0.3, flops_per_s=1e14),
        "tpu": Speed(train_s=3.5, dev_s=1.0, flops_per_s=1e14),
    }
)


def program_tokens(trunk: TrunkConfig, platform: str) -> ProgramTokens:
    """Estimates how many tokens could be computed in the time of compiling a program.

    The estimate depends only on the trunk's size and the kind of device. A run therefore has the same padded lengths on
    all machines with that kind of device, with every method, and whether or not it is part of a study.

    Args:
      trunk: The trunk's architecture.
      platform: ``cpu``, ``gpu`` or ``tpu``, as in ``jax.Device.platform``. Others count as ``gpu``.
    """
    speed, width = SPEEDS.get(platform, SPEEDS["gpu"]), trunk.hidden_size
    # A forward pass has two operations per token and weight.
    ffn = width * (trunk.intermediate_outputs + trunk.intermediate_size)
    forward = 2 * trunk.num_layers * (4 * width * width + ffn)
    # On a frozen trunk, the backward pass has as many operations as the forward pass.
    return ProgramTokens(
        train=trunk.num_layers * speed.train_s * speed.flops_per_s / (2 * forward),
        dev=trunk.num_layers * speed.dev_s * speed.flops_per_s / forward,
    )
