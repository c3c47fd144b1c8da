"""Stores the parameters of many tasks in shared arrays on the device."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from afjax.distributed.sharding import replicated
from afjax.errors import UserError
from afjax.serve.places import Places
from afjax.trees import Tree, leaves_with_paths


class Bank:
    """Adapters, fusions or heads of one form, stacked in arrays on the device.

    Each adapter, fusion or head is an entry, and its place is its index along the first axis. Place 0 stays empty for
    rows that do not use the bank. If no place is free, the least recently used entry is evicted.

    Attributes:
      arrays: The tree of arrays on the mesh, ``[1 + num_places, ...]``.
      places: Assigns places to entries.
    """

    def __init__(self, entry: Tree, num_places: int, mesh: Mesh) -> None:
        """Creates an empty bank.

        Args:
          entry: An example entry, whose shapes and dtypes all entries must have.
          num_places: The number of entries that fit on the device at once.
          mesh: The devices that entries are replicated on.
        """
        shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1 + num_places, *leaf.shape), leaf.dtype), entry)
        make = jax.jit(
            lambda: jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes),
            out_shardings=replicated(mesh),
        )
        self.arrays: Tree = make()
        self.places = Places(num_places)
        # Compile the program now, so that copying an entry to the device never waits for compilation. One program
        # suffices, because the place is an argument.
        insert = jax.jit(_with_entry, donate_argnums=0, out_shardings=replicated(mesh))
        self._insert = insert.lower(self.arrays, jnp.int32(0), entry).compile()

    def load(self, entries: Mapping[int, Tree]) -> None:
        """Copies entries to the device unless they are already there.

        Args:
          entries: ``{unique number: entry}``, no more than there are places.
        """
        missing = self.places.assign(entries)
        try:
            for number in list(missing):
                self.arrays = self._insert(self.arrays, np.int32(missing[number]), entries[number])
                del missing[number]
        finally:
            # If a copy failed, a later batch must not find another entry's parameters in these places.
            for number in missing:
                self.places.discard(number)

    def check(self, name: str, entry: Tree) -> None:
        """Raises UserError unless an entry matches the bank's leaves, shapes and dtypes."""
        expected = {path: (leaf.shape[1:], leaf.dtype) for path, leaf in leaves_with_paths(self.arrays)}
        given = {path: (leaf.shape, leaf.dtype) for path, leaf in leaves_with_paths(entry)}
        for path in sorted(expected.keys() | given.keys()):
            if given.get(path) != expected.get(path):
                raise UserError(
                    f'"{name}" is damaged: {path} is {given.get(path)}, but should be {expected.get(path)} according '
                    "to its architecture. Restore it from a copy, or train it again."
                )

    @property
    def bytes_per_entry(self) -> int:
        """The memory that one entry takes on each device, in bytes."""
        return sum(leaf.nbytes // leaf.shape[0] for leaf in jax.tree.leaves(self.arrays))


def _with_entry(arrays: Tree, place: Array, entry: Tree) -> Tree:
    return jax.tree.map(lambda leaf, new: leaf.at[place].set(new), arrays, entry)
