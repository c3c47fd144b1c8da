"""Plans a run: its padded lengths and its estimated time."""

from collections.abc import Sequence
from typing import Any

from jax.sharding import Mesh

from afjax.config.training import TrainConfig
from afjax.data.lengths import PaddedLengths, choose_lengths, run_tokens
from afjax.data.tokenization import TokenizedRows
from afjax.trunk.config import TrunkConfig
from afjax.trunk.program_cost import RunSeconds, program_tokens, run_seconds


def plan_lengths(
    trunk: TrunkConfig,
    train: Sequence[TokenizedRows],
    dev: Sequence[TokenizedRows],
    config: TrainConfig,
    mesh: Mesh,
    *,
    lengths: PaddedLengths | None,
    num_steps: int,
    eval_every: int,
    train_passes: int,
    shares: Sequence[float] = (),
    common: bool = False,
) -> tuple[PaddedLengths, RunSeconds]:
    """Chooses a run's padded lengths and estimates its time.

    Args:
      trunk: The trunk's architecture.
      train, dev, config, shares, common: See :func:`afjax.data.lengths.choose_lengths`.
      mesh: The devices.
      lengths: The lengths of a run that has begun, which are kept; None for a new run.
      num_steps: Number of training steps.
      eval_every: Steps between evaluations.
      train_passes: The operations of a training step, as a multiple of a forward pass.
    """
    platform = mesh.devices.flat[0].platform
    counts: dict[str, Any] = {"num_steps": num_steps, "num_evaluations": -(-num_steps // eval_every), "shares": shares}
    lengths = lengths or choose_lengths(train, dev, config, program_tokens(trunk, platform), common=common, **counts)
    tokens = run_tokens(train, dev, config, lengths, **counts)
    seconds = run_seconds(trunk, platform, lengths, tokens, num_devices=mesh.size, train_passes=train_passes)
    return lengths, seconds
