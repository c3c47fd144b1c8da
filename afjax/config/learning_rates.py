"""The default learning rate of each partition; see docs/defaults.md."""

import types
from collections.abc import Mapping

from afjax.config.values import Partition

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
