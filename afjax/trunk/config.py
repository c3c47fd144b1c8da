"""The architecture of a trunk."""

import dataclasses

from afjax.errors import UserError, did_you_mean
from afjax.nn.disentangled_attention import RelativeBuckets
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import EncoderFamily

# Fields that some families require. All other families must leave the field at the given value.
_OPTIONAL = {
    "type_vocab_size": 0,
    "embedding_size": None,
    "position_buckets": None,
    "max_relative_positions": None,
    "global_every": None,
    "window": None,
    "rotary_theta": None,
    "local_rotary_theta": None,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrunkConfig:
    """The architecture of a trunk.

    Most fields are read from Hugging Face's ``config.json`` (:func:`afjax.trunk.config_file.trunk_config`).

    Attributes:
      family: A name in :data:`afjax.trunk.families.ENCODER_FAMILIES`.
      type_vocab_size: Number of token types. 0 if the family has no token types.
      embedding_size: Size of the embeddings. If it differs from ``hidden_size``, a dense layer projects the embeddings.
        None for families whose embeddings always have the size ``hidden_size``.
      position_buckets: Number of rows per direction in the table of relative positions. None if the family has no
        disentangled attention.
      max_relative_positions: All distances of at least this number share one row per direction in the table of relative
        positions. None if the family has no disentangled attention.
      embedding_dropout: Dropout rate of the embeddings. None for families that use ``hidden_dropout`` instead.
      global_every: The first layer and every ``global_every``-th layer after it attend to all tokens. The other layers
        have local attention. None if the family has no local attention.
      window: Window size of local attention. A token attends to the tokens at a distance of at most ``window // 2``.
        None if the family has no local attention.
      rotary_theta, local_rotary_theta: Base of the rotary positions in layers with global attention, and in layers with
        local attention. None if the family has no rotary positions.
      attention_bias, ffn_bias, norm_bias: Whether the dense layers of attention, the dense layers of the feed-forward
        network and the LayerNorms have biases. Only ``pre_norm`` layers can lack biases.

    Raises:
      UserError: The family is unknown, a field that the family requires is missing, or a field that the family does not
        have is set.
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
    embedding_dropout: float | None = None
    global_every: int | None = None
    window: int | None = None
    rotary_theta: float | None = None
    local_rotary_theta: float | None = None
    attention_bias: bool = True
    ffn_bias: bool = True
    norm_bias: bool = True
    pad_id: int = 0
    init_scale: float = 0.02

    def __post_init__(self) -> None:
        if self.family not in ENCODER_FAMILIES:
            raise UserError(
                f'The encoder family "{self.family}" is unknown; afjax supports {", ".join(ENCODER_FAMILIES)}.'
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
    def intermediate_outputs(self) -> int:
        """The number of outputs of the feed-forward network's first dense layer.

        In gated networks, this is twice ``intermediate_size``.
        """
        return self.intermediate_size * (2 if self.encoder_family.layer == "pre_norm" else 1)

    @property
    def projects_embeddings(self) -> bool:
        """Whether a dense layer maps the embeddings to hidden states."""
        return self.input_size != self.hidden_size

    @property
    def max_length(self) -> int:
        """The maximum number of tokens per row.

        Positions that are reserved for padding do not count.
        """
        return self.max_positions - self.encoder_family.first_position(self.pad_id)

    @property
    def relative_buckets(self) -> RelativeBuckets | None:
        """The mapping from distances to rows of the table of relative positions.

        None if the family has no disentangled attention.
        """
        if self.position_buckets is None or self.max_relative_positions is None:
            return None
        return RelativeBuckets(num_buckets=self.position_buckets, max_distance=self.max_relative_positions)

    @property
    def encoder_family(self) -> EncoderFamily:
        return ENCODER_FAMILIES[self.family]
