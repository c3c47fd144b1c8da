"""Messages that a recipe prints before training."""

from collections.abc import Mapping, Sequence

from afjax.config.training import TrainConfig
from afjax.data.batches import padding_share
from afjax.data.lengths import PaddedLengths, run_tokens
from afjax.data.tokenise import TokenisedRows
from afjax.display.terminal import duration, print_line
from afjax.display.words import counted, one_of
from afjax.distributed.hosts import is_first_host
from afjax.train.loop import Run
from afjax.trunk.config import TrunkConfig
from afjax.trunk.pretrained import Trunk
from afjax.trunk.program_cost import expected_seconds


def print_notices(notices: Sequence[str]) -> None:
    """Prints notices to stderr, on the first host."""
    if is_first_host():
        for notice in filter(None, notices):
            print_line(f"Note: {notice}")


def print_run(
    name: str,
    trunk: Trunk,
    run: Run,
    *,
    method: str,
    trained: int,
    total: int,
    dev_rows: int,
) -> None:
    """Prints a run's summary before training.

    Args:
      name: The run's name.
      trunk: The initial trunk.
      run: The run. Its devices and step counts are printed.
      method: A description of the method, such as "partition adapter".
      trained: Number of trained parameters.
      total: Number of all parameters.
      dev_rows: Number of rows in all dev splits.
    """
    if not is_first_host():
        return
    mesh, eval_every = run.mesh, run.eval_every
    devices = f"{counted(mesh.size, 'device')} ({mesh.devices.flat[0].device_kind})"
    dtype = "" if trunk.dtype == "float32" else f" in {trunk.dtype}"
    every = f"every {eval_every:,} steps" if eval_every > 1 else "after every step"
    print_line(f"{name}: {method}; trunk {trunk.name}{dtype} on {devices}")
    print_line(f"{name}: {trained:,} of {total:,} parameters are trained ({trained / total:.2%})")
    print_line(f"{name}: {counted(run.num_steps, 'step')}, {counted(dev_rows, 'dev row')} evaluated {every}")


def print_expected_time(
    name: str,
    trunk: TrunkConfig,
    run: Run,
    lengths: PaddedLengths,
    splits: Sequence[Mapping[str, TokenisedRows]],
    config: TrainConfig,
    *,
    shares: Sequence[float] = (),
) -> None:
    """Prints a rough estimate of the time of all steps, by which the padded lengths were chosen.

    Args:
      name: The run's name.
      trunk: The trunk's architecture.
      run: The run.
      lengths: Its padded lengths.
      splits: The splits of each task.
      config: ``batch_size`` and ``max_length``.
      shares: As for :func:`afjax.data.lengths.choose_lengths`.
    """
    if not is_first_host():
        return
    tokens = run_tokens(
        [each["train"] for each in splits],
        [each["dev"] for each in splits],
        config,
        lengths,
        num_steps=run.num_steps,
        num_evaluations=-(-run.num_steps // run.eval_every),
        shares=shares,
    )
    devices = run.mesh.devices
    compiling, computing = expected_seconds(trunk, devices.flat[0].platform, devices.size, lengths, tokens)
    programs = counted(len(lengths.train) + len(lengths.dev), "program")
    print_line(
        f"{name}: about {duration(compiling + computing)} expected, {duration(compiling)} of it to compile {programs}"
    )


def print_padding(name: str, train: TokenisedRows, lengths: Sequence[int], batch_size: int) -> None:
    """Prints the train rows, their padded lengths, and the shares of padding tokens and of truncated rows."""
    if not is_first_host():
        return
    padding = padding_share(train, batch_size=batch_size, lengths=lengths, padding_rows=False)
    padded = one_of(lengths)
    print_line(
        f"{name}: {counted(len(train), 'train row')} in batches of {batch_size}, padded to {padded} tokens "
        f"({padding:.1%} padding)"
    )
    if train.truncated:
        print_line(f"{name}: {train.truncated / len(train):.1%} of the train rows are longer and are cut")
