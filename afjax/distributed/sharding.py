"""Where arrays live: a mesh of devices, and rules that place every leaf and every batch on it.

The mesh has three axes. Rows of a batch are split over ``data`` and ``fsdp``; leaves are the same on all of ``data``,
and split over ``fsdp`` (each device keeps a part, and gathers the rest when it computes with it) and ``tensor`` (each
device computes with its part alone). Leaves are placed by the names of their axes, so the same rules hold for every
method and for the optimizer's state, whose leaves have the paths of what they belong to. What is computed does not
depend on the mesh, but for the order of floating-point sums.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from afjax.config.training import MeshConfig
from afjax.errors import UserError
from afjax.trees import Tree

AXES = ("data", "fsdp", "tensor")
# Rows of a batch.
ROWS = ("data", "fsdp")

# Names of a leaf's last axes, by the end of its path behind the root; axes in front of them (layers, tasks) are whole
# on every device. A path that no pattern matches is whole. The first match counts.
_ENCODER_LAYER = (
    (r"attention/(query|key|value)/kernel", ("hidden", "heads")),
    (r"attention/(query|key|value)/bias", ("heads",)),
    (r"attention/output/kernel", ("heads", "hidden")),
    (r"ffn/intermediate/kernel", ("hidden", "intermediate")),
    (r"ffn/intermediate/bias", ("intermediate",)),
    (r"ffn/output/kernel", ("intermediate", "hidden")),
)
_BOTTLENECK = (
    (r".+/(down|encode)/kernel", ("hidden", "bottleneck")),
    (r".+/(up|decode)/kernel", ("bottleneck", "hidden")),
)
AXIS_NAMES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "trunk": (
        (r"embeddings/(word|position|type)", ("entries", "hidden")),
        (r"pooler/kernel", ("hidden", "pooled")),
        *((rf"(top_)?layers/(.+/)?{pattern}", names) for pattern, names in _ENCODER_LAYER),
    ),
    "adapters": (
        *((rf".+/top/layer/{pattern}", names) for pattern, names in _ENCODER_LAYER),
        *_BOTTLENECK,
    ),
    "bank": _BOTTLENECK,
    "fusion": ((r".+/(query|key|value)/kernel", ("hidden", "projected")),),
    "heads": ((r".+/kernel", ("hidden", "outputs")),),
}
# Over which axis of the mesh an axis of a leaf is split.
PLACES: Mapping[str, str] = {"hidden": "fsdp", "heads": "tensor", "intermediate": "tensor"}


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """A mesh of all devices of all hosts (or of those that are given).

    Raises:
      UserError: The sizes do not multiply to the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [config.data, config.fsdp, config.tensor]
    given = math.prod(size for size in sizes if size > 0)
    if -1 in sizes and len(devices) % given == 0:
        sizes[sizes.index(-1)] = len(devices) // given
    if math.prod(sizes) != len(devices):
        named = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
        raise UserError(
            f"The mesh ({named}) does not fit {len(devices)} devices; the three sizes must multiply to that number, "
            "where -1 takes what the others leave."
        )
    # In JAX's order, in which those of one host, and then those behind each other on the last axis, are neighbours.
    shaped = np.asarray(devices, dtype=object).reshape(sizes)
    return Mesh(shaped, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def check_batch(batch_size: int, mesh: Mesh) -> None:
    """Raises UserError unless every device gets as many rows of a batch as every other."""
    parts = math.prod(mesh.shape[axis] for axis in ROWS)
    if batch_size % parts:
        raise UserError(
            f"A batch of {batch_size} rows cannot be split over {parts} devices (mesh.data={mesh.shape['data']}, "
            f"mesh.fsdp={mesh.shape['fsdp']}); take a batch_size that {parts} divides, or a smaller mesh."
        )


def local_mesh() -> Mesh:
    """This host's devices, each with its own rows."""
    return make_mesh(MeshConfig(), jax.local_devices())


def whole(mesh: Mesh) -> NamedSharding:
    """The sharding of what is whole on every device."""
    return NamedSharding(mesh, PartitionSpec())


def leaf_sharding(path: str, shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """Where a leaf lives.

    Args:
      path: Any path that holds one of the four roots, as in ``mu/trunk/layers/ffn/output/kernel``; without a root the
        leaf is whole.
      shape: Its shape. An axis that the mesh's does not divide is whole.
      mesh: The mesh.
    """
    names = _axis_names(path)
    spec: list[str | None] = [None] * len(shape)
    for axis, name in zip(range(len(shape) - len(names), len(shape)), names, strict=True):
        place = PLACES.get(name)
        if place and shape[axis] % mesh.shape[place] == 0:
            spec[axis] = place
    return NamedSharding(mesh, PartitionSpec(*spec))


def _axis_names(path: str) -> tuple[str, ...]:
    parts = path.split("/")
    root = next((index for index, part in enumerate(parts) if part in AXIS_NAMES), None)
    if root is None:
        return ()
    behind = "/".join(parts[root + 1 :])
    return next((names for pattern, names in AXIS_NAMES[parts[root]] if re.fullmatch(pattern, behind)), ())


def tree_sharding(tree: Any, mesh: Mesh) -> Any:
    """The sharding of every leaf of a tree of parameters, or of a state that holds such trees.

    Args:
      tree: Arrays, or their shapes.
      mesh: The mesh.
    """

    def of_leaf(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = "/".join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))
        return leaf_sharding(names, leaf.shape, mesh)

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def place(tree: Tree, mesh: Mesh) -> Tree:
    """A tree of parameters on the mesh, in buffers of its own. Every host gives the same tree."""

    def place_leaf(leaf: Any, sharding: NamedSharding) -> jax.Array:
        on_host = np.asarray(leaf)
        return jax.make_array_from_callback(on_host.shape, sharding, lambda index: np.array(on_host[index]))

    return jax.tree.map(place_leaf, tree, tree_sharding(tree, mesh))


def split_rows(x: jax.Array) -> jax.Array:
    """Says that the leading axis of ``x`` is the batch's, and that no other is split, inside a compiled step.

    The mesh is that of ``jax.set_mesh`` around the step; without one, or with one of other axes, ``x`` stays as it is.
    """
    return _constrained(x, PartitionSpec(ROWS))


def gathered(x: jax.Array) -> jax.Array:
    """Says that every device needs all of ``x``, where :func:`split_rows` acts: a table that rows look up, say."""
    return _constrained(x, PartitionSpec())


def _constrained(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    mesh = jax.sharding.get_abstract_mesh()
    ours = set(AXES) <= set(mesh.axis_names) and mesh.size > 1
    return jax.lax.with_sharding_constraint(x, spec) if ours else x


def num_parts() -> int:
    """Over how many devices the rows of a batch are split, where :func:`split_rows` acts; else 1."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(dict(mesh.shape).get(axis, 1) for axis in ROWS)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of an array whose leading axis is the batch's."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def own_rows(batch_size: int, mesh: Mesh) -> slice:
    """The rows of a batch that this host's devices take."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    bounds = [index[0].indices(batch_size)[:2] for index in indices if index is not None]
    return slice(min(first for first, _ in bounds), max(last for _, last in bounds))


def place_batch(batch: Mapping[str, np.ndarray], batch_size: int, mesh: Mesh) -> dict[str, jax.Array]:
    """A batch on the mesh.

    Args:
      batch: Arrays of this host's rows (those of :func:`own_rows`), or scalars, which are whole.
      batch_size: Rows of all hosts.
      mesh: The mesh.
    """
    first = own_rows(batch_size, mesh).start

    def place_array(array: np.ndarray) -> jax.Array:
        if not array.ndim:
            return jax.make_array_from_callback((), whole(mesh), lambda _: array)
        shape = (batch_size, *array.shape[1:])

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None, "every device has a part"
            begin, end, _ = index[0].indices(batch_size)
            return array[begin - first : end - first]

        return jax.make_array_from_callback(shape, batch_sharding(mesh), part)

    return {name: place_array(np.asarray(array)) for name, array in batch.items()}


def to_host(tree: Any) -> Any:
    """NumPy arrays of a tree that is on a mesh. Every host must ask."""

    def fetch(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(fetch, tree)
