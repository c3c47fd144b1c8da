"""BERT (Devlin 2019). Positions start at 0 and count all tokens, including padding."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from afjax.trees import AnyArray
from afjax.trunk.family import EncoderFamily


def _first_position(pad_id: int) -> int:
    return 0


def _position_embeddings(
    table: Float[AnyArray, "max_positions hidden"], tokens: Int[AnyArray, "batch length"], pad_id: int
) -> Float[Array, "batch length hidden"]:
    # A slice instead of a lookup, whose gradient would be a scatter: one more kernel to compile and run.
    return jnp.broadcast_to(table[None, : tokens.shape[-1]], (*tokens.shape, table.shape[-1]))


FAMILY = EncoderFamily(
    name="bert", default_pad_id=0, first_position=_first_position, position_embeddings=_position_embeddings
)
