"""Forms of a tree with the encoder's layers: stacked, unstacked or looped.

In stored and newly initialized trees, all layers are stacked: leaves have a leading axis of size ``num_layers``.
Compiled programs run faster with one of two other forms, each with its own type:

* :class:`UnstackedLayers` is for straight-line code, which would otherwise copy each layer's weights out of the stack.
* :class:`LoopedLayers` is for a loop over the layers. The last layer runs after the loop, because it computes less.

:func:`fastest_form` chooses between them, and :func:`stack_layers` converts back.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from afjax.trees import Node, Tree, register_node


@register_node
class UnstackedLayers(Node):
    """``{"0": tree, "1": tree, ...}``: one tree per layer, from the bottom up."""


@register_node
class LoopedLayers(Node):
    """``{"looped": stack, "last": stack}``: all lower layers, and the last layer.

    If there is only one layer, the only key is ``last``.
    """


# A plain tree has stacked layers.
Layers = Tree | UnstackedLayers | LoopedLayers


def unstack(tree: Any, num: int) -> list[Any]:
    """Splits every leaf along its leading axis of size ``num`` and drops that axis.

    Uses ``lax.split``, whose gradient is one concatenation. The gradient of indexing would be a sum of ``num``
    zero-padded arrays, each as large as the stacked leaf.
    """
    leaves, treedef = jax.tree.flatten(tree)
    parts = [[part[0] for part in jax.lax.split(leaf, (1,) * num)] for leaf in leaves]
    return [jax.tree.unflatten(treedef, [part[index] for part in parts]) for index in range(num)]


def for_every_layer(tree: Any, num: int) -> Any:
    """Repeats every leaf along a new leading axis of size ``num``."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (num, *leaf.shape)), tree)


def unstack_layers(layers: Tree) -> UnstackedLayers:
    """Converts stacked layers to one tree per layer."""
    return UnstackedLayers(
        {str(index): jax.tree.map(lambda leaf, i=index: leaf[i], layers) for index in range(num_layers(layers))}
    )


def loop_layers(layers: Tree) -> LoopedLayers:
    """Splits stacked layers into the stack for a loop and the last layer."""
    last = jax.tree.map(lambda leaf: leaf[-1:], layers)
    looped = jax.tree.map(lambda leaf: leaf[:-1], layers)
    return LoopedLayers({"looped": looped, "last": last} if num_layers(layers) > 1 else {"last": last})


def fastest_form(layers: Tree, *, scan: bool) -> Layers:
    """Converts stacked layers to the form that runs fastest.

    Returns :class:`LoopedLayers` if the layers run in a loop (``scan``), otherwise :class:`UnstackedLayers`.
    """
    return loop_layers(layers) if scan else unstack_layers(layers)


def stack_layers(layers: Layers) -> Tree:
    """Converts layers of any form to stacked layers."""
    if isinstance(layers, UnstackedLayers):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each_layer(layers))
    if isinstance(layers, LoopedLayers):
        return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *stacks(layers))
    return layers


def same_form(stacked: Tree, layers: Layers) -> Layers:
    """Converts stacked layers to the form of ``layers``, inside a compiled program.

    Gradients flow through this conversion, so it separates layers with :func:`unstack`, whose gradient is cheap.
    """
    if isinstance(layers, UnstackedLayers):
        return UnstackedLayers({str(index): layer for index, layer in enumerate(unstack(stacked, len(layers)))})
    return loop_layers(stacked) if isinstance(layers, LoopedLayers) else stacked


def map_parts(function: Callable[..., Tree], *layers: Layers) -> Layers:
    """Applies a function to the corresponding layers of several trees.

    All trees must have the same form. The result also has this form. If layers are stacked, the function is applied to
    the stacks instead of single layers.
    """
    first = layers[0]
    if isinstance(first, UnstackedLayers | LoopedLayers):
        return type(first)({part: function(*(tree[part] for tree in layers)) for part in first})
    return function(*layers)


def stacks(layers: Tree | LoopedLayers) -> list[Tree]:
    """Returns the stacks of layers, from the bottom up."""
    if isinstance(layers, LoopedLayers):
        return [layers[part] for part in ("looped", "last") if part in layers]
    return [layers]


def num_layers(layers: Layers) -> int:
    """Returns the number of layers in a tree."""
    if isinstance(layers, UnstackedLayers):
        return len(layers)
    return sum(jax.tree.leaves(stack)[0].shape[0] for stack in stacks(layers))


def each_layer(layers: Layers) -> list[Tree]:
    """Returns each layer's tree, from the bottom up. An empty tree has no layers."""
    if isinstance(layers, UnstackedLayers):
        return [layers[str(index)] for index in range(len(layers))]
    return [layer for stack in stacks(layers) if stack for layer in unstack(stack, num_layers(stack))]


def trunk_layers(trunk: Tree) -> list[Tree]:
    """Converts a trunk's layers from any form to one tree per layer."""
    return [layer for layers in layer_groups(trunk) for layer in each_layer(layers)]


def layer_groups(trunk: Tree) -> list[Layers]:
    """Returns a trunk's ``layers``, and its ``top_layers`` if it has them."""
    return [trunk[name] for name in ("layers", "top_layers") if name in trunk]


def join_layers(trunk: Tree) -> Tree:
    """Joins ``layers`` and ``top_layers``, and stacks the layers if there were ``top_layers``."""
    if "top_layers" not in trunk:
        return trunk
    other_params = {name: tree for name, tree in trunk.items() if name not in ("layers", "top_layers")}
    parts = [stack_layers(layers) for layers in layer_groups(trunk)]
    return {**other_params, "layers": jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)}
