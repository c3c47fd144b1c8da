"""BERT (Devlin 2019): positions count all tokens from 0."""

import jax.numpy as jnp
from jax import Array

from afjax.trunk.family import EncoderFamily


def _first_position(pad_id: int) -> int:
    return 0


def _position_embeddings(table: Array, tokens: Array, pad_id: int) -> Array:
    # A slice and not a lookup. The gradient of a lookup is a scatter: one more kernel to compile and to run.
    return jnp.broadcast_to(table[None, : tokens.shape[-1]], (*tokens.shape, table.shape[-1]))


FAMILY = EncoderFamily(
    name="bert", default_pad_id=0, first_position=_first_position, position_embeddings=_position_embeddings
)
