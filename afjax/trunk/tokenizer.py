"""A trunk's tokenizer: loading it, and the digests that identify it."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from afjax.data.pieces import check_fast
from afjax.errors import UserError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)


def has_tokenizer(folder: Path) -> bool:
    """Whether a trunk's folder has the files of a tokenizer."""
    complete = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
    return any(all((folder / name).exists() for name in names) for names in complete)


def tokenizer_digests(tokenizer: Any) -> dict[str, str]:
    """Digests of the parts of a tokenizer that decide which token ids a text gets.

    Settings of padding and truncation are left out, because they change at run time, and so is the decoder.

    Args:
      tokenizer: A fast tokenizer of transformers.

    Returns:
      SHA-256 (hex) of ``vocabulary`` (with merges and the unknown token), ``normalizer``, ``pre_tokenizer``,
      ``post_processor`` (with whether it gives token types) and ``added_tokens``.

    Raises:
      UserError: The tokenizer is not a fast one.
    """
    check_fast(tokenizer)
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    token_types = "token_type_ids" in tokenizer.model_input_names
    values = {
        "vocabulary": parts["model"],
        "normalizer": parts["normalizer"],
        "pre_tokenizer": parts["pre_tokenizer"],
        "post_processor": [parts["post_processor"], token_types],
        "added_tokens": parts["added_tokens"],
    }
    return {
        name: hashlib.sha256(json.dumps(_without_unset(value), sort_keys=True).encode()).hexdigest()
        for name, value in values.items()
    }


def _without_unset(value: Any) -> Any:
    """``value`` without null settings, so that an optional setting of a later tokenizers release changes no digest."""
    if isinstance(value, dict):
        return {key: _without_unset(item) for key, item in value.items() if item is not None}
    return [_without_unset(item) for item in value] if isinstance(value, list) else value


def load_tokenizer(folder: Path, vocab_size: int) -> Any:
    """The fast tokenizer of a trunk's folder.

    Raises:
      UserError: There is none, it cannot be read, or it has more tokens than the trunk has embeddings.
    """
    transformers = _import_transformers()
    if not has_tokenizer(folder):
        raise UserError(
            f"{folder} has no tokenizer; it needs tokenizer.json, vocab.txt, or vocab.json with merges.txt."
        )
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True)
    except Exception as error:  # transformers and tokenizers raise many kinds for a damaged file.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"The tokenizer in {folder} cannot be read ({reason}); fetch it again.") from error
    vocabulary = tokenizer.get_vocab()
    # transformers makes a tokenizer of special tokens only if the files have no vocabulary.
    if not vocabulary.keys() - set(tokenizer.all_special_tokens):
        raise UserError(f"The tokenizer in {folder} has special tokens but no vocabulary; fetch it again.")
    highest = max(vocabulary.values(), default=0)
    if max(len(tokenizer), highest + 1) > vocab_size:
        raise UserError(
            f"The tokenizer in {folder} has {len(tokenizer)} tokens with ids up to {highest}, but the trunk only "
            f"{vocab_size} embeddings; they belong to different models."
        )
    try:
        # A word that no vocabulary has, so that the token for unknown words is needed.
        tokenizer("a\u4e2d\u0416\u3042")
    except Exception as error:  # tokenizers raises plain exceptions.
        raise UserError(f"The tokenizer in {folder} cannot encode text ({error}); fetch it again.") from error
    return tokenizer


def _import_transformers() -> Any:
    """Imports transformers without its notice that PyTorch is missing, which afjax does not need."""
    variable = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        import transformers
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
    return transformers
