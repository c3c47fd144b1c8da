"""DistilBERT (Sanh 2019). BERT without token types and without a pooler."""

import dataclasses

from afjax.trunk import bert
from afjax.trunk.family import WeightNames, dense_weights, norm_weights, table_weights

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="distilbert",
    config_names={
        "vocab_size": "vocab_size",
        "hidden_size": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation": "activation",
        "pad_id": "pad_token_id",
    },
    constants={"layer_norm_epsilon": 1e-12},
    weight_names=WeightNames(
        prefix="distilbert",
        embeddings={
            **table_weights("embeddings.word_embeddings", "embeddings/word"),
            **table_weights("embeddings.position_embeddings", "embeddings/position"),
            **norm_weights("embeddings.LayerNorm", "embeddings/norm"),
        },
        layer="transformer.layer",
        layers={
            **dense_weights("attention.q_lin", "attention/query"),
            **dense_weights("attention.k_lin", "attention/key"),
            **dense_weights("attention.v_lin", "attention/value"),
            **dense_weights("attention.out_lin", "attention/output"),
            **norm_weights("sa_layer_norm", "attention/norm"),
            **dense_weights("ffn.lin1", "ffn/intermediate"),
            **dense_weights("ffn.lin2", "ffn/output"),
            **norm_weights("output_layer_norm", "ffn/norm"),
        },
    ),
)
