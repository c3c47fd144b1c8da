"""Loads a trunk's tokenizer and computes the digests that identify it."""

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
    "sentencepiece.bpe.model",
    "spm.model",
)
# Files of tokenizers that transformers can convert to tokenizer.json.
_CONVERTIBLE = ("sentencepiece.bpe.model", "spm.model")


def has_tokenizer(folder: Path) -> bool:
    """Whether a trunk's folder has a complete set of tokenizer files."""
    complete = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
    return any(all((folder / name).exists() for name in names) for names in complete)


def tokenizer_digests(tokenizer: Any) -> dict[str, str]:
    """Computes digests of the parts of a tokenizer that determine a text's token ids.

    Padding and truncation settings are excluded because they change at run time. The decoder is excluded too.

    Args:
      tokenizer: A fast tokenizer of transformers.

    Returns:
      SHA-256 (hex) of ``vocabulary`` (including merges and the unknown token), ``normalizer``, ``pre_tokenizer``,
      ``post_processor`` (including whether it returns token types) and ``added_tokens``.

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
    """Removes null settings.

    Later releases of tokenizers may add optional settings. While these are null, they must not change the digests.
    """
    if isinstance(value, dict):
        return {key: _without_unset(item) for key, item in value.items() if item is not None}
    return [_without_unset(item) for item in value] if isinstance(value, list) else value


def load_tokenizer(folder: Path, vocab_size: int) -> Any:
    """Loads the fast tokenizer of a trunk's folder. Code in the folder is not run.

    Raises:
      UserError: The folder has no tokenizer, or the tokenizer cannot be read, has no vocabulary, cannot encode text or
        has more tokens than the trunk has embeddings.
    """
    transformers = _import_transformers()
    if not has_tokenizer(folder):
        found = next((name for name in _CONVERTIBLE if (folder / name).exists()), None)
        advice = f" {found} is not read; convert it to tokenizer.json (docs/how_to/encoders.md)." if found else ""
        raise UserError(
            f"{folder} has no tokenizer; it needs tokenizer.json, vocab.txt, or vocab.json with merges.txt.{advice}"
        )
    try:
        # Without trust_remote_code=False, transformers may ask in the terminal whether to run code of the folder.
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=False)
    except Exception as error:  # For a damaged file, transformers and tokenizers raise many kinds of exceptions.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"The tokenizer in {folder} cannot be read ({reason}); fetch it again.") from error
    vocabulary = tokenizer.get_vocab()
    # If the files have no vocabulary, transformers returns a tokenizer that only has special tokens.
    if not vocabulary.keys() - set(tokenizer.all_special_tokens):
        raise UserError(f"The tokenizer in {folder} has special tokens but no vocabulary; fetch it again.")
    highest = max(vocabulary.values(), default=0)
    if max(len(tokenizer), highest + 1) > vocab_size:
        raise UserError(
            f"The tokenizer in {folder} has {len(tokenizer)} tokens with ids up to {highest}, but the trunk only "
            f"{vocab_size} embeddings; they belong to different models."
        )
    try:
        # No vocabulary has this word, so this tests that the tokenizer can encode unknown words.
        tokenizer("a\u4e2d\u0416\u3042")
    except Exception as error:  # tokenizers raises bare Exceptions.
        raise UserError(f"The tokenizer in {folder} cannot encode text ({error}); fetch it again.") from error
    return tokenizer


def _import_transformers() -> Any:
    """Imports transformers without its warning that PyTorch is missing.

    afjax does not need PyTorch.
    """
    variable = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    previous = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        import transformers
    finally:
        if previous is None:
            del os.environ[variable]
        else:
            os.environ[variable] = previous
    return transformers
