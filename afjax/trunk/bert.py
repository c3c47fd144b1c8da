"""BERT (Devlin 2019). Positions start at 0 and count all tokens and padding."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from afjax.trees import AnyArray
from afjax.trunk.family import EncoderFamily, WeightNames, dense_weights, norm_weights, table_weights


def first_position(pad_id: int) -> int:
    """Returns the position of a row's first token, which is 0."""
    return 0


def position_embeddings(
    table: Float[AnyArray, "max_positions size"], tokens: Int[AnyArray, "batch length"], pad_id: int
) -> Float[Array, "batch length size"]:
    """Returns the first ``length`` rows of the table, broadcast over the batch."""
    # Slice the table, because the gradient of a lookup is a scatter, which is one more kernel to compile and run.
    return jnp.broadcast_to(table[None, : tokens.shape[-1]], (*tokens.shape, table.shape[-1]))


FFN_WEIGHTS = {
    **dense_weights("intermediate.dense", "ffn/intermediate"),
    **dense_weights("output.dense", "ffn/output"),
    **norm_weights("output.LayerNorm", "ffn/norm"),
}
WEIGHT_NAMES = WeightNames(
    prefix="bert",
    embeddings={
        **table_weights("embeddings.word_embeddings", "embeddings/word"),
        **table_weights("embeddings.position_embeddings", "embeddings/position"),
        **table_weights("embeddings.token_type_embeddings", "embeddings/type"),
        **norm_weights("embeddings.LayerNorm", "embeddings/norm"),
    },
    layer="encoder.layer",
    layers={
        **dense_weights("attention.self.query", "attention/query"),
        **dense_weights("attention.self.key", "attention/key"),
        **dense_weights("attention.self.value", "attention/value"),
        **dense_weights("attention.output.dense", "attention/output"),
        **norm_weights("attention.output.LayerNorm", "attention/norm"),
        **FFN_WEIGHTS,
    },
    pooler=dense_weights("pooler.dense", "pooler"),
)

# The names of the config's fields, without the field for token types.
CONFIG_NAMES = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation": "hidden_act",
    "pad_id": "pad_token_id",
}

FAMILY = EncoderFamily(
    name="bert",
    config_names={**CONFIG_NAMES, "type_vocab_size": "type_vocab_size"},
    weight_names=WEIGHT_NAMES,
    default_pad_id=0,
    first_position=first_position,
    position_embeddings=position_embeddings,
)
