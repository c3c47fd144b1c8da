"""Settings of task heads."""

import dataclasses
from typing import Literal

from afjax.config.from_dict import check_fields, settings_repr
from afjax.config.values import Activation, Pooling, check_dropout
from afjax.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The output layers of one task.

    Attributes:
      pooling: The vector that represents a row: the last hidden state of the first token (``first``), or the mean of
        the last hidden states of all tokens except padding (``mean``). Heads that read every token ignore it.
      pooler: A dense layer with tanh on that vector. ``head``: the head has its own, initialized from the trunk's
        pooler if there is one, and trained with the head. ``trunk``: the trunk's pooler, shared by all tasks, and
        trained if the trunk is. ``none``: no pooler. Heads that read every token have none.
      hidden_layers: Number of dense layers before the output layer, each with the trunk's hidden size and an
        activation.
      activation: Activation of the hidden layers.
      dropout: Dropout rate before the hidden layers and before the output layer. Defaults to the trunk's hidden
        dropout, or to no dropout for heads that read every token, as in BERT's code.
    """

    pooling: Pooling = "first"
    pooler: Literal["head", "trunk", "none"] = "head"
    hidden_layers: int = 0
    activation: Activation = "tanh"
    dropout: float | None = None

    __repr__ = settings_repr

    def __post_init__(self) -> None:
        check_fields(self, "head")
        if self.hidden_layers < 0:
            raise UserError(f"head.hidden_layers is {self.hidden_layers}; it must be 0 or more.")
        check_dropout("head", self.dropout)
