"""DeBERTa-v3 (He 2023). BERT with disentangled attention and no token types.

Every layer attends to contents and relative positions (:mod:`afjax.nn.disentangled_attention`). No positions are added
to the embeddings. Hugging Face calls the architecture "deberta-v2". Most DeBERTa-v2 models have a convolution, which is
not supported.
"""

import dataclasses

from afjax.trunk import bert
from afjax.trunk.family import WeightNames, dense_weights, norm_weights, table_weights

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="deberta-v2",
    config_names={
        **bert.CONFIG_NAMES,
        "position_buckets": "position_buckets",
        "max_relative_positions": "max_relative_positions",
    },
    defaults={"layer_norm_epsilon": 1e-7},
    # config.json may lack these fields, because Hugging Face's defaults are the supported values.
    required={"type_vocab_size": 0, "conv_kernel_size": 0, "z_steps": 0},
    # config.json must have these fields. Hugging Face's defaults describe a different encoder, and in some cases the
    # weights would fit that encoder without an error.
    declared={
        "relative_attention": (True,),
        "position_biased_input": (False,),
        "share_att_key": (True,),
        "pos_att_type": ("p2c|c2p", "c2p|p2c", ["p2c", "c2p"], ["c2p", "p2c"]),
        "norm_rel_ebd": ("layer_norm",),
    },
    implied={"embedding_size": "hidden_size", "attention_head_size": "head_size"},
    weight_names=WeightNames(
        prefix="deberta",
        embeddings={
            **table_weights("embeddings.word_embeddings", "embeddings/word"),
            **norm_weights("embeddings.LayerNorm", "embeddings/norm"),
            **table_weights("encoder.rel_embeddings", "embeddings/relative/position"),
            **norm_weights("encoder.LayerNorm", "embeddings/relative/norm"),
        },
        layer="encoder.layer",
        layers={
            **dense_weights("attention.self.query_proj", "attention/query"),
            **dense_weights("attention.self.key_proj", "attention/key"),
            **dense_weights("attention.self.value_proj", "attention/value"),
            **dense_weights("attention.output.dense", "attention/output"),
            **norm_weights("attention.output.LayerNorm", "attention/norm"),
            **bert.FFN_WEIGHTS,
        },
        # Pretraining adds absolute positions after the encoder. The pooler is part of task heads, although it has the
        # same name as BERT's pooler. The tensors called "_weight" are left over from DeBERTa-v3's pretraining, for
        # example in microsoft/mdeberta-v3-base.
        unused=frozenset(
            {
                "embeddings.position_embeddings.weight",
                "embeddings.position_embeddings._weight",
                "embeddings.word_embeddings._weight",
                "pooler.dense.weight",
                "pooler.dense.bias",
            }
        ),
    ),
    position_embeddings=None,
)
