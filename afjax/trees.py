"""Nested dicts of arrays: paths, digests and named random keys.

A tree is ``dict[str, dict | array]``. A leaf's path joins its keys with ``/``, for example
``adapters/rte/ffn/down/kernel``, so names never contain a ``/``. Stored trees are plain dicts. Compiled programs also
accept trees that store the same values in a different form. Such trees contain subclasses of dict
(:func:`register_node`), which functions preserve if they return a tree with the same structure.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from afjax.errors import UserError

Tree = dict[str, Any]
# Arrays that callers may pass: JAX arrays, traced or concrete, and NumPy arrays.
AnyArray = jax.Array | np.ndarray


class Node(Tree):
    """A node whose type says how its leaves are stored; see :func:`register_node`."""


def register_node(cls: type[Node]) -> type[Node]:
    """Registers a :class:`Node` subclass as a pytree that behaves like a plain dict."""

    def flatten_node(node: Node) -> tuple[list[tuple[jax.tree_util.DictKey, Any]], tuple[str, ...]]:
        keys = tuple(sorted(node))
        return [(jax.tree_util.DictKey(key), node[key]) for key in keys], keys

    def unflatten_node(keys: tuple[str, ...], children: Iterable[Any]) -> Node:
        return cls(zip(keys, children, strict=True))

    jax.tree_util.register_pytree_with_keys(cls, flatten_node, unflatten_node)
    return cls


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Converts a tree to ``{path: leaf}``, sorted by keys, without empty subtrees."""
    leaves: dict[str, Any] = {}
    for key in sorted(tree):
        value, path = tree[key], f"{prefix}{key}"
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{path}/"))
        else:
            leaves[path] = value
    return leaves


def leaves_with_paths(tree: Any) -> list[tuple[str, Any]]:
    """Lists the leaves of any pytree, with paths such as ``banks/0/layers/3/contents/ffn``."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def unflatten(leaves: Mapping[str, Any]) -> Tree:
    """Converts ``{path: leaf}`` to a tree; the inverse of :func:`flatten`."""
    tree: Tree = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def merge(*trees: Mapping[str, Any]) -> Tree:
    """Merges trees that have no leaves in common.

    If several trees have a subtree with the same path, its type must be the same in each.

    Args:
      *trees: Nested dicts of arrays, such as the trained and the frozen tree of :meth:`afjax.Setup.split`.

    Returns:
      One tree with the leaves of all of them. Arrays are not copied.

    Example:
      >>> from afjax import merge
      >>> merge({"heads": {"rte": 1}}, {"trunk": 2, "heads": {"mnli": 3}})
      {'heads': {'rte': 1, 'mnli': 3}, 'trunk': 2}
    """
    joined: Any = {}
    for tree in trees:
        joined = _merge_two(joined, tree, "")
    return joined


def _merge_two(first: Mapping[str, Any], second: Mapping[str, Any], path: str) -> Any:
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        raise UserError(f"Two of the trees have a leaf at {path or 'their root'}; each leaf must be in only one tree.")
    if not first or not second:
        return second or first
    if type(first) is not type(second):
        raise UserError(
            f"The trees cannot be merged: {path or 'their root'} is a {type(first).__name__} in one of them, and a "
            f"{type(second).__name__} in another."
        )
    merged = {key: _merge_two(first[key], second[key], f"{path}/{key}") for key in first if key in second}
    return _like(first, {**first, **second, **merged})


def select(tree: Mapping[str, Any], keep: Callable[[str], bool], prefix: str = "") -> Tree:
    """Selects the leaves whose path satisfies ``keep``, without empty subtrees."""
    selected: Tree = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if not isinstance(value, Mapping):
            if keep(path):
                selected[key] = value
        elif part := select(value, keep, f"{path}/"):
            selected[key] = part
    return _like(tree, selected)


def map_with_path(function: Callable[[str, Any], Any], tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Applies ``function(path, leaf)`` to every leaf."""

    def mapped(key: str) -> Any:
        value, path = tree[key], f"{prefix}{key}"
        return map_with_path(function, value, f"{path}/") if isinstance(value, Mapping) else function(path, value)

    return _like(tree, {key: mapped(key) for key in sorted(tree)})


def _like(node: Mapping[str, Any], children: Tree) -> Tree:
    """Converts ``children`` to the type of ``node``."""
    return type(node)(children) if isinstance(node, Node) else children


def count(tree: Mapping[str, Any]) -> int:
    """Counts the parameters in a tree."""
    return sum(int(np.prod(leaf.shape)) for leaf in flatten(tree).values())


# Number of axes of one layer's leaf, by leaf name.
LEAF_AXES: Mapping[str, int] = {
    "kernel": 2,
    "bias": 1,
    "scale": 1,
    "word": 2,
    "position": 2,
    "type": 2,
    "relative_position": 2,
}


def shape_difference(tree: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Describes the first leaf of a tree that is missing, unexpected or misshapen. Empty if there is none.

    Args:
      tree: A tree of arrays.
      expected: A tree of arrays or ``jax.ShapeDtypeStruct`` with the expected paths and shapes.

    Example:
      >>> import numpy as np
      >>> from afjax.trees import shape_difference
      >>> shape_difference({"bias": np.zeros(3)}, {"bias": np.zeros(2)})
      'bias is (3,), but should be (2,)'
      >>> shape_difference({}, {"bias": np.zeros(2)})
      'bias is missing'
    """
    shapes, expected_shapes = (
        {path: leaf.shape for path, leaf in flatten(leaves).items()} for leaves in (tree, expected)
    )
    for path in sorted(shapes.keys() | expected_shapes.keys()):
        if path not in shapes:
            return f"{path} is missing"
        if path not in expected_shapes:
            return f"{path} is unexpected"
        if shapes[path] != expected_shapes[path]:
            return f"{path} is {shapes[path]}, but should be {expected_shapes[path]}"
    return ""


def pad_axis(array: AnyArray, axis: int, size: int, *, value: float = 0.0) -> np.ndarray:
    """Pads an axis at its end to a given size.

    Args:
      array: The array.
      axis: The axis.
      size: The new size of the axis, at least its current size.
      value: The value of the new entries.

    Returns:
      A NumPy array of the same dtype.
    """
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, size - array.shape[axis])
    return np.pad(np.asarray(array), widths, constant_values=value)


def array_digest(array: Any) -> str:
    """Hashes an array's dtype, shape and little-endian C-order bytes (SHA-256, hex)."""
    array = np.asarray(array)
    digest = hashlib.sha256(f"{array.dtype.name}{list(array.shape)}".encode())
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def tree_digest(tree: Mapping[str, Any]) -> str:
    """Hashes a tree's sorted paths and their leaves' digests (SHA-256, hex)."""
    digest = hashlib.sha256()
    for path, leaf in flatten(tree).items():
        digest.update(f"{path}:{array_digest(leaf)}\n".encode())
    return digest.hexdigest()


def named_key(key: PRNGKeyArray, *names: str) -> PRNGKeyArray:
    """Derives a random key that depends only on ``key`` and the names.

    It does not depend on which other keys are derived from ``key``. Adding an adapter therefore never changes the other
    adapters' initial values.
    """
    digest = hashlib.sha256("/".join(names).encode()).digest()[:4]
    return jax.random.fold_in(key, int.from_bytes(digest, "little"))
