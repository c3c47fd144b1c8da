"""Named architectures, for benchmarks and for compilation without weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax.config.values import Pooling
from afjax.errors import UserError, did_you_mean
from afjax.trunk.config import TrunkConfig
from afjax.trunk.config_file import read_trunk_config
from afjax.trunk.embedding import read_own_pooling
from afjax.trunk.families import ENCODER_FAMILIES


def _bert(layers: int, hidden: int, heads: int, **changes: Any) -> TrunkConfig:
    """Returns BERT's architecture of the given size, with changes."""
    sizes = {"num_layers": layers, "hidden_size": hidden, "num_heads": heads, "intermediate_size": 4 * hidden}
    others = {"family": "bert", "vocab_size": 30522, "max_positions": 512, "type_vocab_size": 2}
    return TrunkConfig(**{**sizes, **others, **changes})


def _roberta(layers: int, hidden: int, heads: int, **changes: Any) -> TrunkConfig:
    roberta = {"family": "roberta", "vocab_size": 50265, "max_positions": 514, "type_vocab_size": 1, "pad_id": 1}
    return _bert(layers, hidden, heads, **{**roberta, "layer_norm_epsilon": 1e-5, **changes})


def _modernbert(layers: int, hidden: int, heads: int, intermediate: int) -> TrunkConfig:
    sizes = {"vocab_size": 50368, "intermediate_size": intermediate, "max_positions": 8192, "type_vocab_size": 0}
    defaults = ENCODER_FAMILIES["modernbert"].defaults
    return _bert(layers, hidden, heads, family="modernbert", pad_id=50283, **sizes, **defaults)


def _deberta_v3(layers: int, hidden: int, heads: int, vocab_size: int = 128100) -> TrunkConfig:
    positions = {"type_vocab_size": 0, "position_buckets": 256, "max_relative_positions": 512}
    options = {"family": "deberta-v2", "vocab_size": vocab_size, "layer_norm_epsilon": 1e-7}
    return _bert(layers, hidden, heads, **positions, **options)


SIZES: Mapping[str, TrunkConfig] = {
    "minilm": _bert(6, 384, 12),
    "bert-base": _bert(12, 768, 12),
    "bert-large": _bert(24, 1024, 16),
    "roberta-base": _roberta(12, 768, 12),
    "roberta-large": _roberta(24, 1024, 16),
    "mpnet-base": _roberta(12, 768, 12, family="mpnet", vocab_size=30527, type_vocab_size=0),
    "distilbert-base": _bert(6, 768, 12, family="distilbert", type_vocab_size=0),
    "xlm-roberta-base": _roberta(12, 768, 12, family="xlm-roberta", vocab_size=250002),
    "xlm-roberta-large": _roberta(24, 1024, 16, family="xlm-roberta", vocab_size=250002),
    "camembert-base": _roberta(12, 768, 12, family="camembert", vocab_size=32005),
    "electra-small": _bert(12, 256, 4, family="electra", embedding_size=128),
    "electra-base": _bert(12, 768, 12, family="electra", embedding_size=768),
    "electra-large": _bert(24, 1024, 16, family="electra", embedding_size=1024),
    "modernbert-base": _modernbert(22, 768, 12, 1152),
    "modernbert-large": _modernbert(28, 1024, 16, 2624),
    "deberta-v3-xsmall": _deberta_v3(12, 384, 6),
    "deberta-v3-small": _deberta_v3(6, 768, 12),
    "deberta-v3-base": _deberta_v3(12, 768, 12),
    "deberta-v3-large": _deberta_v3(24, 1024, 16),
    "mdeberta-v3-base": _deberta_v3(12, 768, 12, vocab_size=251000),
}

# The sizes that were not pretrained with the pooling ``first``.
_POOLINGS: Mapping[str, Pooling] = {"minilm": "mean", "modernbert-base": "mean", "modernbert-large": "mean"}


def trunk_size(name: str) -> TrunkConfig:
    """Returns the architecture of a named size, or of a folder's ``config.json``.

    Raises:
      UserError: The name is neither a known size nor a folder, or the folder's ``config.json`` is missing, malformed or
        not supported.
    """
    if name in SIZES:
        return SIZES[name]
    if Path(name).is_dir():
        return read_trunk_config(Path(name))
    raise UserError(
        f'The trunk size "{name}" is unknown; use {", ".join(SIZES)}, or a folder with a config.json.'
        f"{did_you_mean(name, SIZES)}"
    )


def size_pooling(name: str) -> Pooling:
    """Returns the pooling that a named size or a local trunk was pretrained with.

    Raises:
      UserError: The folder's file is damaged, or it specifies a pooling that afjax does not support.
    """
    return _POOLINGS.get(name, "first") if name in SIZES else read_own_pooling(Path(name))
