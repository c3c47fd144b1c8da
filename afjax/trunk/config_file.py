"""Converts Hugging Face's ``config.json`` to a :class:`TrunkConfig`, and back."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from afjax.errors import UserError
from afjax.storage.json_files import read_json, short_json
from afjax.trunk.config import TrunkConfig
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import EncoderFamily

# Maps Hugging Face's names of activations to afjax's. If Hugging Face has several names for one activation, trunk
# identities record the first one.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Number:
    """The constraints on a number in ``config.json``.

    Attributes:
      low, below: The allowed range, ``low <= value < below``, or ``low < value < below`` if ``open_low``.
      open_low: Whether ``low`` itself is excluded.
      whole: Whether the value must be an integer.
      default: The value if ``config.json`` lacks the field. None if the field is required.
    """

    low: float
    below: float
    open_low: bool = False
    whole: bool = False
    default: float | None = None

    @property
    def allowed(self) -> str:
        if self.open_low:
            return f"a finite number above {self.low:g}"
        if self.whole:
            return f"a whole number from {self.low} to {self.below - 1}"
        return f"a number of at least {self.low:g} and below {self.below:g}"

    def allows(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return bool(self.low <= value < self.below) and not (self.open_low and value == self.low)


def _size(limit: int = 2**31 - 1) -> _Number:
    return _Number(low=1, below=limit + 1, whole=True)


# The allowed values of each numeric field of TrunkConfig.
_NUMBERS = {
    "vocab_size": _size(),
    "hidden_size": _size(),
    "embedding_size": _size(),
    # The limit is far above the depth of real encoders. It is needed because some commands loop over the layers before
    # they read any weights.
    "num_layers": _size(limit=10_000),
    "num_heads": _size(),
    "intermediate_size": _size(),
    "max_positions": _size(),
    "type_vocab_size": _size(),
    "position_buckets": _Number(low=2, below=2**31, whole=True),
    # A value below 1 means that this field equals max_positions.
    "max_relative_positions": _Number(low=-1, below=2**31, whole=True, default=-1),
    "layer_norm_epsilon": _Number(low=0, below=float(np.finfo(np.float32).max), open_low=True, default=1e-12),
    "hidden_dropout": _Number(low=0, below=1, default=0.1),
    "attention_dropout": _Number(low=0, below=1, default=0.1),
    "embedding_dropout": _Number(low=0, below=1),
    "global_every": _size(),
    "window": _size(),
    "rotary_theta": _Number(low=0, below=float(np.finfo(np.float32).max), open_low=True),
    "local_rotary_theta": _Number(low=0, below=float(np.finfo(np.float32).max), open_low=True),
}
# Boolean fields of TrunkConfig.
_FLAGS = ("attention_bias", "ffn_bias", "norm_bias")
# Fields of transformers 5 that would override the corresponding fields of :func:`config_values`.
_TRANSFORMERS_5 = ("layer_types", "rope_parameters", "sliding_window")
_ADVICE = "Fetch the trunk's config.json again, or correct it."


def read_trunk_config(folder: Path | epath.Path) -> TrunkConfig:
    """Reads a checkpoint's ``config.json``.

    Raises:
      UserError: The file is missing or malformed, or the architecture is not supported.
    """
    path = folder / "config.json"
    values = read_json(path, advice="fetch the trunk again")
    if values is None:
        raise UserError(f"{path} does not exist; a trunk's folder contains config.json, weights and a tokenizer.")
    return trunk_config(values, where=str(path))


def trunk_config(values: Mapping[str, Any], where: str) -> TrunkConfig:
    """Checks a Hugging Face config and converts it to a ``TrunkConfig``.

    Args:
      values: The contents of ``config.json``. Fields that do not affect an encoder's outputs are ignored.
      where: The file's name, for error messages.

    Returns:
      The architecture.

    Raises:
      UserError: A field is missing, has the wrong type or is out of range, or the model is not supported.
    """
    family = _family(values, where)
    if family.plain_config is not None:
        values = family.plain_config(values, where)
    _check_supported(values, family, where)
    activation = values.get(family.config_names["activation"], "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UserError(f'{where} has the activation "{activation}"; afjax supports {", ".join(_ACTIVATIONS)}.')
    numbers = {ours: _number(values, family, ours, where) for ours in _NUMBERS if ours in family.config_names}
    if numbers.get("max_relative_positions", 1) < 1:
        numbers["max_relative_positions"] = numbers["max_positions"]
    flags = {ours: _flag(values, family, ours, where) for ours in _FLAGS if ours in family.config_names}
    config = TrunkConfig(
        family=family.name,
        activation=_ACTIVATIONS[activation],
        pad_id=_pad_id(values, family, numbers["vocab_size"], where),
        **numbers,
        **flags,
        **family.constants,
    )
    _check_sizes(config, where)
    for field, ours in family.implied.items():
        needed = getattr(config, ours)
        if values.get(field, needed) != needed:
            raise UserError(
                f"{where}: {field} is {short_json(values[field])}; for {family.name} encoders of this size, afjax only "
                f"supports {needed}."
            )
    return config


def config_values(config: TrunkConfig) -> dict[str, Any]:
    """Converts a ``TrunkConfig`` back to fields of Hugging Face's ``config.json``.

    Equivalent config files give the same values, because defaults are filled in, and an activation with several names
    gets the first name.
    """
    names = config.encoder_family.config_names
    activation = next(name for name, value in _ACTIVATIONS.items() if value == config.activation)
    fields = {names[ours]: getattr(config, ours) for ours in (*_NUMBERS, *_FLAGS) if ours in names}
    values = {"model_type": config.family, **fields}
    declared = {field: supported[0] for field, supported in config.encoder_family.declared.items()}
    return {**values, names["activation"]: activation, names["pad_id"]: config.pad_id, **declared}


def saved_values(values: Mapping[str, Any], config: TrunkConfig, *, is_changed: bool) -> dict[str, Any]:
    """Returns the contents of the ``config.json`` of a saved trunk, whose weights are float32.

    Args:
      values: The contents of the loaded trunk's ``config.json``. Fields that afjax does not use are kept.
      config: The trunk's architecture.
      is_changed: Whether the loaded trunk had a different one, for example other dropout rates.
    """
    # transformers would convert the weights to the recorded dtype, such as bfloat16.
    saved = {field: "float32" if field in ("dtype", "torch_dtype") else value for field, value in values.items()}
    if not is_changed:
        return saved
    kept = {field: value for field, value in saved.items() if field not in _TRANSFORMERS_5}
    return {**kept, **config_values(config)}


def _family(values: Mapping[str, Any], where: str) -> EncoderFamily:
    """Looks up the encoder family of a Hugging Face config."""
    name = values.get("model_type")
    if name is None:
        raise UserError(
            f"{where} lacks model_type, the encoder's family; afjax supports {_quoted(ENCODER_FAMILIES)}. If you know "
            "the family, set model_type."
        )
    if not isinstance(name, str) or name not in ENCODER_FAMILIES:
        raise UserError(f'{where} describes a "{name}" model; afjax supports {_quoted(ENCODER_FAMILIES)} encoders.')
    return ENCODER_FAMILIES[name]


def _check_supported(values: Mapping[str, Any], family: EncoderFamily, where: str) -> None:
    """Raises UserError if a config selects a variant of the family that afjax does not support."""
    if values.get("is_decoder"):
        raise UserError(f"{where} describes a decoder (is_decoder); afjax supports plain {family.name} encoders.")
    # Families without a table of positions ignore this setting.
    kind = values.get("position_embedding_type", "absolute")
    if kind != "absolute" and family.position_embeddings is not None:
        raise UserError(
            f"{where}: position_embedding_type is {short_json(kind)}; afjax only supports absolute positions."
        )
    for field, supported in family.required.items():
        if values.get(field, supported) != supported:
            raise UserError(
                f"{where}: {field} is {short_json(values[field])}; for {family.name} encoders, afjax only supports "
                f"{short_json(supported)}."
            )
    for field, supported in family.declared.items():
        if field not in values or values[field] not in supported:
            given = f"is {short_json(values[field])}" if field in values else "is missing"
            raise UserError(
                f"{where}: {field} {given}; for {family.name} encoders, afjax only supports "
                f"{' or '.join(map(short_json, supported))}."
            )


def _check_sizes(config: TrunkConfig, where: str) -> None:
    """Raises UserError if a config's sizes do not fit each other."""
    names = config.encoder_family.config_names
    if config.hidden_size % config.num_heads:
        raise UserError(
            f"{where}: {names['hidden_size']} is {config.hidden_size}; it must be a multiple of the number of heads "
            f"({config.num_heads})."
        )
    if config.rotary_theta is not None and config.head_size % 2:
        raise UserError(
            f"{where}: {names['hidden_size']} is {config.hidden_size}, so each of {config.num_heads} heads has size "
            f"{config.head_size}; rotary positions need heads of an even size."
        )
    if config.max_length < 1:
        raise UserError(
            f"{where}: {names['max_positions']} is {config.max_positions}; a {config.family} encoder with pad_token_id "
            f"{config.pad_id} needs more than {config.encoder_family.first_position(config.pad_id)}. {_ADVICE}"
        )
    buckets = config.relative_buckets
    if buckets is not None and buckets.num_buckets % 2:
        raise UserError(
            f"{where}: position_buckets is {buckets.num_buckets}; afjax only supports even numbers, such as 256."
        )
    if buckets is not None and buckets.num_buckets // 2 >= buckets.max_distance - 1:
        raise UserError(
            f"{where}: position_buckets is {buckets.num_buckets}; with {buckets.max_distance} relative positions it "
            f"must be below {2 * (buckets.max_distance - 1)}. {_ADVICE}"
        )


def _number(values: Mapping[str, Any], family: EncoderFamily, ours: str, where: str) -> Any:
    """Reads a numeric field of ``config.json``."""
    field, number = family.config_names[ours], _NUMBERS[ours]
    value = values.get(field, family.defaults.get(ours, number.default))
    if field not in values and value is None:
        raise UserError(f"{where} lacks {field!r}. {_ADVICE}")
    if not number.allows(value):
        raise UserError(f"{where}: {field} is {short_json(value)}; it must be {number.allowed}. {_ADVICE}")
    return value


def _pad_id(values: Mapping[str, Any], family: EncoderFamily, vocab_size: int, where: str) -> int:
    """Reads the padding token's id.

    Attention ignores padding, so the id only matters for families whose positions depend on padding. For other
    families, an id outside the vocabulary is replaced by 0.
    """
    pad_id = values.get(family.config_names["pad_id"])
    pad_id = family.default_pad_id if pad_id is None else pad_id
    pad = _Number(low=0, below=vocab_size, whole=True)
    if pad.allows(pad_id):
        return int(pad_id)
    if type(pad_id) is int and family.first_position(0) == family.first_position(1):
        return 0
    raise UserError(f"{where}: pad_token_id is {short_json(pad_id)}; it must be {pad.allowed}, or null. {_ADVICE}")


def _flag(values: Mapping[str, Any], family: EncoderFamily, ours: str, where: str) -> bool:
    """Reads a boolean field of ``config.json``."""
    field = family.config_names[ours]
    value = values.get(field, family.defaults.get(ours, True))
    if not isinstance(value, bool):
        raise UserError(f"{where}: {field} is {short_json(value)}; it must be true or false. {_ADVICE}")
    return value


def _quoted(names: Iterable[str]) -> str:
    *others, last = (f'"{name}"' for name in names)
    return f"{', '.join(others)} and {last}"
