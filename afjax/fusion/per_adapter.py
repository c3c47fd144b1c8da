"""Sums over each adapter's units, or repeats per-adapter values for all units.

A unit is an inner activation. Each function has two implementations and uses the one that is faster on the platform.
"""

import functools
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from afjax.nn.layers import wide_matmul

# Number of adapters per matmul with a matrix of zeros and ones. In total, these matmuls take 2 R BLOCK operations per
# token, few compared with 2 R d for the other matmuls. One matmul for a thousand adapters would be more expensive.
BLOCK = 64


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def sum_per_adapter(units: Float[Array, "*batch units"], sizes: tuple[int, ...]) -> Float[Array, "*batch num_adapters"]:
    """Sums over each adapter's units."""

    def by_matmul(units: Array) -> Array:
        parts = [_multiply(units[..., first:last], owners) for first, last, owners in _blocks(sizes)]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)

    def by_reshape(units: Array) -> Array:
        return units.reshape(*units.shape[:-1], len(sizes), sizes[0]).sum(-1)

    return _for_platform(by_matmul, by_reshape, units, sizes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def spread_per_adapter(
    values: Float[Array, "*batch num_adapters"], sizes: tuple[int, ...]
) -> Float[Array, "*batch units"]:
    """Repeats each adapter's value for all of its units."""

    def by_matmul(values: Array) -> Array:
        blocks = jnp.split(values, list(range(BLOCK, len(sizes), BLOCK)), -1)
        parts = [_multiply(block, owners.T) for block, (_, _, owners) in zip(blocks, _blocks(sizes), strict=True)]
        return parts[0] if len(parts) == 1 else jnp.concatenate(parts, -1)

    def by_reshape(values: Array) -> Array:
        wide = jnp.broadcast_to(values[..., None], (*values.shape, sizes[0]))
        return wide.reshape(*values.shape[:-1], sum(sizes))

    return _for_platform(by_matmul, by_reshape, values, sizes)


# Each function's derivative is the other function, so nothing is saved for the backward pass. With JAX's own rules, a
# loop over the layers would save the matrices of zeros and ones for every layer.
sum_per_adapter.defvjp(
    lambda units, sizes: (sum_per_adapter(units, sizes), None),
    lambda sizes, _, grad_sums: (spread_per_adapter(grad_sums, sizes),),
)
spread_per_adapter.defvjp(
    lambda values, sizes: (spread_per_adapter(values, sizes), None),
    lambda sizes, _, grad_units: (sum_per_adapter(grad_units, sizes),),
)


def _for_platform(
    by_matmul: Callable[[Array], Array], by_reshape: Callable[[Array], Array], x: Array, sizes: Sequence[int]
) -> Array:
    """Runs the implementation that is faster on the platform.

    If the adapters' sizes differ, only the matmul works. On TPU, arrays are stored in tiles of 128 columns, and a
    reshape that splits rows anywhere else moves the entire array.
    """
    if len(set(sizes)) > 1:
        return by_matmul(x)
    return jax.lax.platform_dependent(x, tpu=by_matmul, default=by_reshape)


def _blocks(sizes: Sequence[int]) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yields ``(first unit, last unit + 1, owners)`` for each block of adapters.

    ``owners``, bool ``[units, adapters]``, is True where the unit belongs to the adapter.
    """
    first = 0
    for begin in range(0, len(sizes), BLOCK):
        block = sizes[begin : begin + BLOCK]
        owners = np.repeat(np.arange(len(block)), block)
        yield first, first + len(owners), owners[:, None] == np.arange(len(block))
        first += len(owners)


def _multiply(rows: Array, owners: np.ndarray) -> Array:
    return wide_matmul(rows, jnp.asarray(owners, rows.dtype)).astype(rows.dtype)
