"""ELECTRA's discriminator (Clark 2020). BERT without a pooler.

In small models, the embeddings are smaller than the hidden states, and a dense layer projects them.
"""

import dataclasses

from afjax.trunk import bert
from afjax.trunk.family import dense_weights

FAMILY = dataclasses.replace(
    bert.FAMILY,
    name="electra",
    config_names={**bert.FAMILY.config_names, "embedding_size": "embedding_size"},
    weight_names=dataclasses.replace(
        bert.WEIGHT_NAMES,
        prefix="electra",
        projection=dense_weights("embeddings_project", "embeddings/projection"),
        pooler={},
    ),
)
