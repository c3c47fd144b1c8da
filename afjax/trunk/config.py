"""The architecture of a trunk."""

import dataclasses

from afjax.errors import UserError, did_you_mean
from afjax.nn.disentangled_attention import RelativeBuckets
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import EncoderFamily

# Fields that a family either needs or must not have, each with its value in the families that do not have it.
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

    Most fields are read from Hugging Face's ``config.json`` (:func:`afjax.trunk.hugging_face.trunk_config`).

    Attributes:
      family: A name in :data:`afjax.trunk.families.ENCODER_FAMILIES`.
      type_vocab_size: Number of token types. 0 if the family has no token types.
      embedding_size: Size of the embeddings, for families in which it can differ from ``hidden_size``; otherwise None.
        If it differs, a dense layer projects the embeddings.
      position_buckets: Rows per direction of the table of relative positions, for families with disentangled attention;
        otherwise None.
      max_relative_positions: All distances of at least this number share one row per direction of that table. None if
        the family has no disentangled attention.
      embedding_dropout: Dropout rate of the embeddings, for families in which it can differ from ``hidden_dropout``;
        otherwise None.
      global_every: The attention reads all tokens in the first layer and in every ``global_every``-th layer after it.
        In the other layers it is local. None if the family has no local attention.
      window: Size of the window of local attention: a token reads the tokens at a distance of at most ``window // 2``.
        None if the family has no local attention.
      rotary_theta, local_rotary_theta: The base of the rotary positions' periods, in layers whose attention reads all
        tokens and in layers with local attention. None if the family has no rotary positions.
      attention_bias, ffn_bias, norm_bias: Whether the dense layers of attention, the dense layers of the feed-forward
        network and the LayerNorms have biases. Only layers of the form ``pre_norm`` can lack them.

    Raises:
      UserError: The family is unknown, lacks a field that it needs, or is given a field that it does not have.
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
    def intermediate_outputs(self) -> int:
        """The number of outputs of the feed-forward network's first dense layer.

        It is twice the network's inner size if the network is gated.
        """
        return self.intermediate_size * (2 if self.encoder_family.layer == "pre_norm" else 1)

    @property
    def projects_embeddings(self) -> bool:
        """Whether a dense layer maps the embeddings to hidden states."""
        return self.input_size != self.hidden_size

    @property
    def max_length(self) -> int:
        """The maximum number of tokens per row, without positions reserved for padding."""
        return self.max_positions - self.encoder_family.first_position(self.pad_id)

    @property
    def relative_buckets(self) -> RelativeBuckets | None:
        """Maps distances to rows of the table of relative positions.

        None if the family has no disentangled attention.
        """
        if self.position_buckets is None or self.max_relative_positions is None:
            return None
        return RelativeBuckets(num_buckets=self.position_buckets, max_distance=self.max_relative_positions)

    @property
    def encoder_family(self) -> EncoderFamily:
        return ENCODER_FAMILIES[self.family]
