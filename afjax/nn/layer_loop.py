"""A compiled loop over layers that skips a frozen input's gradient."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jaxtyping import Float

# run_layer(x, layer_params, shared_params) -> (output, others). The output has the shape and dtype of x; others is a
# tree of float arrays.
RunLayer = Callable[[Array, Any, Any], tuple[Array, Any]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def loop_over_layers(
    run_layer: RunLayer, x: Float[Array, "*shape"], per_layer: Any, shared: Any
) -> tuple[Float[Array, "*shape"], Any]:
    """Runs the layers one after another, as a scan with a custom backward pass.

    JAX's backward pass of a scan computes the gradient with respect to every layer's input. If everything below the
    loop is frozen, the gradient with respect to the bottom layer's input is not needed, although it accounts for most
    of that layer's backward pass. Running the bottom layer before the loop would avoid it, but its forward pass would
    then have to be compiled separately. Here, the forward loop runs all layers, the backward loop stops above the
    bottom layer, and the bottom layer's other gradients are computed afterwards.

    The residuals of every layer are stored, even if the bottom layer's backward pass does not need them. Residuals that
    do not depend on the layer, such as constants or leaves of ``shared``, are stored once per layer. Leaves of
    ``per_layer`` are not copied.

    Args:
      run_layer: Runs one layer. It must not close over arrays.
      x: The bottom layer's input.
      per_layer: The layers' own parameters: a tree with leaves ``[depth, ...]``.
      shared: The parameters shared by all layers, as a tree.

    Returns:
      The top layer's output, and the layers' other results, stacked.
    """
    return jax.lax.scan(lambda x, layer: run_layer(x, layer, shared), x, per_layer)


def _forward(run_layer: RunLayer, x: CustomVJPPrimal, per_layer: Any, shared: Any) -> tuple[tuple[Array, Any], Any]:
    trained_per_layer, frozen_per_layer = _split(per_layer)
    trained_shared, frozen_shared = _split(shared)

    def step(x: Array, layer: tuple[Any, Any]) -> tuple[Array, Any]:
        trained_layer, frozen_layer = layer

        def run(x: Array, trained_layer: Any, trained_shared: Any) -> tuple[Array, Any]:
            return run_layer(x, _merge(trained_layer, frozen_layer), _merge(trained_shared, frozen_shared))

        (x, others), backward = jax.vjp(run, x, trained_layer, trained_shared)
        return x, (others, backward)

    # If residuals are leaves of per_layer, the scan returns them without a copy.
    x_out, (others, backwards) = jax.lax.scan(step, x.value, (trained_per_layer, frozen_per_layer))
    depth = jax.tree.leaves((trained_per_layer, frozen_per_layer))[0].shape[0]
    # The shape of this empty array stores the number of layers and how many of them need an input gradient. Integers
    # would become traced arrays.
    extent = jnp.zeros((depth, depth if x.perturbed else depth - 1, 0))
    return (x_out, others), (backwards, extent)


def _backward(run_layer: RunLayer, residuals: tuple[Any, Array], cotangents: tuple[Any, Any]) -> tuple[Any, Any, Any]:
    (backwards, extent), (grad_x, grad_others) = residuals, cotangents
    depth, looped, _ = extent.shape

    def gradients(index: Array | int, grad_x: Array) -> tuple[Array, Any, Any]:
        def layer(leaf: Any) -> Array:
            if isinstance(leaf, SymbolicZero):
                return jnp.zeros(leaf.shape[1:], leaf.dtype)
            return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False, allow_negative_indices=False)

        backward, grad_others_of_layer = jax.tree.map(layer, (backwards, grad_others))
        return backward((grad_x, grad_others_of_layer))

    def step(state: tuple[Array, Any], index: Array) -> tuple[tuple[Array, Any], Any]:
        grad_x, grad_shared = state
        grad_x, grad_layer, grad_shared_of_layer = gradients(index, grad_x)
        return (grad_x, jax.tree.map(jnp.add, grad_shared, grad_shared_of_layer)), grad_layer

    if isinstance(grad_x, SymbolicZero):
        grad_x = jnp.zeros(grad_x.shape, grad_x.dtype)
    grad_shared = jax.tree.map(jnp.zeros_like, jax.eval_shape(gradients, 0, grad_x)[2])
    indices = jnp.arange(depth - looped, depth)
    (grad_x, grad_shared), grad_layers = jax.lax.scan(step, (grad_x, grad_shared), indices, reverse=True)
    if looped == depth:
        return grad_x, grad_layers, grad_shared
    # The compiler removes the gradient with respect to the bottom layer's input, because it is not used.
    _, grad_bottom, grad_shared_of_layer = gradients(0, grad_x)
    grad_layers = jax.tree.map(lambda one, others: jnp.concatenate([one[None], others]), grad_bottom, grad_layers)
    return None, grad_layers, jax.tree.map(jnp.add, grad_shared, grad_shared_of_layer)


loop_over_layers.defvjp(_forward, _backward, symbolic_zeros=True)


def _split(primals: Any) -> tuple[Any, Any]:
    """Splits a tree into the leaves that need gradients and the remaining leaves.

    Each of the two trees has None in place of the other tree's leaves.
    """

    def select(perturbed: bool) -> Any:
        return jax.tree.map(lambda primal: primal.value if primal.perturbed == perturbed else None, primals)

    return select(True), select(False)


def _merge(trained: Any, frozen: Any) -> Any:
    """Joins the two trees from :func:`_split`."""
    return jax.tree.map(
        lambda one, other: other if one is None else one, trained, frozen, is_leaf=lambda node: node is None
    )
