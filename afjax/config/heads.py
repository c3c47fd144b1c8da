"""The config of task heads."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from afjax.config.defaults import FORMER_POOLING
from afjax.config.from_dict import Settings, from_dict
from afjax.config.ranges import NonNegativeInt, Proportion
from afjax.config.values import Activation, Pooling


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class HeadConfig(Settings, name="head"):
    """The output layers of one task.

    Attributes:
      pooling: How to reduce a row to one vector: the last hidden state of the first token (``first``), or the mean of
        the last hidden states over all tokens except padding (``mean``). None selects the default: ``first`` for the
        partitions that train the trunk's layers (``full``, ``top_k`` and ``adapter+trunk``), and the trunk's own
        pooling (:attr:`afjax.Trunk.pooling`) for the others. Token-level heads ignore it.
      pooler: The dense layer with tanh applied to the pooled vector. With ``head``, the head has its own pooler, which
        is initialized from the trunk's pooler if there is one and is trained with the head. With ``trunk``, all tasks
        share the trunk's pooler, which is trained only if the trunk is. ``none`` omits it. Token-level heads never have
        a pooler.
      hidden_layers: Number of dense layers before the output layer. Each has the trunk's hidden size and is followed by
        an activation.
      activation: Activation of the hidden layers.
      dropout: Dropout rate before the hidden layers and before the output layer. Defaults to the trunk's hidden
        dropout, or to none for token-level heads, as in BERT's code.

    Raises:
      UserError: A field has the wrong type or an invalid value.

    Example:
      >>> from afjax import HeadConfig, Method
      >>> Method(partition="head", head=HeadConfig(pooling="mean", hidden_layers=1)).head
      HeadConfig(pooling='mean', hidden_layers=1)
    """

    pooling: Pooling | None = None
    pooler: Literal["head", "trunk", "none"] = "head"
    hidden_layers: NonNegativeInt = 0
    activation: Activation = "tanh"
    dropout: Proportion | None = None

    def with_pooling(self, pooling: Pooling) -> "HeadConfig":
        """Fills in ``pooling`` if it is not set."""
        return self if self.pooling is not None else dataclasses.replace(self, pooling=pooling)


def stored_head(values: Mapping[str, Any], where: str) -> HeadConfig:
    """Parses the architecture recorded for a stored head.

    Heads stored before the pooling setting was introduced use the first token.

    Args:
      values: The recorded fields.
      where: The name of the record in error messages.

    Raises:
      UserError: The fields do not describe a head.
    """
    return from_dict(HeadConfig, values, where).with_pooling(FORMER_POOLING)
