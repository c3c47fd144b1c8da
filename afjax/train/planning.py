"""Plans a run: its padded lengths and its estimated time."""

from jax.sharding import Mesh

from afjax.data.lengths import PaddedLengths, Workload, choose_lengths, run_tokens
from afjax.trunk.config import TrunkConfig
from afjax.trunk.program_cost import RunSeconds, program_tokens, run_seconds


def plan_lengths(
    trunk: TrunkConfig,
    work: Workload,
    mesh: Mesh,
    *,
    lengths: PaddedLengths | None,
    train_passes: int,
    common: bool = False,
) -> tuple[PaddedLengths, RunSeconds]:
    """Chooses a run's padded lengths and estimates its time.

    Args:
      trunk: The trunk's architecture.
      work: The rows and steps of the run.
      mesh: The devices.
      lengths: The lengths of a run that has begun, which are kept; None for a new run.
      train_passes: The operations of a training step, as a multiple of a forward pass.
      common: See :func:`afjax.data.lengths.choose_lengths`.
    """
    platform = mesh.devices.flat[0].platform
    lengths = lengths or choose_lengths(work, program_tokens(trunk, platform), common=common)
    seconds = run_seconds(
        trunk, platform, lengths, run_tokens(work, lengths), num_devices=mesh.size, train_passes=train_passes
    )
    return lengths, seconds
