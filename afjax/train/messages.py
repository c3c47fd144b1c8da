"""Messages that a recipe prints before training."""

import sys
from collections.abc import Sequence

from afjax.data.batches import padding_share
from afjax.data.tokenise import TokenisedRows
from afjax.display.terminal import print_line
from afjax.distributed.hosts import is_first_host
from afjax.train.loop import Run
from afjax.trunk.pretrained import Trunk


def print_notices(notices: Sequence[str]) -> None:
    """Prints notices to stderr, on the first host."""
    if is_first_host():
        for notice in filter(None, notices):
            print(f"Note: {notice}", file=sys.stderr)


def print_run(
    name: str,
    trunk: Trunk,
    run: Run,
    *,
    trained: int,
    total: int,
    dev_rows: int,
) -> None:
    """Prints a run's summary before training.

    Args:
      name: The run's name.
      trunk: The initial trunk.
      run: The run. Its devices and step counts are printed.
      trained: Number of trained parameters.
      total: Number of all parameters.
      dev_rows: Number of rows in all dev splits.
    """
    if not is_first_host():
        return
    mesh, eval_every = run.mesh, run.eval_every
    devices = f"{mesh.size} device{'s' * (mesh.size > 1)} ({mesh.devices.flat[0].device_kind})"
    dtype = "" if trunk.dtype == "float32" else f" in {trunk.dtype}"
    print_line(
        f"{name}: trunk {trunk.name}{dtype} on {devices}; {trained:,} of {total:,} parameters are trained "
        f"({trained / total:.2%})"
    )
    print_line(
        f"{name}: {run.num_steps} steps, {dev_rows} dev rows evaluated every {eval_every} step{'s' * (eval_every > 1)}"
    )


def print_padding(name: str, train: TokenisedRows, lengths: Sequence[int], batch_size: int) -> None:
    """Prints the share of truncated rows and of padding tokens."""
    if not is_first_host():
        return
    padding = padding_share(train, batch_size=batch_size, lengths=lengths)
    cut = f"{train.truncated / len(train):.1%} of the rows are cut, " if train.truncated else ""
    print_line(
        f"{name}: {len(train)} train rows in batches of {batch_size}; {cut}{padding:.1%} of the tokens are padding "
        f"(lengths {', '.join(map(str, lengths))})"
    )
