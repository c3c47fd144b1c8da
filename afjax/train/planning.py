"""Plans a run: its padded lengths and its estimated time."""

from collections.abc import Mapping, Sequence

from afjax.config.training import TrainConfig
from afjax.data.lengths import PaddedLengths, Workload, choose_lengths, run_tokens
from afjax.data.tokenization import TokenizedRows
from afjax.train.loop import Run
from afjax.trunk.config import TrunkConfig
from afjax.trunk.program_cost import RunSeconds, program_tokens, run_seconds


def plan_lengths(
    run: Run,
    trunk: TrunkConfig,
    config: TrainConfig,
    data: Sequence[Mapping[str, TokenizedRows]],
    *,
    lengths: PaddedLengths | None,
    train_passes: int,
    shares: Sequence[float] = (),
    common: bool = False,
) -> tuple[PaddedLengths, RunSeconds]:
    """Chooses a run's padded lengths and estimates its time.

    Args:
      run: The run, with its mesh, its number of steps and the steps between evaluations.
      trunk: The trunk's architecture.
      config: Provides ``max_length``, ``buckets`` and ``batch_size``.
      data: The ``train`` and ``dev`` rows of each task.
      lengths: The lengths of a run that has begun, which are kept; None for a new run.
      train_passes: The operations of a training step, as a multiple of a forward pass.
      shares: Fraction of training rows sampled from each task. If empty, proportional to its rows.
      common: See :func:`afjax.data.lengths.choose_lengths`.
    """
    work = Workload(
        train=[splits["train"] for splits in data],
        dev=[splits["dev"] for splits in data],
        config=config,
        num_steps=run.num_steps,
        num_evaluations=-(-run.num_steps // run.eval_every),
        shares=shares,
    )
    platform = run.mesh.devices.flat[0].platform
    lengths = lengths or choose_lengths(work, program_tokens(trunk, platform), common=common)
    seconds = run_seconds(
        trunk, platform, lengths, run_tokens(work, lengths), num_devices=run.mesh.size, train_passes=train_passes
    )
    return lengths, seconds
