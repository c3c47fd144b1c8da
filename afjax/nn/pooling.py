"""Pooling: one vector per row from the last hidden states of its tokens."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from afjax.config.values import Pooling
from afjax.nn.layers import dense
from afjax.trees import AnyArray, Tree


def pool(
    hidden: Float[Array, "batch queries hidden"], mask: Bool[AnyArray, "batch length"], pooling: Pooling
) -> Float[Array, "batch hidden"]:
    """Pools the last hidden states of each row into one vector.

    Args:
      hidden: ``[batch, length, hidden_size]``, float32 or wider. ``first`` only uses position 0.
      mask: bool ``[batch, length]``, False at padding. ``first`` ignores it.
      pooling: ``first`` for the first token, ``mean`` for the mean of all tokens except padding.

    Returns:
      ``[batch, hidden_size]``. The mean of a row of padding is zero.

    Example:
      >>> hidden = jnp.array([[[1.0, 2.0], [3.0, 6.0], [9.0, 9.0]]])
      >>> pool(hidden, jnp.array([[True, True, False]]), "mean").tolist()
      [[2.0, 4.0]]

    Reference:
      Devlin et al. 2019, section 3 (first token); Reimers & Gurevych 2019, section 3 (mean).
    """
    if pooling == "first":
        return hidden[:, 0]
    tokens = mask.astype(hidden.dtype)  # [batch, length]
    return jnp.einsum("bth,bt->bh", hidden, tokens) / jnp.maximum(tokens.sum(-1, keepdims=True), 1)


def apply_pooler(pooler: Tree, pooled: Float[Array, "batch hidden"]) -> Float[Array, "batch hidden"]:
    """Applies BERT's pooler, ``tanh(dense(pooled))``, to pooled rows."""
    return jnp.tanh(dense(pooler, pooled))
