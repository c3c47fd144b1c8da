"""A compiled loop over layers, whose backward pass ends above the bottom layer where nothing below it is trained."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero

# From the layer's input, what is its own and what all layers share, to its output, of the input's shape and dtype, and
# whatever else it gives.
RunLayer = Callable[[Array, Any, Any], tuple[Array, Any]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def loop_over_layers(run_layer: RunLayer, x: Array, of_each: Any, of_all: Any) -> tuple[Array, Any]:
    """Runs layer after layer: a ``jax.lax.scan`` with a backward pass of its own.

    JAX's own computes the gradient towards every layer's input. Where that of the bottom layer is not asked for (below
    it all is frozen) it is a waste, of a whole layer's backward pass but for what is trained in it. The bottom layer
    could stand in front of the loop, but the compiler would then hold its code a second time. Here the forward loop has
    all layers, the backward loop all but the bottom one, whose part stands behind it.

    Args:
      run_layer: A layer; it must not close over arrays.
      x: The bottom layer's input.
      of_each: What each layer has for itself: a tree of leaves ``[depth, ...]``.
      of_all: A tree that every layer is given as it is.

    Returns:
      The top layer's output, and what else the layers give, stacked.
    """
    return jax.lax.scan(lambda x, of_one: run_layer(x, of_one, of_all), x, of_each)


def _forward(run_layer: RunLayer, x: CustomVJPPrimal, of_each: Any, of_all: Any) -> tuple[tuple[Array, Any], Any]:
    trained_of_each, frozen_of_each = _split(of_each)
    trained_of_all, frozen_of_all = _split(of_all)

    def step(x: Array, of_one: tuple[Any, Any]) -> tuple[Array, Any]:
        trained_of_one, frozen_of_one = of_one

        def run(x: Array, trained_of_one: Any, trained_of_all: Any) -> tuple[Array, Any]:
            return run_layer(x, _merge(trained_of_one, frozen_of_one), _merge(trained_of_all, frozen_of_all))

        (x, others), backward = jax.vjp(run, x, trained_of_one, trained_of_all)
        return x, (others, backward)

    # What a layer's backward pass needs of of_each the scan returns as it was given, without a copy.
    x_out, (others, backwards) = jax.lax.scan(step, x.value, (trained_of_each, frozen_of_each))
    # A tree without leaves says whether the gradient is to go on below.
    return (x_out, others), (backwards, () if x.perturbed else None)


def _backward(run_layer: RunLayer, kept: tuple[Any, Any], cotangents: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    (backwards, goes_on), (to_x, to_others) = kept, cotangents
    depth = jax.tree.leaves(backwards)[0].shape[0]

    def gradients(index: Array | int, to_x: Array) -> tuple[Array, Any, Any]:
        def of_layer(leaf: Any) -> Array:
            if isinstance(leaf, SymbolicZero):
                return jnp.zeros(leaf.shape[1:], leaf.dtype)
            return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)

        backward, to_others_of_layer = jax.tree.map(of_layer, (backwards, to_others))
        return backward((to_x, to_others_of_layer))

    def step(above: Array | int, state: tuple[Array, Any, Any]) -> tuple[Array, Any, Any]:
        index = depth - 1 - above
        to_x, to_each, to_all = state
        to_x, to_one, more_to_all = gradients(index, to_x)
        to_each = jax.tree.map(
            lambda stack, leaf: jax.lax.dynamic_update_index_in_dim(stack, leaf, index, axis=0), to_each, to_one
        )
        return to_x, to_each, jax.tree.map(jnp.add, to_all, more_to_all)

    if isinstance(to_x, SymbolicZero):
        to_x = jnp.zeros(to_x.shape, to_x.dtype)
    _, of_one, of_all = jax.eval_shape(gradients, 0, to_x)
    to_each = jax.tree.map(lambda leaf: jnp.zeros((depth, *leaf.shape), leaf.dtype), of_one)
    to_all = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), of_all)
    looped = depth if goes_on is not None else depth - 1
    state = jax.lax.fori_loop(0, looped, step, (to_x, to_each, to_all))
    if goes_on is not None:
        return state
    # The compiler drops what only the gradient towards the bottom layer's input would need.
    _, to_each, to_all = step(depth - 1, state)
    return None, to_each, to_all


loop_over_layers.defvjp(_forward, _backward, symbolic_zeros=True)


def _split(primals: Any) -> tuple[Any, Any]:
    """The leaves that a gradient is asked for, and the others; None in the place of those that the other tree has."""

    def those(perturbed: bool) -> Any:
        return jax.tree.map(
            lambda primal: primal.value if primal.perturbed == perturbed else None,
            primals,
            is_leaf=lambda node: isinstance(node, CustomVJPPrimal),
        )

    return those(True), those(False)


def _merge(trained: Any, frozen: Any) -> Any:
    """Undoes :func:`_split`."""
    return jax.tree.map(
        lambda one, other: other if one is None else one, trained, frozen, is_leaf=lambda node: node is None
    )
