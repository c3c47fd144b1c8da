"""SentencePiece models give the same tokenizers as in transformers 4."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts

from afjax.errors import UserError
from afjax.trunk.tokenizer import former_digests, load_tokenizer, tokenizer_digests

GOLDEN = Path(__file__).parents[1] / "golden"
# By name of the golden file: the model_type in config.json.
KINDS = {"deberta": "deberta-v2", "xlm_roberta": "xlm-roberta", "camembert": "camembert"}
LARGE = 1_000


def write_folder(kind: str, folder: Path, **settings: Any) -> dict[str, Any]:
    """Writes a folder as in the published repositories, and returns the golden file's arrays."""
    with np.load(GOLDEN / f"sentencepiece_{kind}.npz") as file:
        golden = dict(file)
    folder.mkdir(exist_ok=True)
    (folder / str(golden["file_name"])).write_bytes(golden["model"].tobytes())
    (folder / "config.json").write_text(json.dumps({"model_type": KINDS[kind]}))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return golden


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("named", [False, True])
def test_token_ids_are_those_of_transformers_4(kind: str, named: bool, tmp_path: Path) -> None:
    golden = write_folder(kind, tmp_path)
    if named:
        settings = {"tokenizer_class": str(golden["class_name"]), "do_lower_case": False}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        (tmp_path / "config.json").unlink()
    tokenizer = load_tokenizer(tmp_path, vocab_size=LARGE, type_vocab_size=2)
    texts = json.loads(str(golden["texts"]))
    assert tokenizer(texts)["input_ids"] == json.loads(str(golden["ids"]))
    pairs = list(zip(texts, reversed(texts), strict=True))
    encoded = tokenizer(pairs)
    assert encoded["input_ids"] == json.loads(str(golden["pair_ids"]))
    assert ("token_type_ids" in encoded) == (kind == "deberta")


@pytest.mark.parametrize("kind", KINDS)
def test_tokenizer_is_that_of_the_converted_file(kind: str, tmp_path: Path) -> None:
    golden = write_folder(kind, tmp_path / "model")
    shutil.copytree(tmp_path / "model", tmp_path / "converted")
    (tmp_path / "converted" / str(golden["file_name"])).unlink()
    (tmp_path / "converted" / "tokenizer.json").write_text(str(golden["tokenizer"]))
    settings = {"tokenizer_class": str(golden["class_name"])}
    (tmp_path / "converted" / "tokenizer_config.json").write_text(json.dumps(settings))
    read, converted = (load_tokenizer(tmp_path / name, vocab_size=LARGE) for name in ("model", "converted"))
    assert tokenizer_digests(read) == tokenizer_digests(converted)
    added = {token["content"] for token in json.loads(str(golden["tokenizer"]))["added_tokens"]}
    assert set(read.all_special_tokens) == added
    assert former_digests(tmp_path / "model", read) == {}


def test_other_tokenizer_files_take_precedence(tmp_path: Path) -> None:
    golden = write_folder("deberta", tmp_path, tokenizer_class="PreTrainedTokenizerFast")
    values = json.loads(str(golden["tokenizer"]))
    values["normalizer"] = {"type": "Lowercase"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    tokenizer = load_tokenizer(tmp_path, vocab_size=LARGE)
    assert json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"] == {"type": "Lowercase"}


def test_options_of_the_tokenizer_are_read(tmp_path: Path) -> None:
    write_folder("deberta", tmp_path, do_lower_case=True, split_by_punct=True, truncation_side="left")
    tokenizer = load_tokenizer(tmp_path, vocab_size=LARGE)
    assert tokenizer("THE DOG.")["input_ids"] == tokenizer("the dog.")["input_ids"]
    assert tokenizer.truncation_side == "left"
    kinds = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]["pretokenizers"]
    assert [kind["type"] for kind in kinds] == ["Punctuation", "Metaspace"]


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"tokenizer_class": "T5Tokenizer"}, ("T5Tokenizer", "DebertaV2Tokenizer")),
        ({"sep_token": "<end>"}, ("sep_token", "<end>", "[SEP]")),
        ({"sep_token": {"content": "<end>"}}, ("sep_token", "<end>", "[SEP]")),
        ({"added_tokens_decoder": {"77": {"content": "<new>"}}}, ("<new>", "77")),
        ({"additional_special_tokens": ["[CLS]", "<new>"]}, ("<new>",)),
        ({"additional_special_tokens": [{"content": "<new>"}]}, ("<new>",)),
    ],
)
def test_tokenizer_that_the_class_does_not_have_is_refused(
    settings: dict[str, Any], facts: tuple[str, ...], tmp_path: Path
) -> None:
    write_folder("deberta", tmp_path, **settings)
    with pytest.raises(UserError) as raised:
        load_tokenizer(tmp_path, vocab_size=LARGE)
    assert has_facts(str(raised.value), "spm.model", *facts)


def test_added_tokens_with_their_ids_are_accepted(tmp_path: Path) -> None:
    write_folder("deberta", tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 60}))
    assert load_tokenizer(tmp_path, vocab_size=LARGE).mask_token_id == 60
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[MASK]": 61}))
    with pytest.raises(UserError) as raised:
        load_tokenizer(tmp_path, vocab_size=LARGE)
    assert has_facts(str(raised.value), "[MASK]", "61")


@pytest.mark.parametrize("contents", [b"", b"not a model", None])
def test_damaged_model_is_refused(contents: bytes | None, tmp_path: Path) -> None:
    golden = write_folder("deberta", tmp_path)
    (tmp_path / "spm.model").write_bytes(golden["model"].tobytes()[:-40] if contents is None else contents)
    with pytest.raises(UserError) as raised:
        load_tokenizer(tmp_path, vocab_size=LARGE)
    assert has_facts(str(raised.value), str(tmp_path))
