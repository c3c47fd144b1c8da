"""Runs a compiled step over all rows of a split."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from afjax.data.batches import Batching, eval_batches
from afjax.data.tokenization import TokenizedRows
from afjax.display.terminal import progress_bar
from afjax.distributed.hosts import is_first_host
from afjax.distributed.sharding import host_rows, replicated, shard_batch
from afjax.errors import UserError
from afjax.trees import Tree, leaves_with_paths

# Seconds before a progress bar is shown.
PATIENCE = 5.0


def jit_eval_step(step: Callable[[Any, Any], Any], mesh: Mesh) -> Any:
    """Compiles a step and replicates its outputs over the mesh."""
    return jax.jit(step, out_shardings=replicated(mesh))


def over_rows(
    step: Callable[[Tree, Any], Any], params: Tree, data: TokenizedRows, *, batching: Batching, mesh: Mesh
) -> Any:
    """Runs ``step(params, {"tokens", "types", "mask"})`` on every row.

    The outputs are collected in the order of the rows. A temporary progress bar is shown if this takes more than a few
    seconds.

    Args:
      step: A compiled function that returns a tree of arrays with a leading batch axis. With several hosts, it must be
        compiled by :func:`jit_eval_step`.
      params: The parameters, on the mesh.
      data: The split, with at least one row.
      batching: Batch size, padded lengths and padding token.
      mesh: The device mesh.

    Returns:
      A tree of NumPy arrays, identical on every host, with all rows in their original order along the leading axis. If
      a different axis depends on the padded length, shorter outputs are padded with the dtype's lowest value.

    Raises:
      UserError: An output is NaN or infinite.
    """
    order: list[np.ndarray] = []
    outputs: list[Any] = []
    pending: list[tuple[np.ndarray, Any]] = []

    def fetch(bar: Any) -> None:
        rows, output = pending.pop(0)
        order.append(rows[rows >= 0])
        outputs.append(jax.tree.map(lambda leaf: leaf[rows >= 0], jax.device_get(output)))
        bar.update(len(order[-1]))

    batch_size = batching.batch_size
    part = host_rows(batch_size, mesh)
    with progress_bar("rows", len(data), unit="row", delay=PATIENCE, leave=False, disable=not is_first_host()) as bar:
        for batch in eval_batches(data, batching, part=part):
            inputs = shard_batch({name: batch[name] for name in ("tokens", "types", "mask")}, batch_size, mesh)
            with jax.set_mesh(mesh):
                pending.append((batch["rows"], step(params, inputs)))
            # Fetching one step late lets the host build the next batch while the device computes.
            if len(pending) > 1:
                fetch(bar)
        while pending:
            fetch(bar)
    assert outputs, "an empty split reached the model"
    inverse_order = np.argsort(np.concatenate(order))
    joined = jax.tree.map(lambda *leaves: _joined(leaves)[inverse_order], *outputs)
    check_outputs(joined, data, params)
    return joined


def check_outputs(outputs: Any, data: TokenizedRows, params: Tree) -> None:
    """Checks that all outputs are finite.

    Args:
      outputs: A tree of arrays with all rows (for span tasks, all windows) along the leading axis.
      data: The rows.
      params: The model's parameters, if known. If an output is not finite, they are checked to find the cause.

    Raises:
      UserError: An output is NaN or infinite. The message names the first such row and any non-finite parameters.
    """
    bad = np.zeros(len(data), bool)
    for leaf in jax.tree.leaves(outputs):
        bad |= ~np.isfinite(leaf).reshape(len(data), -1).all(-1)
    if not bad.any():
        return
    row, num_rows = data.source_row(int(bad.argmax()))
    damaged = [
        path
        for path, leaf in leaves_with_paths(params)
        # Shards on other hosts are not accessible here.
        if getattr(leaf, "is_fully_addressable", True) and not bool(jnp.isfinite(leaf).all())
    ]
    reason = " because some values in its parameters are too large" if params else ""
    if damaged:
        names = f"{', '.join(damaged[:4])}{', ...' if damaged[4:] else ''}"
        reason = f" because these parameters contain NaN or infinity: {names}"
    raise UserError(
        f"The model's output for row {row + 1} (of {num_rows}) is NaN or infinite{reason}; check the trunk, adapter or "
        "fusion, and head files, or train again with a lower learning rate."
    )


def _joined(leaves: Sequence[np.ndarray]) -> np.ndarray:
    longest = tuple(max(sizes) for sizes in zip(*(leaf.shape[1:] for leaf in leaves), strict=True))
    if all(leaf.shape[1:] == longest for leaf in leaves):
        return np.concatenate(leaves)
    joined = np.full((sum(map(len, leaves)), *longest), np.finfo(leaves[0].dtype).min, leaves[0].dtype)
    first = 0
    for leaf in leaves:
        joined[(slice(first, first + len(leaf)), *map(slice, leaf.shape[1:]))] = leaf
        first += len(leaf)
    return joined
