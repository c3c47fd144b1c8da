"""Runs a compiled step over every row of a split."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from afjax.data.batches import Batching, eval_batches
from afjax.data.tokenise import TokenisedRows
from afjax.display.terminal import progress_bar
from afjax.distributed.hosts import is_first_host
from afjax.distributed.sharding import host_rows, replicated, shard_batch, to_host
from afjax.errors import UserError
from afjax.trees import Tree

# Seconds before a progress bar is shown.
PATIENCE = 5.0


def jit_eval_step(step: Callable[[Any, Any], Any], mesh: Mesh) -> Any:
    """Compiles a step whose outputs are replicated over the mesh."""
    return jax.jit(step, out_shardings=replicated(mesh))


def over_rows(
    step: Callable[[Tree, Any], Any],
    params: Tree,
    data: TokenisedRows,
    *,
    batching: Batching,
    mesh: Mesh,
) -> Any:
    """Runs ``step(params, {"tokens", "types", "mask"})`` on every row once.

    If this takes long, a progress bar is shown, and removed at the end.

    Args:
      step: A compiled function that returns a tree of arrays with the batch as leading axis. With several hosts, it
        must be compiled by :func:`jit_eval_step`.
      params: The parameters, on the mesh.
      data: The split, with at least one row.
      batching: Batch size, padded lengths and padding token.
      mesh: The devices.

    Returns:
      A tree of NumPy arrays, the same on every host. Their leading axis has all rows in their original order. If
      another axis depends on the padded length, shorter outputs are padded with the dtype's lowest value.

    Raises:
      UserError: An output is NaN or infinite.
    """
    order: list[np.ndarray] = []
    outputs: list[Any] = []
    under_way: list[tuple[np.ndarray, Any]] = []

    def fetch() -> None:
        rows, output = under_way.pop(0)
        order.append(rows[rows >= 0])
        outputs.append(jax.tree.map(lambda leaf: leaf[rows >= 0], jax.device_get(output)))

    batch_size = batching.batch_size
    part = host_rows(batch_size, mesh)
    with progress_bar("rows", len(data), unit="row", delay=PATIENCE, leave=False, disable=not is_first_host()) as bar:
        for batch in eval_batches(data, batching, part=part):
            inputs = shard_batch({name: batch[name] for name in ("tokens", "types", "mask")}, batch_size, mesh)
            with jax.set_mesh(mesh):
                under_way.append((batch["rows"], step(params, inputs)))
            # Fetching one step late lets the host build the next batch while the device computes.
            if len(under_way) > 1:
                fetch()
                bar.update(len(order[-1]))
        while under_way:
            fetch()
    assert outputs, "an empty split reached the model"
    inverse_order = np.argsort(np.concatenate(order))
    joined = jax.tree.map(lambda *leaves: _joined(leaves)[inverse_order], *outputs)
    check_outputs(joined, data, params)
    return joined


def check_outputs(outputs: Any, data: TokenisedRows, params: Tree) -> None:
    """Raises UserError if an output is NaN or infinite.

    Args:
      outputs: A tree of arrays whose leading axis is all rows (for span tasks, all windows).
      data: The rows.
      params: The model's parameters, which are searched for the cause.

    Raises:
      UserError: An output is not finite. The message names the first such row and any parameters that are not finite.
    """
    bad = np.zeros(len(data), bool)
    for leaf in jax.tree.leaves(outputs):
        bad |= ~np.isfinite(leaf).reshape(len(data), -1).all(-1)
    if not bad.any():
        return
    row, num_rows = data.source_row(int(bad.argmax()))
    raise _not_finite(f"The model's output for row {row + 1} (of {num_rows})", params)


def _not_finite(name: str, params: Tree) -> UserError:
    damaged = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        # Shards on other hosts cannot be read here.
        if getattr(leaf, "is_fully_addressable", True) and not bool(jnp.isfinite(leaf).all())
    ]
    if damaged:
        reason = f"these parameters contain NaN or infinity: {', '.join(damaged[:4])}{', ...' if damaged[4:] else ''}"
    else:
        reason = "some values in its parameters are too large"
    return UserError(
        f"{name} is NaN or infinite, because {reason}; check the files of the trunk, the adapter or fusion and the "
        "head, or train again with a lower learning rate."
    )


def sum_over_rows(
    step: Callable[[Tree, Any], Any],
    params: Tree,
    data: TokenisedRows,
    weights: np.ndarray,
    *,
    batching: Batching,
    mesh: Mesh,
) -> Any:
    """Sums ``step(params, {"tokens", "types", "mask", "weights"})`` over all batches.

    The running sum stays on the devices, so memory use does not depend on the number of rows.

    Args:
      step: A compiled function that returns a tree of float arrays.
      params, data, batching, mesh: See :func:`over_rows`.
      weights: ``[rows, n]``. The step receives the weights of its batch, with zeros for padding rows.

    Returns:
      The sum, a tree of NumPy arrays.

    Raises:
      UserError: The sum is NaN or infinite.
    """
    batch_size = batching.batch_size
    part = host_rows(batch_size, mesh)
    total: Any = None
    for batch in eval_batches(data, batching, part=part):
        rows = batch["rows"][part]
        inputs = {name: batch[name] for name in ("tokens", "types", "mask")}
        inputs["weights"] = np.where(rows[:, None] >= 0, weights[rows], 0)
        with jax.set_mesh(mesh):
            # The host builds one batch ahead of the devices. Waiting here bounds the number of queued batches.
            jax.block_until_ready(total)
            batch_sum = step(params, shard_batch(inputs, batch_size, mesh))
            total = (batch_sum, jax.tree.map(jnp.zeros_like, batch_sum)) if total is None else _added(total, batch_sum)
    assert total is not None, "an empty split reached the model"
    summed = to_host(total[0])
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(summed)):
        raise _not_finite("The model's output for some row", params)
    return summed


@jax.jit
def _added(total: tuple[Any, Any], value: Any) -> tuple[Any, Any]:
    """Adds a value to a running sum and its compensation, so that rounding errors do not accumulate (Kahan)."""
    addend = jax.tree.map(jnp.subtract, value, total[1])
    new = jax.tree.map(jnp.add, total[0], addend)
    return new, jax.tree.map(lambda new, old, added: (new - old) - added, new, total[0], addend)


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
