"""Defaults that depend on the trained partition; docs/defaults.md has the measurements."""

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
# Partitions whose heads pool as the pretrained trunk does. The other partitions train the trunk's layers, which can
# learn to collect a row's information in the first token.
POOL_LIKE_TRUNK: frozenset[Partition] = frozenset({"head", "adapter", "fusion", "layernorm"})

# The defaults of earlier versions, for runs that began with them.
FORMER_LEARNING_RATE = 1e-4
FORMER_POOLING: Pooling = "first"
