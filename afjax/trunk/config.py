"""The architecture of a trunk."""

import dataclasses

from afjax.errors import UserError, did_you_mean
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import EncoderFamily


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrunkConfig:
    """The architecture of a trunk. Each field corresponds to one in Hugging Face's ``config.json``.

    Attributes:
      family: A name in :data:`afjax.trunk.families.ENCODER_FAMILIES`.
      type_vocab_size: Number of token types. 0 if the family has no token types.

    Raises:
      UserError: Another family, or token types in a family that has none.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    type_vocab_size: int = 0
    layer_norm_epsilon: float = 1e-12
    activation: str = "gelu"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    pad_id: int = 0
    init_scale: float = 0.02

    def __post_init__(self) -> None:
        if self.family not in ENCODER_FAMILIES:
            raise UserError(
                f'The encoder family "{self.family}" is not known; afjax has {", ".join(ENCODER_FAMILIES)}.'
                f"{did_you_mean(self.family, ENCODER_FAMILIES)}"
            )
        if bool(self.type_vocab_size) != ("type_vocab_size" in self.encoder_family.config_names):
            needed = "0" if self.type_vocab_size else "at least 1"
            raise UserError(
                f'type_vocab_size is {self.type_vocab_size}; for a "{self.family}" encoder it must be {needed}.'
            )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def max_length(self) -> int:
        """The maximum number of tokens per row, limited by the position embeddings."""
        return self.max_positions - self.encoder_family.first_position(self.pad_id)

    @property
    def encoder_family(self) -> EncoderFamily:
        return ENCODER_FAMILIES[self.family]
