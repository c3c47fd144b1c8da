"""Estimates the time to compile programs and the time to compute tokens.

A run with more padded lengths computes fewer padding tokens, but compiles more programs.
"""

import dataclasses
from collections.abc import Mapping

from afjax.data.lengths import PaddedLengths, ProgramTokens, RunTokens
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


# The CPU's values were measured on two vCPUs, with minilm and BERT-base (docs/results.md). Compiling BERT-base's
# training step for a TPU takes 43 s (docs/scaling.md). All other values are rough estimates.
SPEEDS: Mapping[str, Speed] = {
    "cpu": Speed(train_s=0.6, dev_s=0.15, flops_per_s=1.8e11),
    "gpu": Speed(train_s=1.0, dev_s=0.3, flops_per_s=1e14),
    "tpu": Speed(train_s=3.5, dev_s=1.0, flops_per_s=1e14),
}


def program_tokens(trunk: TrunkConfig, platform: str) -> ProgramTokens:
    """Estimates how many tokens could be computed while a program compiles.

    The estimate depends only on the trunk's size and the kind of device. A run therefore has the same padded lengths on
    all machines with that kind of device, with every method, and whether or not it is part of a study.

    Args:
      trunk: The trunk's architecture.
      platform: ``cpu``, ``gpu`` or ``tpu``, as in ``jax.Device.platform``. Other platforms count as ``gpu``.
    """
    speed, forward = SPEEDS.get(platform, SPEEDS["gpu"]), _forward_flops(trunk)
    # On a frozen trunk, the backward pass has as many operations as the forward pass.
    return ProgramTokens(
        train=trunk.num_layers * speed.train_s * speed.flops_per_s / (2 * forward),
        dev=trunk.num_layers * speed.dev_s * speed.flops_per_s / forward,
    )


@dataclasses.dataclass(frozen=True)
class RunSeconds:
    """The estimated time of a run.

    Attributes:
      total: Seconds that the run takes, including compilation.
      compiling: Seconds that the run spends compiling.
    """

    total: float
    compiling: float


def run_seconds(
    trunk: TrunkConfig, platform: str, lengths: PaddedLengths, tokens: RunTokens, *, num_devices: int, train_passes: int
) -> RunSeconds:
    """Estimates the time that a run takes.

    The estimate assumes that the run compiles all of its programs and does not stop early. It is rough, because it uses
    typical speeds and counts only the trunk's matrix products.

    Args:
      trunk: The trunk's architecture.
      platform: ``cpu``, ``gpu`` or ``tpu``, as in ``jax.Device.platform``. Other platforms count as ``gpu``.
      lengths: The run's padded lengths.
      tokens: The tokens that the run computes.
      num_devices: Number of devices that share each batch.
      train_passes: The operations of a training step, as a multiple of a forward pass.
    """
    speed, forward = SPEEDS.get(platform, SPEEDS["gpu"]), _forward_flops(trunk)
    compiling = trunk.num_layers * (len(lengths.train) * speed.train_s + len(lengths.dev) * speed.dev_s)
    flops = forward * (train_passes * tokens.train + tokens.dev)
    return RunSeconds(total=compiling + flops / (speed.flops_per_s * num_devices), compiling=compiling)


def _forward_flops(trunk: TrunkConfig) -> float:
    """Counts the floating-point operations of a forward pass per token.

    Only the matrix products of the layers count.
    """
    width = trunk.hidden_size
    ffn = width * (trunk.intermediate_outputs + trunk.intermediate_size)
    # Each weight takes two operations per token.
    return 2 * trunk.num_layers * (4 * width * width + ffn)
