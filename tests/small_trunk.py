"""The architectures of small random trunks."""

import dataclasses
from typing import Any

from afjax.trunk.config import TrunkConfig
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import EncoderFamily

SMALL_TRUNK = TrunkConfig(
    family="bert",
    vocab_size=30,
    hidden_size=12,
    num_layers=3,
    num_heads=2,
    intermediate_size=16,
    max_positions=16,
    type_vocab_size=2,
)


def distinct_families() -> list[str]:
    """The families that are not another family with a new name. Computations are tested with these."""
    first_names: list[tuple[EncoderFamily, str]] = []
    for name, family in ENCODER_FAMILIES.items():
        nameless = dataclasses.replace(family, name="")
        if all(nameless != other for other, _ in first_names):
            first_names.append((nameless, name))
    return [name for _, name in first_names]


def small_trunk(family: str, **changes: Any) -> TrunkConfig:
    """Returns ``SMALL_TRUNK`` as an encoder of another family, with the fields that the family has."""
    parts = ENCODER_FAMILIES[family]
    fields = {"family": family, "pad_id": parts.default_pad_id, **parts.constants}
    if "type_vocab_size" not in parts.config_names:
        fields["type_vocab_size"] = 0
    if "embedding_size" in parts.config_names:
        fields["embedding_size"] = 8
    return dataclasses.replace(SMALL_TRUNK, **{**fields, **changes})
