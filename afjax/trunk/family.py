"""What distinguishes the families of encoders."""

import dataclasses
from collections.abc import Callable

from jax import Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """A family of encoders, as one module of this package describes it in its ``FAMILY``.

    Attributes:
      name: Its ``model_type`` in Hugging Face's ``config.json``, and the prefix of its tensors' names.
      default_pad_id: The padding token if ``config.json`` does not name it.
      first_position: The position of a row's first token, given the padding token's id.
      position_embeddings: Given the table ``[max_positions, hidden_size]``, tokens ``[batch, length]`` and the padding
        token's id, the position embeddings ``[batch, length, hidden_size]``.
    """

    name: str
    default_pad_id: int
    first_position: Callable[[int], int]
    position_embeddings: Callable[[Array, Array, int], Array]
