"""RoBERTa (Liu 2019). Positions start at ``pad_id + 1`` and do not count padding."""

import dataclasses

import jax.numpy as jnp
from jaxtyping import Float, Int

from afjax.trees import AnyArray
from afjax.trunk import bert


def first_position(pad_id: int) -> int:
    """Returns a row's first position. Lower positions are reserved for padding."""
    return pad_id + 1


def position_embeddings(
    table: Float[AnyArray, "max_positions size"], tokens: Int[AnyArray, "batch length"], pad_id: int
) -> Float[AnyArray, "batch length size"]:
    """Returns the position embeddings of tokens. Padding has the position ``pad_id``."""
    present = (tokens != pad_id).astype(jnp.int32)
    return table[jnp.cumsum(present, axis=-1) * present + pad_id]


FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="roberta",
    weight_names=dataclasses.replace(bert.WEIGHT_NAMES, prefix="roberta"),
    default_pad_id=1,
    first_position=first_position,
    position_embeddings=position_embeddings,
)
