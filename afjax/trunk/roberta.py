"""RoBERTa (Liu 2019). Positions start at ``pad_id + 1`` and do not count padding."""

import jax.numpy as jnp
from jaxtyping import Float, Int

from afjax.trees import AnyArray
from afjax.trunk.family import EncoderFamily


def _first_position(pad_id: int) -> int:
    return pad_id + 1


def _position_embeddings(
    table: Float[AnyArray, "max_positions hidden"], tokens: Int[AnyArray, "batch length"], pad_id: int
) -> Float[AnyArray, "batch length hidden"]:
    present = (tokens != pad_id).astype(jnp.int32)
    return table[jnp.cumsum(present, axis=-1) * present + pad_id]


FAMILY = EncoderFamily(
    name="roberta", default_pad_id=1, first_position=_first_position, position_embeddings=_position_embeddings
)
