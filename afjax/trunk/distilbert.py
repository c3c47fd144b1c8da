"""DistilBERT (Sanh 2019). BERT without token types, without a pooler, and without dropout after the attention."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from afjax.errors import UserError
from afjax.trunk import bert
from afjax.trunk.family import WeightNames, dense_weights, norm_weights, table_weights

# Other names of fields in config.json, which transformers also reads.
_OTHER_NAMES = {"hidden_size": "dim", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}


def _plain_config(values: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Adds fields that ``config.json`` has under BERT's names.

    Raises:
      UserError: A field has two different values.
    """
    plain = dict(values)
    for name, field in _OTHER_NAMES.items():
        if name in values and plain.setdefault(field, values[name]) != values[name]:
            raise UserError(
                f"{where}: {field} is {values[field]!r}, but {name}, which has the same meaning, is {values[name]!r}; "
                "remove the wrong one."
            )
    return plain


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
    plain_config=_plain_config,
    attention_output_dropout=False,
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
