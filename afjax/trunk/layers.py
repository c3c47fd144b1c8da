"""The forms in which a tree holds the encoder's layers: stacked, each layer by itself, or the last one by itself.

Stacked layers have a leading axis of the number of layers. Straight-line code runs faster with a subtree for each
layer, ``{"0": ..., "1": ...}``; a loop over the layers with ``{"looped": stacked, "last": stacked}``.
"""

from typing import Any

import jax
import jax.numpy as jnp

from afjax.trees import Tree


def unstack(tree: Any, num: int) -> list[Any]:
    """The slices of every leaf along its leading axis of ``num``.

    Through ``lax.split``, whose gradient is one concatenation; that of indexing would be ``num`` zero-padded
    sums of the whole stacked leaf.
    """
    leaves, treedef = jax.tree.flatten(tree)
    parts = [[part[0] for part in jax.lax.split(leaf, (1,) * num)] for leaf in leaves]
    return [jax.tree.unflatten(treedef, [part[index] for part in parts]) for index in range(num)]


def for_every_layer(tree: Any, num: int) -> Any:
    """The same leaves for each of ``num`` layers, stacked."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (num, *leaf.shape)), tree)


def unstack_layers(layers: Tree) -> Tree:
    """The same layers with a subtree for each: ``{"0": ..., "1": ...}``.

    :func:`encode` takes both forms; for straight-line code this one saves copies of the weights in the program.
    """
    return {str(index): jax.tree.map(lambda leaf, i=index: leaf[i], layers) for index in range(num_stacked(layers))}


def part_layers(layers: Tree) -> Tree:
    """The same layers in stacks ``{"looped", "last"}``: the last layer, of which less may have to be computed, apart.

    Of a single layer there is no ``"looped"``.
    """
    last = jax.tree.map(lambda leaf: leaf[-1:], layers)
    looped = jax.tree.map(lambda leaf: leaf[:-1], layers)
    return {"looped": looped, "last": last} if num_stacked(layers) > 1 else {"last": last}


def memory_form(layers: Tree, *, scan: bool) -> Tree:
    """Stacked layers in the form that runs fastest: each apart, or, for a loop over them, :func:`part_layers`."""
    return part_layers(layers) if scan else unstack_layers(layers)


def stack_layers(layers: Tree) -> Tree:
    """Undoes :func:`memory_form`; leaves stacked layers as they are."""
    if "last" in layers:
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *layer_parts(layers))
    if "0" not in layers:
        return layers
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(layers[str(index)] for index in range(len(layers))))


def layer_parts(layers: Tree) -> list[Tree]:
    """The stacks of :func:`part_layers`, or the one stack; layers that are each apart count as one."""
    return [layers[part] for part in ("looped", "last") if part in layers] if "last" in layers else [layers]


def num_stacked(layers: Tree) -> int:
    """How many layers a tree holds, stacked or each apart."""
    return len(layers) if "0" in layers else jax.tree.leaves(layers)[0].shape[0]


def each_layer(layers: Tree) -> list[Tree]:
    """Every layer's tree, of layers that are stacked or each apart; none of an empty tree."""
    if "0" in layers:
        return [layers[str(index)] for index in range(len(layers))]
    return unstack(layers, num_stacked(layers)) if layers else []


def trunk_layers(trunk: Tree) -> list[Tree]:
    """Every layer's tree, from the bottom up, in whichever form the trunk holds them."""
    return [layer for run in layer_runs(trunk) for layer in each_layer(run)]


def layer_runs(trunk: Tree) -> list[Tree]:
    """The stacks of layers, or dicts of layers that are each apart, that a trunk holds."""
    return [part for name in ("layers", "top_layers") if name in trunk for part in layer_parts(trunk[name])]
