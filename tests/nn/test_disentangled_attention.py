"""Disentangled attention equals a plain implementation.

The plain implementation looks up a row of the table for every pair of tokens.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from afjax.nn.disentangled_attention import PositionProjections, RelativeBuckets
from afjax.nn.layers import dense

BATCH, HEADS, SIZE, INPUTS = 3, 2, 4, 5
BUCKETS = RelativeBuckets(num_buckets=6, max_distance=12)
# Each distance of up to 3 has its own bucket, and the last bucket begins at 11. Rows of 34 and 48 tokens are computed
# in blocks. A row of 37 tokens cannot be divided into equal blocks, because 37 is a prime number.
LENGTHS = (1, 2, 4, 9, 34, 37, 48)


def normal(seed: int, *shape: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def plain_scores(buckets: RelativeBuckets, query: Array, keys: Array, table_query: Array, table_key: Array) -> Array:
    """Computes one row's scores with relative positions.

    Looks up a row of the table for every pair of tokens.

    Args:
      buckets: Maps distances to rows of the tables.
      query, keys: ``[heads, length, size]``.
      table_query, table_key: The projections of all rows of the table, ``[entries, heads * size]``.
    """
    steps = np.arange(keys.shape[1])
    rows = buckets.entries(steps[:, None] - steps[None])  # [queries, keys]
    position_queries, position_keys = (table.reshape(-1, HEADS, SIZE)[rows] for table in (table_query, table_key))
    return jnp.einsum("hid,ijhd->hij", query, position_keys) + jnp.einsum("hjd,ijhd->hij", keys, position_queries)


def check_equal(fast: Callable[..., Array], plain: Callable[..., Array], *inputs: Array) -> None:
    """Compares two functions in value and in the gradient with respect to every input."""

    def value_and_gradients(function: Callable[..., Array]) -> tuple[Array, tuple[Array, ...]]:
        outputs, backward = jax.vjp(jax.jit(function), *inputs)
        return outputs, backward(jnp.sin(jnp.arange(outputs.size, dtype=outputs.dtype)).reshape(outputs.shape))

    (outputs, gradients), (expected, expected_gradients) = value_and_gradients(fast), value_and_gradients(plain)
    np.testing.assert_allclose(outputs, expected, atol=1e-12)
    for number, (gradient, expected_gradient) in enumerate(zip(gradients, expected_gradients, strict=True)):
        np.testing.assert_allclose(gradient, expected_gradient, atol=1e-12, err_msg=str(number))


@pytest.mark.parametrize("rows", [1, BATCH])
@pytest.mark.parametrize("length", LENGTHS)
def test_scores_equal_the_plain_form_in_value_and_gradient(length: int, rows: int) -> None:
    with jax.enable_x64(True):
        query, keys = normal(0, BATCH, HEADS, length, SIZE), normal(1, BATCH, HEADS, length, SIZE)
        tables = normal(2, rows, BUCKETS.num_entries, HEADS * SIZE), normal(3, rows, BUCKETS.num_entries, HEADS * SIZE)

        def projections(table_query: Array, table_key: Array) -> PositionProjections:
            used = BUCKETS.used(length)
            return PositionProjections(query=table_query[:, used], key=table_key[:, used], buckets=BUCKETS)

        def fast(query: Array, keys: Array, *tables: Array) -> Array:
            return projections(*tables).scores(query, keys)

        def plain(query: Array, keys: Array, *tables: Array) -> Array:
            every = [jnp.broadcast_to(table, (BATCH, *table.shape[1:])) for table in tables]
            return jax.vmap(lambda *row: plain_scores(BUCKETS, *row))(query, keys, *every)

        check_equal(fast, plain, query, keys, *tables)

        def fast_first(query: Array, keys: Array, *tables: Array) -> Array:
            return projections(*tables).first_token_scores(query[:, :, :1], keys)

        check_equal(fast_first, lambda *inputs: plain(*inputs)[:, :, :1], query, keys, *tables)


@pytest.mark.parametrize("length", LENGTHS)
def test_scores_without_keys_equal_the_plain_form_in_value_and_gradient(length: int) -> None:
    with jax.enable_x64(True):
        query, x = normal(0, HEADS, BATCH, SIZE), normal(1, BATCH, length, INPUTS)
        kernel, bias = normal(2, INPUTS, HEADS * SIZE), normal(3, HEADS * SIZE)
        tables = normal(4, BUCKETS.num_entries, HEADS * SIZE), normal(5, BUCKETS.num_entries, HEADS * SIZE)

        def fast(query: Array, x: Array, kernel: Array, bias: Array, table_query: Array, table_key: Array) -> Array:
            used = BUCKETS.used(length)
            projections = PositionProjections(query=table_query[None, used], key=table_key[None, used], buckets=BUCKETS)
            return projections.first_token_scores_without_keys({"kernel": kernel, "bias": bias}, x, query)

        def plain(query: Array, x: Array, kernel: Array, bias: Array, *tables: Array) -> Array:
            keys = dense({"kernel": kernel, "bias": bias}, x).reshape(BATCH, length, HEADS, SIZE).swapaxes(1, 2)
            # Only the first token's scores are used, so all tokens can have the same query.
            queries = jnp.broadcast_to(query.swapaxes(0, 1)[:, :, None], keys.shape)
            return jax.vmap(lambda *row: plain_scores(BUCKETS, *row, *tables))(queries, keys)[:, :, 0]

        check_equal(fast, plain, query, x, kernel, bias, *tables)


def test_large_distances_share_rows_of_the_table() -> None:
    assert BUCKETS.num_entries == 12
    distances = np.array([0, 1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 1000])
    assert BUCKETS.entries(distances).tolist() == [6, 7, 9, 10, 10, 11, 11, 11, 11, 11, 11, 11, 11]
    np.testing.assert_array_equal(BUCKETS.entries(-distances)[:5], [6, 5, 3, 2, 2])
    assert BUCKETS.entries(np.array([-1000])).tolist() == [0]


@pytest.mark.parametrize(("length", "first", "last"), [(1, 6, 6), (4, 3, 9), (5, 2, 10), (100, 0, 11)])
def test_used_rows_of_the_table_depend_on_the_length(length: int, first: int, last: int) -> None:
    used = BUCKETS.used(length)
    assert (used.start, used.stop - 1) == (first, last)


def test_gradient_of_the_scores_has_no_scatter() -> None:
    """A scatter would be the gradient of a gather. Both are slow on TPUs."""
    query, table = jnp.ones((BATCH, HEADS, 48, SIZE)), jnp.ones((1, BUCKETS.num_entries, HEADS * SIZE))
    projections = PositionProjections(query=table, key=table, buckets=BUCKETS)
    text = jax.jit(jax.grad(lambda x: projections.scores(x, x).sum())).lower(query).as_text()
    assert "scatter" not in text
    assert f"{BATCH}x{HEADS}x48x48" in text
