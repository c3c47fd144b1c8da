"""Messages that a recipe prints before training."""

from collections.abc import Sequence

import numpy as np

from afjax.data.batches import padding_share
from afjax.data.tokenization import TokenizedRows
from afjax.display.terminal import duration, print_line
from afjax.display.words import alternatives, counted
from afjax.distributed.hosts import is_first_host
from afjax.distributed.notes import note
from afjax.tasks.windows import TokenizedWindows
from afjax.train.loop import Run
from afjax.trunk.pretrained import Trunk


def print_notices(notices: Sequence[str]) -> None:
    """Prints notices to stderr, on the first host."""
    for notice in filter(None, notices):
        note(notice)


def print_run(name: str, trunk: Trunk, run: Run, *, method: str, trained: int, total: int, dev_rows: int) -> None:
    """Prints a run's summary before training.

    Args:
      name: The run's name.
      trunk: The initial trunk.
      run: The run. Its devices, step counts and estimated time are printed.
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
    every = every if eval_every < run.num_steps else "after the last step"
    print_line(f"{name}: {method}; trunk {trunk.name}{dtype} on {devices}")
    print_line(f"{name}: {trained:,} of {total:,} parameters are trained ({trained / total:.2%})")
    print_line(f"{name}: {counted(run.num_steps, 'step')}, {counted(dev_rows, 'dev row')} evaluated {every}")
    estimate, compiling = duration(run.estimate.total), duration(run.estimate.compiling)
    print_line(f"{name}: estimated time of the whole run: {estimate}, including {compiling} for compilation")


def print_padding(name: str, train: TokenizedRows, lengths: Sequence[int], batch_size: int) -> None:
    """Prints the padded lengths of the train rows, and their padding and truncation."""
    if not is_first_host():
        return
    padding = padding_share(train, batch_size=batch_size, lengths=lengths, padding_rows=False)
    padded = alternatives(lengths)
    rows = counted(len(train), "train row")
    if isinstance(train, TokenizedWindows):
        num_windows = np.bincount(train.row_of)  # [rows]
        rows = f"{counted(len(num_windows), 'train row')} ({counted(len(train), 'window')})"
        longer, action = (num_windows > 1).mean(), "train rows are longer and are split into windows"
    else:
        # Each choice of a multiple-choice row is a sequence.
        num_sequences = len(train.offsets) - 1
        noun = "train rows" if num_sequences == len(train) else "choices"
        longer, action = train.truncated / num_sequences, f"{noun} are longer and are truncated"
    print_line(f"{name}: {rows} in batches of {batch_size}, padded to {padded} tokens ({padding:.1%} padding)")
    if longer:
        print_line(f"{name}: {longer:.1%} of the {action}")
