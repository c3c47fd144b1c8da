"""Loads a trunk's tokenizer and computes the digests that identify it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from afjax.data.pieces import check_fast
from afjax.data.tokenization import truncates_left
from afjax.errors import UserError
from afjax.storage.json_files import json_digest, read_json
from afjax.trunk.sentencepiece_file import SENTENCEPIECE_FILES, find_sentencepiece, load_sentencepiece

T = TypeVar("T")

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    *SENTENCEPIECE_FILES,
)
# Sets of files that each suffice for transformers.
_TRANSFORMERS_FILES = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
# Settings in tokenizer.json that are ignored when a tokenizer is compared with the file. If a tokenizer has a
# model-specific class, transformers reads the last five from tokenizer_config.json. The others do not affect token ids,
# except added_tokens, which is the same for every class.
_OPTIONS = frozenset(
    {"version", "padding", "truncation", "decoder", "added_tokens"}
    | {"lowercase", "strip_accents", "handle_chinese_chars", "add_prefix_space", "trim_offsets"}
)
# General classes of tokenizers, which use all of tokenizer.json.
_GENERAL = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})


def has_tokenizer(folder: Path) -> bool:
    """Returns whether a trunk's folder has a complete set of tokenizer files."""
    complete = (*_TRANSFORMERS_FILES, *((name,) for name in SENTENCEPIECE_FILES))
    return any(all((folder / name).exists() for name in names) for names in complete)


def tokenizer_digests(tokenizer: Any) -> dict[str, str]:
    """Computes digests of the parts of a tokenizer that determine a text's token ids.

    Padding and truncation settings are excluded because they change at run time. The decoder is also excluded.

    Args:
      tokenizer: A fast tokenizer of the transformers library.

    Returns:
      SHA-256 (hex) of ``vocabulary`` (including merges and the unknown token), ``normalizer``, ``pre_tokenizer``,
      ``post_processor`` (including whether it returns token types), ``added_tokens`` and ``settings`` (the truncation
      side, and whether special tokens in texts are split).

    Raises:
      UserError: The tokenizer is not a fast tokenizer.
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
        "settings": {
            "truncation_side": "left" if truncates_left(tokenizer) else "right",
            "split_special_tokens": bool(tokenizer.backend_tokenizer.encode_special_tokens),
        },
    }
    return {name: json_digest(_without_unset(value)) for name, value in values.items()}


def _without_unset(value: Any) -> Any:
    """Removes null settings.

    Later releases of the tokenizers library may add optional settings. A setting that is null must not change the
    digests.
    """
    if isinstance(value, dict):
        return {key: _without_unset(item) for key, item in value.items() if item is not None}
    return [_without_unset(item) for item in value] if isinstance(value, list) else value


def load_tokenizer(folder: Path, vocab_size: int, type_vocab_size: int = 0) -> Any:
    """Loads the fast tokenizer of a trunk's folder. Code in the folder is not run.

    If the folder has a ``tokenizer.json``, the tokenizer has the normalizer, the pre-tokenizer, the post-processor and
    the vocabulary of this file. As in transformers, a model-specific class takes the options about case, accents and
    spaces from ``tokenizer_config.json`` or else from its own defaults. A tokenizer of a general class, such as
    ``PreTrainedTokenizerFast``, returns token types if the trunk has several, unless ``tokenizer_config.json`` lists
    the model's inputs.

    Args:
      folder: The trunk's folder.
      vocab_size: The number of the trunk's token embeddings.
      type_vocab_size: The number of the trunk's token types. 0 if it has none.

    Raises:
      UserError: The folder has no tokenizer, or the tokenizer cannot be read, has no vocabulary, cannot encode text or
        has more tokens than the trunk has embeddings.
    """
    try:
        tokenizer = _match_file(_load_class(folder), folder, type_vocab_size)
    except UserError:
        input_names = _inputs_of_class(folder)
        if input_names is None:
            raise
        general = _import_transformers().PreTrainedTokenizerFast
        tokenizer = _read(lambda: general.from_pretrained(folder, model_input_names=input_names), folder)
    check_fast(tokenizer)
    vocabulary = tokenizer.get_vocab()
    # If the files have no vocabulary, transformers returns a tokenizer that only has special tokens.
    if not vocabulary.keys() - set(tokenizer.all_special_tokens):
        raise UserError(f"The tokenizer in {folder} has special tokens but no vocabulary; fetch it again.")
    highest = max(vocabulary.values(), default=0)
    if max(len(tokenizer), highest + 1) > vocab_size:
        raise UserError(
            f"The tokenizer in {folder} has {len(tokenizer)} tokens with ids up to {highest}, but the trunk has only "
            f"{vocab_size} embeddings. The tokenizer and the weights belong to different models."
        )
    try:
        # No vocabulary has this word, so this call checks that the tokenizer can encode unknown words.
        tokenizer("a\u4e2d\u0416\u3042")
    except Exception as error:  # tokenizers raises bare Exceptions.
        raise UserError(f"The tokenizer in {folder} cannot encode text ({error}); fetch it again.") from error
    return tokenizer


def former_digests(folder: Path, tokenizer: Any) -> dict[str, str]:
    """Returns the digests that earlier versions recorded for a tokenizer, if changed.

    Earlier versions of afjax always used the tokenizer that transformers builds from the tokenizer's class. They did
    not compare it with ``tokenizer.json``, and they did not compare its token types with the trunk's token types.

    Args:
      folder: A trunk's folder.
      tokenizer: The tokenizer that :func:`load_tokenizer` returns for this folder.

    Returns:
      ``{part: digest}`` for the parts that differ.
    """
    if type(tokenizer).__name__ not in _GENERAL:  # load_tokenizer did not replace or change the tokenizer.
        return {}
    try:
        former = tokenizer_digests(_load_class(folder))
    except UserError:  # Earlier versions refused this tokenizer.
        return {}
    digests = tokenizer_digests(tokenizer)
    return {part: digest for part, digest in former.items() if digest != digests.get(part)}


def _load_class(folder: Path) -> Any:
    """Loads the tokenizer that transformers builds from the tokenizer's class.

    Raises:
      UserError: The folder has no tokenizer, or the tokenizer cannot be read.
    """
    transformers = _import_transformers()
    if not has_tokenizer(folder):
        raise UserError(
            f"{folder} has no tokenizer; it needs tokenizer.json, vocab.txt, vocab.json with merges.txt, or one of "
            f"{', '.join(SENTENCEPIECE_FILES)}."
        )
    if (path := _only_sentencepiece(folder)) is not None:
        return _read(lambda: load_sentencepiece(path), folder)
    # Without trust_remote_code=False, transformers may ask in the terminal whether to run code in the folder.
    return _read(
        lambda: transformers.AutoTokenizer.from_pretrained(folder, use_fast=True, trust_remote_code=False), folder
    )


def _only_sentencepiece(folder: Path) -> Path | None:
    """Returns the SentencePiece model of a folder without other tokenizer files."""
    if any(all((folder / name).exists() for name in names) for names in _TRANSFORMERS_FILES):
        return None
    return find_sentencepiece(folder)


def _inputs_of_class(folder: Path) -> list[str] | None:
    """Returns the inputs of a tokenizer whose class cannot be built from its ``tokenizer.json``.

    This happens if the class expects another kind of vocabulary than the file has.

    Returns:
      The class's names of the inputs, or None if there is no ``tokenizer.json``, if the folder has its own code,
      or if the class is unknown or has no fast tokenizers.
    """
    transformers = _import_transformers()
    settings = read_json(folder / "tokenizer_config.json", advice="fetch it again") or {}
    found: Any = getattr(transformers, str(settings.get("tokenizer_class")), None)
    is_fast = isinstance(found, type) and issubclass(found, transformers.PreTrainedTokenizerFast)
    if not (folder / "tokenizer.json").exists() or "auto_map" in settings or not is_fast:
        return None
    return list(found.model_input_names)


def _match_file(tokenizer: Any, folder: Path, type_vocab_size: int) -> Any:
    """Matches a tokenizer to ``tokenizer.json`` and to the trunk's token types.

    Args:
      tokenizer: The tokenizer that :func:`_load_class` returns.
      folder: The trunk's folder.
      type_vocab_size: The number of the trunk's token types.

    Raises:
      UserError: ``tokenizer.json`` or ``tokenizer_config.json`` cannot be read.
    """
    if _only_sentencepiece(folder) is not None:
        return tokenizer
    general = _import_transformers().PreTrainedTokenizerFast
    if type(tokenizer).__name__ not in _GENERAL:
        if not _read(lambda: _differs_from_file(tokenizer, folder / "tokenizer.json"), folder):
            return tokenizer
        names = tokenizer.model_input_names
        matched = _read(lambda: general.from_pretrained(folder, model_input_names=names), folder)
        _copy_options(tokenizer.backend_tokenizer, matched.backend_tokenizer)
        return matched
    settings = read_json(folder / "tokenizer_config.json", advice="fetch it again") or {}
    if type_vocab_size > 1 and settings.get("model_input_names") is None:
        tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer


def _copy_options(source: Any, target: Any) -> None:
    """Copies the options that ``tokenizer_config.json`` decides: about case, accents, and a space before the text."""
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import ByteLevel

    chosen, file = source.normalizer, target.normalizer
    if isinstance(chosen, BertNormalizer) and isinstance(file, BertNormalizer):
        target.normalizer = BertNormalizer(
            clean_text=file.clean_text,
            handle_chinese_chars=chosen.handle_chinese_chars,
            strip_accents=chosen.strip_accents,
            lowercase=chosen.lowercase,
        )
    splits, file_splits = source.pre_tokenizer, target.pre_tokenizer
    if isinstance(splits, ByteLevel) and isinstance(file_splits, ByteLevel):
        file_splits.add_prefix_space, file_splits.trim_offsets = splits.add_prefix_space, splits.trim_offsets


def _read(load: Callable[[], T], folder: Path) -> T:
    """Calls a function that reads tokenizer files. Exceptions become UserErrors."""
    try:
        return load()
    except UserError:
        raise
    except Exception as error:  # For a damaged file, transformers and tokenizers raise many kinds of exceptions.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"The tokenizer in {folder} cannot be read ({reason}); fetch it again.") from error


def _differs_from_file(tokenizer: Any, path: Path) -> bool:
    """Returns whether a tokenizer's pipeline or vocabulary differs from the file's.

    transformers builds most tokenizers from their classes. It takes the vocabulary from ``tokenizer.json``, but
    replaces the normalizer and the pre-tokenizer, so some texts get different token ids.

    Args:
      tokenizer: The tokenizer.
      path: The path of ``tokenizer.json``. If there is no such file, the result is False.
    """
    if not path.exists() or not getattr(tokenizer, "is_fast", False):
        return False
    from tokenizers import Tokenizer

    # Parse the file with the same library, so that both pipelines are serialized in the same way.
    backends = (tokenizer.backend_tokenizer, Tokenizer.from_file(str(path)))
    loaded, file = (_without_options(json.loads(backend.to_str())) for backend in backends)
    return bool(loaded != file)


def _without_options(value: Any) -> Any:
    """Removes ``_OPTIONS`` and unset settings, and rounds scores.

    A setting is unset if it is null, false or empty. A score's last digit depends on the parser.
    """
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in _OPTIONS}
        return {
            key: _without_options(item) for key, item in kept.items() if item not in (None, "") and item is not False
        }
    if isinstance(value, list):
        return [_without_options(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


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
