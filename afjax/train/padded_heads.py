"""Pads heads, so that tasks share compiled programs during training.

For example, runs with two and with three labels both train heads with four outputs. The loss ignores the padding
outputs, so their gradients are zero and their parameters stay zero. The stored head is not padded.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Shaped

from afjax.config.tasks import TaskKind
from afjax.distributed.sharding import AXIS_NAMES
from afjax.tasks.kinds import TASK_KINDS
from afjax.trees import Tree

# The smallest padded head.
SMALLEST = 4


def padded_outputs(kind: TaskKind, num_outputs: int) -> int:
    """Rounds a head's number of outputs up to a power of two, at least four.

    The result depends only on the run's own task, not on the other runs of a study.

    Args:
      kind: The task's kind. Heads of kinds with a fixed number of outputs are not padded.
      num_outputs: The number of outputs of the stored head.
    """
    if TASK_KINDS[kind].padded_losses is None:
        return num_outputs
    return max(SMALLEST, 1 << (num_outputs - 1).bit_length())


def with_outputs(tree: Tree, num_outputs: int) -> Tree:
    """Pads the output layer of every head with zeros, or removes such padding.

    Args:
      tree: Parameters, or a training state that contains them.
      num_outputs: The new number of outputs of the heads.

    Returns:
      The tree with resized output layers, which keep their shardings. All other leaves are returned unchanged.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = [leaf for _, leaf in paths]
    positions = [number for number, (path, _) in enumerate(paths) if _in_output_layer(path)]
    outputs = [jnp.asarray(leaves[position]) for position in positions]
    resized = jax.device_put(_resize(outputs, num_outputs), [leaf.sharding for leaf in outputs])
    for position, leaf in zip(positions, resized, strict=True):
        leaves[position] = leaf
    return jax.tree.unflatten(structure, leaves)


def pad_labels(
    kind: TaskKind, labels: Shaped[np.ndarray, "batch *label"], num_outputs: int
) -> Shaped[np.ndarray, "batch *padded"]:
    """Pads a batch's labels with zeros if they have one entry per output of the head.

    Args:
      kind: The task's kind.
      labels: A batch's labels.
      num_outputs: The number of outputs of the padded head.
    """
    if TASK_KINDS[kind].label_axes != ("outputs",):
        return labels
    return np.pad(labels, ((0, 0), (0, num_outputs - labels.shape[-1])))


def _in_output_layer(path: tuple[Any, ...]) -> bool:
    """Whether a leaf belongs to a head's output layer.

    Its path is ``.../heads/NAME/output/kernel`` or ``bias``.
    """
    names = [entry.key for entry in path if isinstance(entry, jax.tree_util.DictKey)]
    # An adapter may itself be named "heads" and have a part "output", so only the first root counts.
    root = next((number for number, name in enumerate(names) if name in AXIS_NAMES), len(names))
    return names[root : root + 1] == ["heads"] and names[root + 2 : -1] == ["output"]


@functools.partial(jax.jit, static_argnames="num_outputs")
def _resize(leaves: list[Array], num_outputs: int) -> list[Array]:
    """Pads the last axis of each leaf with zeros, or trims it."""

    def resize(leaf: Array) -> Array:
        missing = max(0, num_outputs - leaf.shape[-1])
        return jnp.pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, missing)])[..., :num_outputs]

    return [resize(leaf) for leaf in leaves]
