"""Converts files of original BERT checkpoints to Hugging Face's format.

The files are ``bert_config.json`` and ``vocab.txt``.
"""

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from afjax.errors import UserError
from afjax.storage.json_files import read_existing_json
from afjax.storage.paths import AnyPath, check_readable, fetched, is_remote, open_path
from afjax.trees import Tree, tree_digest
from afjax.trunk.config_file import trunk_config
from afjax.trunk.pretrained import Trunk
from afjax.trunk.tokenizer import load_tokenizer

Gelu = Literal["exact", "tanh"]
Case = Literal["cased", "uncased"]

_SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
# Keys shared by bert_config.json and Hugging Face's config.json.
_KEYS = tuple(
    "vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size max_position_embeddings "
    "type_vocab_size hidden_dropout_prob attention_probs_dropout_prob initializer_range hidden_act".split()
)


def read_bert_config(path: AnyPath) -> dict[str, Any]:
    """Loads a ``bert_config.json``.

    Raises:
      UserError: The file does not exist or is not a JSON object.
    """
    advice = "use the bert_config.json that the checkpoint was trained with"
    return dict(read_existing_json(fetched(path), advice=advice))


def hugging_face_config(values: Mapping[str, Any], *, gelu: Gelu, where: str) -> dict[str, Any]:
    """Converts the values of a ``bert_config.json`` to an equivalent ``config.json``.

    Args:
      values: The values of ``bert_config.json``. Keys that do not affect the encoder are dropped.
      gelu: The GELU variant that "gelu" stands for, see ``docs/how_to/papers.md``.
      where: The file's name in error messages.

    Raises:
      UserError: A value is missing, has the wrong type or is out of range.
    """
    encoder_values = {key: values[key] for key in _KEYS if key in values}
    if encoder_values.setdefault("hidden_act", "gelu") == "gelu":
        encoder_values["hidden_act"] = {"exact": "gelu", "tanh": "gelu_new"}[gelu]
    # BERT's code hard-codes the epsilon and pads with token 0.
    fixed = {"model_type": "bert", "architectures": ["BertModel"], "layer_norm_eps": 1e-12, "pad_token_id": 0}
    config = {**fixed, **encoder_values}
    trunk_config(config, where)
    return config


def read_vocabulary(path: AnyPath, vocab_size: int) -> list[str]:
    """Loads the tokens of a ``vocab.txt``, one per line.

    Raises:
      UserError: The file does not exist, is not UTF-8, has more tokens than the trunk has embeddings, or lacks a
        special token.
    """
    try:
        # splitlines() would also split at other characters that may be tokens.
        tokens = fetched(path).read_text(encoding="utf-8").rstrip("\n").split("\n")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; set --vocab to the vocab.txt of the BERT's tokenizer.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error}); copy it again.") from None
    if len(tokens) > vocab_size:
        raise UserError(
            f"{path} has {len(tokens)} tokens, but the BERT has {vocab_size} embeddings; use the "
            "vocab.txt of that BERT."
        )
    missing = [token for token in _SPECIAL_TOKENS if token not in tokens]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}; use the vocab.txt of a BERT.")
    return tokens


def is_uncased(tokens: list[str]) -> bool:
    """Returns whether no token has a capital letter (A to Z).

    Special tokens such as ``[CLS]`` are ignored.
    """
    return not any(re.search("[A-Z]", token) for token in tokens if not token.startswith("["))


def check_trunk_folder(output: AnyPath, *, overwrite: bool) -> None:
    """Checks that a trunk can be written to the folder ``output``.

    Raises:
      UserError: ``output`` is a file or, without ``overwrite``, a non-empty folder.
    """
    folder = open_path(output)
    if is_remote(folder):
        check_readable(folder, "trunk's folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{output} is a file; set --output to a folder.")
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise UserError(
            f"{output} already exists and was not changed; choose another --output, or replace it with --overwrite."
        )


@contextlib.contextmanager
def bert_trunk(
    name: AnyPath, params: Tree, values: Mapping[str, Any], *, vocab: AnyPath, case: Case | None
) -> Iterator[Trunk]:
    """Assembles a trunk that can be passed to ``save_trunk`` and the store.

    Its config and tokenizer are in a temporary folder that is deleted at the end of the ``with`` block.

    Args:
      name: The trunk's name, which is the folder that it will be saved to.
      params: The trunk's parameters.
      values: The values of its ``config.json``.
      vocab: Path of its ``vocab.txt``.
      case: Whether the tokenizer lowercases and strips accents ("uncased"). Defaults to "uncased" if no token has a
        capital letter.

    Raises:
      UserError: The vocabulary is missing, damaged or unusable.
    """
    tokens = read_vocabulary(vocab, values["vocab_size"])
    tokenizer = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": is_uncased(tokens) if case is None else case == "uncased",
        "model_max_length": values["max_position_embeddings"],
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n")
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2) + "\n")
        (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
        load_tokenizer(folder, values["vocab_size"], values["type_vocab_size"])
        config = trunk_config(values, where=str(name))
        yield Trunk(name=str(name), config=config, params=params, sha256=tree_digest(params), folder=folder)
