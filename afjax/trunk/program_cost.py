"""The cost of compiling a program for one more padded length, compared with computing tokens."""

import dataclasses
import types
from collections.abc import Mapping

from afjax.data.lengths import PaddedLengths, ProgramTokens
from afjax.trunk.config import TrunkConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class Speed:
    """Typical speeds of a platform.

    Attributes:
      train_s: Seconds to trace and compile one layer of a training step.
      dev_s: Seconds to trace and compile one layer of an evaluation step.
      flops_per_s: Operations per second of a training step.
    """

    train_s: float
    dev_s: float
    flops_per_s: float


# The CPU's values are measured on two vCPUs, with minilm and BERT-base (docs/results.md). A TPU compiles BERT-base's
# training step in 43 s (docs/scaling.md). Its other values and the GPU's are rough.
SPEEDS: Mapping[str, Speed] = types.MappingProxyType(
    {
        "cpu": Speed(train_s=0.6, dev_s=0.15, flops_per_s=1.8e11),
        "gpu": Speed(train_s=1.0, dev_s=0.3, flops_per_s=1e14),
        "tpu": Speed(train_s=3.5, dev_s=1.0, flops_per_s=1e14),
    }
)


def program_tokens(trunk: TrunkConfig, platform: str) -> ProgramTokens:
    """Estimates the cost of a program in tokens.

    The estimate depends only on the trunk's size and the kind of device. A run therefore has the same padded lengths on
    all machines with that kind of device, with every method, in a study and on its own.

    Args:
      trunk: The trunk's architecture.
      platform: ``cpu``, ``gpu`` or ``tpu``, as in ``jax.Device.platform``. Others count as ``gpu``.
    """
    speed = SPEEDS.get(platform, SPEEDS["gpu"])
    train_s, dev_s = _seconds_per_token(trunk, speed)
    return ProgramTokens(train=trunk.num_layers * speed.train_s / train_s, dev=trunk.num_layers * speed.dev_s / dev_s)


def expected_seconds(
    trunk: TrunkConfig, platform: str, num_devices: int, lengths: PaddedLengths, tokens: tuple[float, float]
) -> tuple[float, float]:
    """Estimates a run's time from the same speeds as its padded lengths.

    Args:
      trunk: The trunk's architecture.
      platform: As in :func:`program_tokens`.
      num_devices: The number of devices that share the tokens.
      lengths: The run's padded lengths.
      tokens: The tokens of training steps and of evaluations; see :func:`afjax.data.lengths.run_tokens`.

    Returns:
      The seconds of compiling all programs, and of all steps and evaluations.
    """
    speed = SPEEDS.get(platform, SPEEDS["gpu"])
    train_s, dev_s = _seconds_per_token(trunk, speed)
    programs = trunk.num_layers * (len(lengths.train) * speed.train_s + len(lengths.dev) * speed.dev_s)
    return programs, (tokens[0] * train_s + tokens[1] * dev_s) / num_devices


def _seconds_per_token(trunk: TrunkConfig, speed: Speed) -> tuple[float, float]:
    """The seconds per token of a training step on a frozen trunk, and of an evaluation."""
    width = trunk.hidden_size
    # A forward pass has two operations per token and weight.
    ffn = width * (trunk.intermediate_outputs + trunk.intermediate_size)
    forward = 2 * trunk.num_layers * (4 * width * width + ffn)
    # On a frozen trunk, the backward pass has as many operations as the forward pass.
    return 2 * forward / speed.flops_per_s, forward / speed.flops_per_s
