"""The device mesh, and rules for sharding parameters and batches over it.

The mesh has three axes. The rows of a batch are sharded over ``data`` and ``fsdp``. Parameters are replicated over
``data`` and sharded over ``fsdp`` (each device stores a part and gathers the rest when needed) and ``tensor`` (each
device computes only with its own part). A leaf's sharding follows from the names of its axes, so the same rules apply
to every method and to the optimizer's state, whose paths contain the parameters' paths. Results do not depend on the
mesh, except for the order of floating-point sums.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from afjax.config.from_dict import shown
from afjax.config.training import MeshConfig
from afjax.display.words import counted
from afjax.errors import UserError
from afjax.trees import Tree

AXES = ("data", "fsdp", "tensor")
# The mesh axes that shard the rows of a batch.
ROWS = ("data", "fsdp")

# These tables name the last axes of leaves. Each entry has a regular expression for the leaf's full path below its root
# (such as "trunk"), and the names. The first match counts. Leading axes (layers, tasks) are replicated, and so are
# leaves without a match.
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
# LoRA's matrices and (IA)³'s scaling vectors are sharded like the inputs or outputs of the dense layers they modify.
_IN_DENSE_LAYERS = (
    (r".+/attention/(query|key|value)/up/kernel", ("bottleneck", "heads")),
    (r".+/attention/(query|key|value)/scale", ("heads",)),
    (r".+/attention/output/down/kernel", ("heads", "bottleneck")),
    (r".+/ffn/intermediate/up/kernel", ("bottleneck", "intermediate")),
    (r".+/ffn/output/down/kernel", ("intermediate", "bottleneck")),
    (r".+/ffn/(intermediate|output)/scale", ("intermediate",)),
)
AXIS_NAMES: Mapping[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "trunk": (
        (r"embeddings/(word|position|type|relative/position)", ("entries", "hidden")),
        (r"embeddings/projection/kernel", ("embedded", "hidden")),
        (r"pooler/kernel", ("hidden", "pooled")),
        *((rf"(top_)?layers/(.+/)?{pattern}", names) for pattern, names in _ENCODER_LAYER),
    ),
    "adapters": (
        *((rf".+/top/layer/{pattern}", names) for pattern, names in _ENCODER_LAYER),
        *_IN_DENSE_LAYERS,
        *_BOTTLENECK,
    ),
    "bank": _BOTTLENECK,
    "fusion": ((r".+/(query|key|value)/kernel", ("hidden", "projected")),),
    "heads": ((r".+/kernel", ("hidden", "outputs")),),
}
# Maps the names of leaf axes to mesh axes. All other leaf axes are replicated.
PLACES: Mapping[str, str] = {"hidden": "fsdp", "heads": "tensor", "intermediate": "tensor"}


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Builds a mesh of all devices on all hosts, or of the given devices.

    Raises:
      UserError: The product of the sizes is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [config.data, config.fsdp, config.tensor]
    given = math.prod(size for size in sizes if size > 0)
    if -1 in sizes and len(devices) % given == 0:
        sizes[sizes.index(-1)] = len(devices) // given
    if math.prod(sizes) != len(devices):
        named = ", ".join(f"mesh.{axis}={size}" for axis, size in zip(AXES, sizes, strict=True))
        raise UserError(
            f"The mesh ({named}) does not match {counted(len(devices), 'device')}; the product of the three sizes "
            "must be the number of devices. A size of -1 is inferred from the others."
        )
    # Keep JAX's order, in which the devices of a host are adjacent, so that the last mesh axis has adjacent devices.
    shaped = np.asarray(devices, dtype=object).reshape(sizes)
    return Mesh(shaped, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def usable_mesh(mesh: Any) -> Mesh:
    """Returns a user's mesh with axes of the type ``Auto``, so that JAX chooses the shardings of activations.

    Raises:
      UserError: ``mesh`` is not a mesh, or has other axes than ``AXES``.
    """
    if not isinstance(mesh, Mesh):
        raise UserError(f"The mesh is {shown(mesh)}; pass a jax.sharding.Mesh, or None for all devices.")
    if mesh.axis_names != AXES:
        example = f"jax.make_mesh((jax.device_count(), 1, 1), {AXES})"
        raise UserError(f"The mesh's axes are {', '.join(mesh.axis_names)}; they must be {', '.join(AXES)}: {example}.")
    return Mesh(mesh.devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def check_batch(batch_size: int, mesh: Mesh) -> None:
    """Raises UserError unless a batch's rows can be split evenly across the devices."""
    parts = math.prod(mesh.shape[axis] for axis in ROWS)
    if batch_size % parts:
        raise UserError(
            f"A batch of {counted(batch_size, 'row')} cannot be split across {counted(parts, 'device')} "
            f"(mesh.data={mesh.shape['data']}, mesh.fsdp={mesh.shape['fsdp']}); use a batch_size divisible by {parts}, "
            "or a smaller mesh."
        )


def local_mesh() -> Mesh:
    """Builds a data-parallel mesh of this host's devices."""
    return make_mesh(MeshConfig(), jax.local_devices())


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding that replicates an array on every device."""
    return NamedSharding(mesh, PartitionSpec())


def leaf_sharding(path: str, shape: Sequence[int], mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a leaf.

    Args:
      path: A path that contains a root of :data:`AXIS_NAMES`, such as ``mu/trunk/layers/ffn/output/kernel``. Leaves
        without a root are replicated.
      shape: The leaf's shape. An axis is replicated if its size is not divisible by the size of the mesh axis.
      mesh: The mesh.
    """
    names = _axis_names(path)
    spec: list[str | None] = [None] * len(shape)
    for axis, name in zip(range(len(shape) - len(names), len(shape)), names, strict=True):
        mesh_axis = PLACES.get(name)
        if mesh_axis and shape[axis] % mesh.shape[mesh_axis] == 0:
            spec[axis] = mesh_axis
    return NamedSharding(mesh, PartitionSpec(*spec))


def _axis_names(path: str) -> tuple[str, ...]:
    parts = path.split("/")
    root = next((index for index, part in enumerate(parts) if part in AXIS_NAMES), None)
    if root is None:
        return ()
    suffix = "/".join(parts[root + 1 :])
    return next((names for pattern, names in AXIS_NAMES[parts[root]] if re.fullmatch(pattern, suffix)), ())


def tree_sharding(tree: Any, mesh: Mesh) -> Any:
    """Returns the sharding of every leaf in a tree.

    Args:
      tree: Parameters, or a state that contains them: a tree of dictionaries whose leaves are arrays or
        ``jax.ShapeDtypeStruct``.
      mesh: The mesh.
    """

    def of_leaf(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = "/".join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))
        return leaf_sharding(names, leaf.shape, mesh)

    return jax.tree_util.tree_map_with_path(of_leaf, tree)


def shard(tree: Tree, mesh: Mesh) -> Tree:
    """Copies a parameter tree to the mesh, in new buffers.

    Every host must pass the same tree.
    """

    def shard_leaf(leaf: Any, sharding: NamedSharding) -> jax.Array:
        on_host = np.asarray(leaf)
        return jax.make_array_from_callback(on_host.shape, sharding, lambda index: np.array(on_host[index]))

    return jax.tree.map(shard_leaf, tree, tree_sharding(tree, mesh))


def shard_rows(x: jax.Array) -> jax.Array:
    """Constrains ``x`` to be sharded along its leading (batch) axis only.

    For use inside a compiled step, with the mesh set by ``jax.set_mesh``. If there is no mesh, or if it has other axes
    or a single device, ``x`` is returned unchanged.
    """
    return _constrained(x, PartitionSpec(ROWS))


def replicate(x: jax.Array) -> jax.Array:
    """Constrains ``x`` to be replicated.

    Use this for tables in which every device looks up rows, such as embeddings. If there is no mesh, or if it has other
    axes or a single device, ``x`` is returned unchanged.
    """
    return _constrained(x, PartitionSpec())


def _constrained(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    mesh = jax.sharding.get_abstract_mesh()
    on_mesh = set(AXES) <= _automatic_axes().keys() and mesh.size > 1
    return jax.lax.with_sharding_constraint(x, spec) if on_mesh else x


def _automatic_axes() -> dict[str, int]:
    """Returns the sizes of the mesh axes that the compiler uses to shard arrays. In ``shard_map`` there are none."""
    mesh = jax.sharding.get_abstract_mesh()
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return {name: mesh.shape[name] for name, kind in types if kind == AxisType.Auto}


def num_parts() -> int:
    """Returns the number of parts into which :func:`shard_rows` splits a batch.

    It is 1 without a mesh.
    """
    return math.prod(_automatic_axes().get(axis, 1) for axis in ROWS)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array whose leading axis is the batch."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def stacked(sharding: NamedSharding) -> NamedSharding:
    """Returns the sharding of stacked arrays. Their leading axis is not sharded."""
    return NamedSharding(sharding.mesh, PartitionSpec(None, *sharding.spec))


def host_rows(batch_size: int, mesh: Mesh) -> slice:
    """Returns the rows of a batch that belong to this host's devices."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,)).values()
    bounds = [index[0].indices(batch_size)[:2] for index in indices if index is not None]
    return slice(min(first for first, _ in bounds), max(last for _, last in bounds))


def shard_batch(batch: Mapping[str, np.ndarray], batch_size: int, mesh: Mesh) -> dict[str, jax.Array]:
    """Copies a batch to the mesh.

    Args:
      batch: Arrays with this host's rows (see :func:`host_rows`), or scalars, which are replicated.
      batch_size: Total number of rows on all hosts.
      mesh: The mesh.
    """
    first = host_rows(batch_size, mesh).start

    def shard_array(array: np.ndarray) -> jax.Array:
        if not array.ndim:
            return jax.make_array_from_callback((), replicated(mesh), lambda _: array)
        shape = (batch_size, *array.shape[1:])

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            assert index is not None, "every device has a part"
            begin, end, _ = index[0].indices(batch_size)
            return array[begin - first : end - first]

        return jax.make_array_from_callback(shape, batch_sharding(mesh), part)

    return {name: shard_array(np.asarray(array)) for name, array in batch.items()}


def to_host(tree: Any) -> Any:
    """Copies a tree from the mesh to NumPy arrays. Every host must call this."""

    def fetch(leaf: jax.Array) -> np.ndarray:
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(fetch, tree)
