"""BERT (Devlin 2019). Positions start at 0 and count all tokens, including padding."""

import jax.numpy as jnp
from jax import Array

from afjax.trunk.family import EncoderFamily


def _first_position(pad_id: int) -> int:
    return 0


def _position_embeddings(table: Array, tokens: Array, pad_id: int) -> Array:
    # A slice instead of a lookup, whose gradient would be a scatter: one more kernel to compile and run.
    return jnp.broadcast_to(table[None, : tokens.shape[-1]], (*tokens.shape, table.shape[-1]))


FAMILY = EncoderFamily(
    name="bert", default_pad_id=0, first_position=_first_position, position_embeddings=_position_embeddings
)
