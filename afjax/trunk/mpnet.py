"""MPNet (Song 2020). BERT with RoBERTa's positions and an attention bias.

The bias depends on the distance of two tokens and is the same in every layer. There are no token types.
"""

import dataclasses

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from afjax.trees import AnyArray
from afjax.trunk import bert, roberta
from afjax.trunk.family import RelativeBias, WeightNames, dense_weights, norm_weights, table_weights

# The positions depend on this padding id. Hugging Face's code does not read it from config.json.
_PAD_ID = 1
# The first half of the table is for the query itself and keys to its left, and the second half for keys to its right.
# Each half has one entry per listed distance. A distance that is not listed uses the entry of the next smaller listed
# distance. Above 8, the listed distances grow by the factor sqrt(2).
_DISTANCES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)


def _entry(distances: Int[AnyArray, "distances"]) -> Int[Array, "distances"]:
    nearest = jnp.searchsorted(jnp.array(_DISTANCES), jnp.abs(distances), side="right", method="compare_all") - 1
    return nearest + jnp.where(distances > 0, len(_DISTANCES), 0)


FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="mpnet",
    config_names=bert.CONFIG_NAMES,
    required={"relative_attention_num_buckets": 2 * len(_DISTANCES)},
    weight_names=WeightNames(
        prefix="mpnet",
        embeddings={
            **table_weights("embeddings.word_embeddings", "embeddings/word"),
            **table_weights("embeddings.position_embeddings", "embeddings/position"),
            **norm_weights("embeddings.LayerNorm", "embeddings/norm"),
            **table_weights("encoder.relative_attention_bias", "embeddings/relative_position"),
        },
        layer="encoder.layer",
        layers={
            **dense_weights("attention.attn.q", "attention/query"),
            **dense_weights("attention.attn.k", "attention/key"),
            **dense_weights("attention.attn.v", "attention/value"),
            **dense_weights("attention.attn.o", "attention/output"),
            **norm_weights("attention.LayerNorm", "attention/norm"),
            **bert.FFN_WEIGHTS,
        },
        pooler=dense_weights("pooler.dense", "pooler"),
    ),
    default_pad_id=_PAD_ID,
    first_position=lambda pad_id: roberta.first_position(_PAD_ID),
    position_embeddings=lambda table, tokens, pad_id: roberta.position_embeddings(table, tokens, _PAD_ID),
    relative_bias=RelativeBias(num_entries=2 * len(_DISTANCES), entry=_entry),
)
