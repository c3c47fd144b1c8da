"""A run's parameters: which are trained, which are frozen, and their copies on the devices."""

import functools
from collections.abc import Callable

import jax
from jax.sharding import Mesh

from afjax.distributed.sharding import shard
from afjax.model.setup import Setup
from afjax.train.shared import TRUNKS, Shared
from afjax.trees import Tree
from afjax.trunk.encoder import cast_trunk
from afjax.trunk.layers import fastest_form


def split_params(setup: Setup, params: Tree) -> tuple[Tree, Tree]:
    """Splits parameters into a trained and a frozen tree, in the fastest layout.

    The frozen leaves of the trunk are cast to the model's dtype.
    """
    model = setup.model
    params = map_layers(params, functools.partial(fastest_form, scan=model.scan_layers))
    trained, frozen = setup.split(params)
    if "trunk" in frozen and model.dtype:
        frozen = {**frozen, "trunk": cast_trunk(frozen["trunk"], model.dtype)}
    if model.fusion_name and "adapters" not in trained:
        frozen = model.with_bank(frozen)
    return trained, frozen


def trains_layers(setup: Setup, frozen: Tree) -> bool:
    """Checks whether a setup trains layers of the trunk, and not only its LayerNorms."""
    return bool(setup.top_k) or "embeddings" not in frozen.get("trunk", {})


def count_passes(setup: Setup, trained: Tree, frozen: Tree) -> int:
    """Returns the cost of a training step in forward passes of the trunk.

    The gradients with respect to activations take as many operations as a forward pass, and so do the gradients with
    respect to the trunk's weights. If only a head is trained, neither are computed.
    """
    if not any(trained.get(root) for root in ("trunk", "adapters", "fusion")):
        return 1
    return 3 if trains_layers(setup, frozen) else 2


def shared_trunk(frozen: Tree, trunk: Tree, mesh: Mesh, shared: Shared) -> Tree:
    """Copies a frozen tree to the mesh.

    Runs that freeze the same leaves of the same trunk share one copy.

    Args:
      frozen: The frozen tree.
      trunk: The trunk's whole tree, which identifies it.
      mesh: The devices.
      shared: Keeps the copies.
    """
    leaves, structure = jax.tree.flatten(frozen["trunk"])
    # The value holds a reference to the trunk, so that its id is not reused.
    key = (id(trunk), structure, tuple(leaf.dtype for leaf in leaves), mesh)
    # A leaf's sharding depends on its whole path, which begins with "trunk".
    unplaced = {"trunk": frozen["trunk"]}
    _, placed = shared.once("frozen trunk", key, lambda: (trunk, shard(unplaced, mesh)), capacity=TRUNKS)
    return {**placed, **shard(without_trunk(frozen), mesh)}


def without_trunk(frozen: Tree) -> Tree:
    """Returns the parts of a frozen tree that runs do not share."""
    return {root: tree for root, tree in frozen.items() if root != "trunk"}


def map_layers(params: Tree, function: Callable[[Tree], Tree]) -> Tree:
    """Applies a function to the trunk's ``layers`` and ``top_layers``, if any."""
    trunk = params.get("trunk", {})
    layers = {name: function(tree) for name, tree in trunk.items() if name in ("layers", "top_layers")}
    return {**params, "trunk": {**trunk, **layers}} if layers else params
