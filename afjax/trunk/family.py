"""The differences between encoder families such as BERT and RoBERTa."""

import dataclasses
from collections.abc import Callable

from afjax.trees import AnyArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """A family of encoders. Each family is a module of this package with a ``FAMILY``.

    Attributes:
      name: The ``model_type`` in Hugging Face's ``config.json``, and the prefix of tensor names.
      default_pad_id: The padding token's id if ``config.json`` does not specify it.
      first_position: Maps the padding token's id to the position of a row's first token.
      position_embeddings: Maps the table ``[max_positions, hidden_size]``, tokens ``[batch, length]`` and the padding
        token's id to the position embeddings ``[batch, length, hidden_size]``.
    """

    name: str
    default_pad_id: int
    first_position: Callable[[int], int]
    position_embeddings: Callable[[AnyArray, AnyArray, int], AnyArray]
