"""Defaults that depend on the trained partition.

The measurements are in docs/defaults.md.
"""

from collections.abc import Mapping
from typing import get_args

from afjax.config.values import TRAINS_LAYERS, Partition, Pooling

LEARNING_RATES: Mapping[Partition, float] = {
    "head": 1e-3,
    "adapter": 1e-3,
    "fusion": 1e-3,
    "layernorm": 1e-3,
    "full": 5e-5,
    "top_k": 5e-5,
    "adapter+trunk": 1e-4,
}
# Partitions that do not train the trunk's layers. Their heads use the pretrained trunk's pooling. Trained layers can
# learn to aggregate the row into its first token.
POOL_LIKE_TRUNK: tuple[Partition, ...] = tuple(name for name in get_args(Partition) if name not in TRAINS_LAYERS)

# Defaults of earlier versions, used to resume their runs and load their heads.
FORMER_LEARNING_RATE = 1e-4
FORMER_POOLING: Pooling = "first"
