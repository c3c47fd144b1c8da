"""Builds fast tokenizers from SentencePiece models.

The repositories of DeBERTa-v3 and of some XLM-RoBERTa and CamemBERT models have a SentencePiece model and no
``tokenizer.json``. transformers 5 builds a tokenizer with another normalizer for these repositories. Its converters of
``tokenizer.json`` still build the tokenizer of transformers 4, with which the models were published.
"""

import types
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from afjax.errors import UserError
from afjax.storage.json_files import read_json

# The names that Hugging Face's repositories use for SentencePiece models.
SENTENCEPIECE_FILES = ("spm.model", "sentencepiece.bpe.model")
_CONVERT = "Convert it to tokenizer.json (docs/how_to/encoders.md)."


class _Class(NamedTuple):
    """A tokenizer class of transformers.

    Attributes:
      converter: The name of its converter in ``transformers.convert_slow_tokenizer``.
      model_type: The encoder family whose tokenizers have this class if ``tokenizer_config.json`` names no class.
      tokens: The special tokens, ``{role: token}``.
      added: Options of special tokens that differ from the defaults, ``{token: options}``.
      more: Other tokens that texts cannot contain.
      input_names: The inputs that the tokenizer returns.
    """

    converter: str
    model_type: str
    tokens: Mapping[str, str]
    added: Mapping[str, Mapping[str, bool]]
    more: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ("input_ids", "attention_mask")


_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ROBERTA_TOKENS = dict(zip(_ROLES, ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"), strict=True))
_DEBERTA_TOKENS = dict(zip(_ROLES, ("[CLS]", "[SEP]", "[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"), strict=True))
_CLASSES = {
    "DebertaV2Tokenizer": _Class(
        converter="DebertaV2Converter",
        model_type="deberta-v2",
        tokens=_DEBERTA_TOKENS,
        added={"[UNK]": {"normalized": True}},
        input_names=("input_ids", "token_type_ids", "attention_mask"),
    ),
    "XLMRobertaTokenizer": _Class(
        converter="XLMRobertaConverter",
        model_type="xlm-roberta",
        tokens=_ROBERTA_TOKENS,
        added={"<mask>": {"lstrip": True}},
    ),
    "CamembertTokenizer": _Class(
        converter="CamembertConverter",
        model_type="camembert",
        tokens=_ROBERTA_TOKENS,
        added={"<mask>": {"lstrip": True}},
        more=("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"),
    ),
}


def find_sentencepiece(folder: Path) -> Path | None:
    """Returns the SentencePiece model of a trunk's folder, or None."""
    return next((folder / name for name in SENTENCEPIECE_FILES if (folder / name).exists()), None)


def load_sentencepiece(path: Path) -> Any:
    """Builds the fast tokenizer of a trunk's folder from its SentencePiece model.

    The tokenizer has the model, the normalizer, the pre-tokenizer, the post-processor and the special tokens of the
    ``tokenizer.json`` that transformers 4 writes for this folder.

    Args:
      path: The SentencePiece model.

    Returns:
      A ``PreTrainedTokenizerFast`` of transformers.

    Raises:
      UserError: The tokenizer's class cannot be converted, or the folder specifies other special or added tokens than
        the class has.
      Exception: The SentencePiece model is damaged; the type depends on the library that reads it.
    """
    settings = _read(path.parent / "tokenizer_config.json")
    class_name = str(settings.get("tokenizer_class") or _class_of_family(path)).removesuffix("Fast")
    if class_name not in _CLASSES:
        raise UserError(
            f"{path} belongs to a tokenizer of the class {class_name}; afjax reads the SentencePiece models of "
            f"{', '.join(sorted(_CLASSES))}. {_CONVERT}"
        )
    kind = _CLASSES[class_name]
    settings = {**_read(path.parent / "special_tokens_map.json"), **settings}
    _check_special_tokens(path, kind, settings)
    tokenizer = _convert(path, kind, settings)
    _check_added_tokens(path, tokenizer, settings)
    return tokenizer


def _read(path: Path) -> dict[str, Any]:
    return read_json(path, advice="fetch it again") or {}


def _class_of_family(path: Path) -> str:
    model_type = str(_read(path.parent / "config.json").get("model_type"))
    return next((name for name, kind in _CLASSES.items() if kind.model_type == model_type), model_type)


def _convert(path: Path, kind: _Class, settings: Mapping[str, Any]) -> Any:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast, convert_slow_tokenizer

    # The converters only use these attributes of a tokenizer.
    original = types.SimpleNamespace(
        vocab_file=str(path),
        do_lower_case=bool(settings.get("do_lower_case", False)),
        split_by_punct=bool(settings.get("split_by_punct", False)),
    )
    with warnings.catch_warnings():
        # The tokenizer has no byte fallback, as in transformers 4.
        warnings.filterwarnings("ignore", message="The sentencepiece tokenizer that you are converting")
        converter = getattr(convert_slow_tokenizer, kind.converter)(original)
    pieces = [piece for piece, _ in converter.vocab(converter.proto)]
    original.convert_tokens_to_ids = pieces.index

    def added(token: str) -> Any:
        return AddedToken(token, **{"normalized": False, "special": True, **kind.added.get(token, {})})

    return PreTrainedTokenizerFast(
        tokenizer_object=converter.converted(),
        model_input_names=list(kind.input_names),
        additional_special_tokens=[added(token) for token in kind.more],
        **{role: added(token) for role, token in kind.tokens.items()},
        **{name: settings[name] for name in ("truncation_side", "model_max_length") if name in settings},
    )


def _check_special_tokens(path: Path, kind: _Class, given: Mapping[str, Any]) -> None:
    for role, token in kind.tokens.items():
        content = _content(given.get(role, token))
        if content != token:
            raise UserError(
                f"The tokenizer of {path} has the {role} {content!r}, but its class has {token!r}. {_CONVERT}"
            )


def _check_added_tokens(path: Path, tokenizer: Any, settings: Mapping[str, Any]) -> None:
    """Raises UserError if the folder adds tokens that the converted tokenizer does not have."""
    vocabulary = tokenizer.get_vocab()
    # The id of an additional special token is not specified.
    added = {_content(token): None for token in settings.get("additional_special_tokens") or ()}
    added |= _read(path.parent / "added_tokens.json")
    added |= {token["content"]: int(index) for index, token in (settings.get("added_tokens_decoder") or {}).items()}
    for token, index in added.items():
        if token not in vocabulary or index not in (None, vocabulary[token]):
            with_id = "" if index is None else f" with the id {index}"
            raise UserError(
                f"The tokenizer of {path} adds the token {token!r}{with_id}; afjax cannot add it. {_CONVERT}"
            )


def _content(token: Any) -> Any:
    """Returns the text of a token, which a file may store with options."""
    return token.get("content") if isinstance(token, dict) else token
