"""What is trained of a model, and with which learning rate by default."""

import types
from collections.abc import Mapping
from typing import Literal

from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.from_dict import check_value
from afjax.errors import UserError

Partition = Literal["adapter", "adapter+trunk", "fusion", "head", "full", "layernorm", "top_k"]
# The default of train.learning_rate for each partition (docs/defaults.md).
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


def check_partition(partition: Partition, adapter: Adapter) -> None:
    """Raises UserError where a partition cannot be trained, or not with this adapter."""
    check_value(Partition, partition, "The partition")
    if partition == "fusion":
        raise UserError('A fusion is trained by the fusion recipe, not by partition="fusion".')
    if partition == "adapter+trunk" and isinstance(adapter, AdapterConfig) and adapter.layer_norms:
        raise UserError(
            'partition="adapter+trunk" trains the trunk\'s own LayerNorms; an adapter with layer_norms=True would '
            "carry copies of them: set adapter.layer_norms=False."
        )
