"""The architecture of a trunk."""

import dataclasses

from afjax.errors import UserError, did_you_mean
from afjax.nn.disentangled_attention import RelativeBuckets
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import EncoderFamily

# Fields of TrunkConfig that only some families have, with their values for the other families.
_OPTIONAL = {"type_vocab_size": 0, "embedding_size": None, "position_buckets": None, "max_relative_positions": None}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrunkConfig:
    """The architecture of a trunk. Each field corresponds to one in Hugging Face's ``config.json``.

    Attributes:
      family: A name in :data:`afjax.trunk.families.ENCODER_FAMILIES`.
      type_vocab_size: Number of token types. 0 if the family has no token types.
      embedding_size: Size of the embeddings, for families in which it can differ from ``hidden_size``; otherwise None.
        If it differs, a dense layer projects the embeddings.
      position_buckets: Rows per direction of the table of relative positions, for families with disentangled attention;
        otherwise None.
      max_relative_positions: All distances of at least this number share a row of that table; None as above.

    Raises:
      UserError: Another family, or a field that the family does not have.
    """

    family: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    intermediate_size: int
    max_positions: int
    type_vocab_size: int = 0
    embedding_size: int | None = None
    position_buckets: int | None = None
    max_relative_positions: int | None = None
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
        for field, missing in _OPTIONAL.items():
            value, has_field = getattr(self, field), field in self.encoder_family.config_names
            if bool(value) != has_field:
                needed = "at least 1" if has_field else str(missing)
                raise UserError(
                    f'{field} is {value}; for an encoder of the family "{self.family}" it must be {needed}.'
                )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def input_size(self) -> int:
        """The size of the word, position and type embeddings."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def projects_embeddings(self) -> bool:
        """Whether a dense layer maps the embeddings to hidden states."""
        return self.input_size != self.hidden_size

    @property
    def max_length(self) -> int:
        """The maximum number of tokens per row: the number of positions of a row's tokens."""
        return self.max_positions - self.encoder_family.first_position(self.pad_id)

    @property
    def relative_buckets(self) -> RelativeBuckets | None:
        """The rows of the table of relative positions, for families with disentangled attention; otherwise None."""
        if self.position_buckets is None or self.max_relative_positions is None:
            return None
        return RelativeBuckets(num_buckets=self.position_buckets, max_distance=self.max_relative_positions)

    @property
    def encoder_family(self) -> EncoderFamily:
        return ENCODER_FAMILIES[self.family]
