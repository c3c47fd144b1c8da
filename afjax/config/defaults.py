"""Defaults that depend on the trained partition.

The measurements are in docs/defaults.md.
"""

import types
from collections.abc import Mapping

from afjax.config.values import Partition, Pooling

LEARNING_RATES: Mapping[Partition, float] = types.MappingProxyType(
    {
        "head": 1e-3,
        "adapter": 1e-3,
        "fusion": 1e-3,
        "layernorm": 1e-3,
        "full": 5e-5,
        "top_k": 5e-5,
        "adapter+trunk": 1e-4,
    }
)
# Partitions whose heads use the pretrained trunk's pooling. The other partitions train the trunk's layers, which can
# learn to aggregate the row into its first token.
POOL_LIKE_TRUNK: frozenset[Partition] = frozenset({"head", "adapter", "fusion", "layernorm"})

# Defaults of earlier versions, used to resume their runs and load their heads.
FORMER_LEARNING_RATE = 1e-4
FORMER_POOLING: Pooling = "first"
