"""Plain nested dicts of arrays: paths, digests and named random keys.

A tree is ``dict[str, dict | array]``. A leaf's path joins its keys with ``/``, for example
``adapters/rte/ffn/down/kernel``; names therefore never hold a ``/``.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

Tree = dict[str, Any]


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns ``{path: leaf}``, sorted by path. Empty subtrees vanish."""
    leaves: dict[str, Any] = {}
    for key in sorted(tree):
        value, path = tree[key], f"{prefix}{key}"
        if isinstance(value, Mapping):
            leaves.update(flatten(value, f"{path}/"))
        else:
            leaves[path] = value
    return leaves


def unflatten(leaves: Mapping[str, Any]) -> Tree:
    """The inverse of :func:`flatten`."""
    tree: Tree = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = leaf
    return tree


def merge(*trees: Mapping[str, Any]) -> Tree:
    """Joins trees that share no leaf."""
    leaves: dict[str, Any] = {}
    for tree in trees:
        part = flatten(tree)
        both = leaves.keys() & part.keys()
        assert not both, f"leaves in two trees: {sorted(both)}"
        leaves.update(part)
    return unflatten(leaves)


def map_with_path(function: Callable[[str, Any], Any], tree: Mapping[str, Any]) -> Tree:
    """Applies ``function(path, leaf)`` to every leaf."""
    return unflatten({path: function(path, leaf) for path, leaf in flatten(tree).items()})


def count(tree: Mapping[str, Any]) -> int:
    """The number of parameters in a tree."""
    return sum(int(np.prod(leaf.shape)) for leaf in flatten(tree).values())


def num_axes(path: str) -> int:
    """How many axes a leaf of that path has of its own; any in front of them are stacked layers or tasks."""
    return 2 if path.rpartition("/")[2] in ("kernel", "word", "position", "type") else 1


def array_digest(array: Any) -> str:
    """SHA-256 (hex) over dtype, shape and the bytes in C order, little-endian."""
    array = np.asarray(array)
    digest = hashlib.sha256(f"{array.dtype.name}{list(array.shape)}".encode())
    if array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def tree_digest(tree: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over the sorted paths and the leaves' digests."""
    digest = hashlib.sha256()
    for path, leaf in flatten(tree).items():
        digest.update(f"{path}:{array_digest(leaf)}\n".encode())
    return digest.hexdigest()


def named_key(key: jax.Array, *names: str) -> jax.Array:
    """A random key that depends on ``key`` and the names alone, not on what else draws from ``key``.

    So adding an adapter never changes another's start.
    """
    word = hashlib.sha256("/".join(names).encode()).digest()[:4]
    return jax.random.fold_in(key, int.from_bytes(word, "little"))
