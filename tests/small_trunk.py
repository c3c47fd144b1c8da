"""Builds small random trunks and their configs, for each encoder family."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from safetensors.numpy import save_file

from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import config_values
from afjax.trunk.encoder import init_trunk
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import EncoderFamily
from afjax.trunk.hugging_face import to_hugging_face
from afjax.trunk.pretrained import Trunk, load_trunk

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
    """Returns the encoder families, except any that differs from an earlier one only in its name.

    Tests of the computations only need these families.
    """
    return _first_names(lambda family: dataclasses.replace(family, name=""))


def families_with_distinct_layers() -> list[str]:
    """Returns the encoder families, except any that has the same layers as an earlier one.

    These families only differ in names, positions and embeddings. Tests of the layers do not need them.
    """
    bert = ENCODER_FAMILIES["bert"]

    def layers(family: EncoderFamily) -> EncoderFamily:
        config_names = {field: name for field, name in family.config_names.items() if field != "embedding_size"}
        return dataclasses.replace(
            family,
            name="",
            config_names=config_names,
            weight_names=bert.weight_names,
            default_pad_id=bert.default_pad_id,
            first_position=bert.first_position,
            # None means that the layers know the positions.
            position_embeddings=family.position_embeddings and bert.position_embeddings,
        )

    return _first_names(layers)


def _first_names(part: Callable[[EncoderFamily], EncoderFamily]) -> list[str]:
    """Returns the first family of each group with the same ``part``."""
    first_names: list[tuple[EncoderFamily, str]] = []
    for name, family in ENCODER_FAMILIES.items():
        if all(part(family) != other for other, _ in first_names):
            first_names.append((part(family), name))
    return [name for _, name in first_names]


def small_trunk(family: str, **changes: Any) -> TrunkConfig:
    """Adapts ``SMALL_TRUNK`` to an encoder family, and applies ``changes``."""
    parts = ENCODER_FAMILIES[family]
    pad_id = min(parts.default_pad_id, SMALL_TRUNK.vocab_size - 1)
    fields = {"family": family, "pad_id": pad_id, **parts.constants, **parts.defaults}
    if "type_vocab_size" not in parts.config_names:
        fields["type_vocab_size"] = 0
    if "embedding_size" in parts.config_names:
        fields["embedding_size"] = 8
    if "window" in parts.config_names:
        # Every second layer has local attention. In rows of more than 3 tokens, some tokens are outside its window.
        fields |= {"window": 5, "global_every": 2}
    if "position_buckets" in parts.config_names:
        # In rows of 7 tokens, some distances share a bucket and some are beyond the last bucket.
        fields |= {"position_buckets": 4, "max_relative_positions": 6}
    return dataclasses.replace(SMALL_TRUNK, **{**fields, **changes})


def small_trunk_on_disk(family: str, tiny_trunk_folder: Path, folder: Path) -> Trunk:
    """Writes a small random trunk with the tiny BERT's tokenizer to a folder, and loads it."""
    vocab_size = load_trunk(str(tiny_trunk_folder)).config.vocab_size
    config = small_trunk(family, vocab_size=vocab_size, init_scale=0.2)
    params = jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config)
    (folder / "config.json").write_text(json.dumps(config_values(config)))
    save_file(to_hugging_face(params, config.encoder_family), folder / "model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((tiny_trunk_folder / name).read_bytes())
    return load_trunk(str(folder))
