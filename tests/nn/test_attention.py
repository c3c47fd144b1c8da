"""Attention's custom derivative rule equals automatic differentiation.

The rule stores small residuals.
"""

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
        # The first row ends with padding, and the last row consists only of padding.
        mask = jnp.ones((BATCH, 1, 1, LENGTH), bool).at[0, ..., -2:].set(False).at[2].set(False)
        # Dropout removes all weights of one query.
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

        outputs, backward = jax.vjp(ours, scores, values, bias)
        for output, expected_output in zip(outputs, expected, strict=True):
            np.testing.assert_allclose(output, expected_output, atol=1e-14)
        for gradient, expected_gradient in zip(
            *map(jax.tree.leaves, (backward(cotangents), expected_backward(cotangents))), strict=True
        ):
            np.testing.assert_allclose(gradient, expected_gradient, atol=1e-14)
        grad_scores = backward(cotangents)[0]
        assert np.abs(grad_scores).max() > 0.1
        np.testing.assert_array_equal(grad_scores[0, ..., -2:], 0.0)
        np.testing.assert_array_equal(grad_scores[2], 0.0)


@pytest.mark.parametrize("length", [1, 2, 5])
def test_relative_bias_is_looked_up_by_distance(length: int) -> None:
    table = normal(0, 9, HEADS).astype(jnp.float32)
    bias = relative_bias(table, lambda distances: jnp.clip(distances, -4, 4) + 4, length)
    assert bias.shape == (HEADS, length, length)
    for query in range(length):
        for key in range(length):
            np.testing.assert_array_equal(bias[:, query, key], table[key - query + 4])


def test_backward_pass_stores_one_weights_array_in_the_dtype_of_the_values() -> None:
    shape = BATCH, HEADS, 8, 64
    scores = normal(0, *shape)
    values = normal(1, BATCH, HEADS, 64, SIZE).astype(jnp.bfloat16)
    grad_sums = normal(2, BATCH, HEADS, 8, SIZE).astype(jnp.bfloat16)

    def attend(scores: Array, values: Array) -> tuple[Array, Array]:
        mask = jnp.ones((BATCH, 64), bool)
        return attend_to_tokens(scores, values, mask=mask, head_size=SIZE, dropout_rate=0.1, key=jax.random.key(0))

    (sums, totals), backward = jax.vjp(attend, scores, values)
    assert (sums.dtype, totals.dtype) == (jnp.bfloat16, jnp.float32)
    large = [leaf.dtype for leaf in jax.tree.leaves(backward) if leaf.size >= scores.size]
    assert large == [jnp.bfloat16]
    # The results are rounded once to bfloat16, which has 8 bits of precision.
    grad_scores, grad_values = backward((grad_sums, jnp.zeros_like(totals)))
    assert (grad_scores.dtype, grad_values.dtype) == (jnp.float32, jnp.bfloat16)
    (exact_sums, _), exact_backward = jax.vjp(attend, scores, values.astype(jnp.float32))
    exact = exact_sums, *exact_backward((grad_sums.astype(jnp.float32), totals * 0))
    for rounded, expected in zip((sums, grad_scores, grad_values), exact, strict=True):
        np.testing.assert_allclose(rounded.astype(jnp.float32), expected, rtol=0.02, atol=0.01)
