"""Attention's custom derivative rule equals automatic differentiation, and stores small residuals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from afjax.nn.attention import attend_to_tokens, relative_bias, weighted_sum

BATCH, HEADS, QUERIES, LENGTH, SIZE = 3, 2, 5, 7, 4


def normal(seed: int, *shape: int) -> Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_weighted_sum_equals_jax_in_value_and_gradient(rate: float, with_bias: bool) -> None:
    with jax.enable_x64(True):
        scores, values = normal(0, BATCH, HEADS, QUERIES, LENGTH) * 3, normal(1, BATCH, HEADS, LENGTH, SIZE)
        # One row ends with padding, and one consists only of padding.
        mask = jnp.ones((BATCH, 1, 1, LENGTH), bool).at[0, ..., -2:].set(False).at[2].set(False)
        # For one query, dropout removes all weights.
        kept = (normal(2, *scores.shape) > -0.5).at[1, 0, 0].set(False) if rate else None
        bias = normal(5, HEADS, QUERIES, LENGTH) if with_bias else None

        def plain(scores: Array, values: Array, bias: Array | None) -> tuple[Array, Array]:
            logits = scores * 0.5 if bias is None else scores * 0.5 + bias[None]
            weights = jax.nn.softmax(jnp.where(mask, logits, -1e9))
            if kept is not None:
                weights = jnp.where(kept, weights / (1.0 - rate), 0.0)
            return weights @ values, weights.sum(-1)

        cotangents = normal(3, BATCH, HEADS, QUERIES, SIZE), normal(4, BATCH, HEADS, QUERIES)
        expected, expected_backward = jax.vjp(plain, scores, values, bias)

        def ours(scores: Array, values: Array, bias: Array | None) -> tuple[Array, Array]:
            return weighted_sum(scores, values, mask, kept, bias, 0.5, rate)

        found, backward = jax.vjp(ours, scores, values, bias)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-14)
        for one, other in zip(
            *map(jax.tree.leaves, (backward(cotangents), expected_backward(cotangents))), strict=True
        ):
            np.testing.assert_allclose(one, other, atol=1e-14)
        to_scores = backward(cotangents)[0]
        assert np.abs(to_scores).max() > 0.1
        np.testing.assert_array_equal(to_scores[0, ..., -2:], 0.0)
        np.testing.assert_array_equal(to_scores[2], 0.0)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_relative_bias_is_looked_up_by_distance(length: int) -> None:
    table = normal(0, 9, HEADS).astype(jnp.float32)
    bias = relative_bias(table, lambda distances: jnp.clip(distances, -4, 4) + 4, length)
    assert bias.shape == (HEADS, length, length)
    for query in range(length):
        for key in range(length):
            np.testing.assert_array_equal(bias[:, query, key], table[key - query + 4])


def test_one_weights_array_in_the_dtype_of_the_values_is_kept_for_the_gradient() -> None:
    shape = BATCH, HEADS, 8, 64
    scores = normal(0, *shape)
    values, to_sums = (normal(seed, BATCH, HEADS, rows, SIZE).astype(jnp.bfloat16) for seed, rows in ((1, 64), (2, 8)))

    def attend(scores: Array, values: Array) -> tuple[Array, Array]:
        mask = jnp.ones((BATCH, 64), bool)
        return attend_to_tokens(scores, values, mask=mask, head_size=SIZE, dropout_rate=0.1, key=jax.random.key(0))

    (sums, totals), backward = jax.vjp(attend, scores, values)
    assert (sums.dtype, totals.dtype) == (jnp.bfloat16, jnp.float32)
    large = [leaf.dtype for leaf in jax.tree.leaves(backward) if leaf.size >= scores.size]
    assert large == [jnp.bfloat16]
    # The results are rounded once to bfloat16, which has 8 bits of precision.
    to_scores, to_values = backward((to_sums, jnp.zeros_like(totals)))
    assert (to_scores.dtype, to_values.dtype) == (jnp.float32, jnp.bfloat16)
    (exact_sums, _), exact_backward = jax.vjp(attend, scores, values.astype(jnp.float32))
    exact = exact_sums, *exact_backward((to_sums.astype(jnp.float32), totals * 0))
    for found, expected in zip((sums, to_scores, to_values), exact, strict=True):
        np.testing.assert_allclose(found.astype(jnp.float32), expected, rtol=0.02, atol=0.01)
