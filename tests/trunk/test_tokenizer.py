"""Loading a trunk's tokenizer does not run code of the trunk's folder or repository."""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import transformers
from facts import has_facts
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from tokenizers.normalizers import NFKC
from tokenizers.pre_tokenizers import Metaspace
from tokenizers.processors import TemplateProcessing

from afjax.data.tokenise import tokenise
from afjax.errors import UserError
from afjax.tasks.load import rows_from_lists
from afjax.trunk.tokenizer import TOKENIZER_FILES, has_tokenizer, load_tokenizer, tokenizer_digests

CODE = """
from pathlib import Path
from transformers import BertTokenizerFast

Path({marker!r}).touch()

class OwnTokenizer(BertTokenizerFast):
    pass
"""
OWN = {"AutoTokenizer": [None, "own.OwnTokenizer"]}


@pytest.mark.parametrize("model_type", ["bert", "own"])
@pytest.mark.parametrize("tokenizer_class", ["BertTokenizer", "OwnTokenizer"])
def test_code_in_a_trunks_folder_is_not_run(
    tiny_trunk_folder: Path, tmp_path: Path, model_type: str, tokenizer_class: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, marker = tmp_path / "trunk", tmp_path / "was_run"
    shutil.copytree(tiny_trunk_folder, folder)
    (folder / "own.py").write_text(CODE.format(marker=str(marker)))
    changes: dict[str, dict[str, Any]] = {
        "config.json": {"model_type": model_type, "auto_map": {"AutoConfig": "own.OwnConfig"}},
        "tokenizer_config.json": {"tokenizer_class": tokenizer_class, "auto_map": OWN},
    }
    for name, change in changes.items():
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**values, **change}))
    # Answer every question with yes, as a careless user would.
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda question="": questions.append(question) or "yes")
    try:
        tokenizer = load_tokenizer(folder, vocab_size=10_000)
    except UserError:
        pass
    else:
        assert type(tokenizer).__module__.startswith("transformers.")
    assert not marker.exists()
    assert questions == []


# The special tokens at the start of the vocabularies of Unigram models.
UNIGRAM = {
    "XLMRobertaTokenizer": ("<s>", "<pad>", "</s>", "<unk>"),
    "CamembertTokenizer": ("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
}


def write_unigram(name: str, folder: Path) -> int:
    """Writes a tokenizer with a small Unigram vocabulary, and returns its number of tokens."""
    pieces = {"\u2581all": -1.0, "\u2581cats": -1.0, "\u2581sleep": -1.0, "\u2581": -2.0, "s": -3.0}
    vocabulary = [*((token, 0.0) for token in UNIGRAM[name]), *pieces.items()]
    tokenizer = getattr(transformers, name)(vocab=vocabulary)
    tokenizer.save_pretrained(folder)
    return len(tokenizer)


@pytest.mark.parametrize("name", UNIGRAM)
def test_unigram_tokenizers_are_read(name: str, tmp_path: Path) -> None:
    size = write_unigram(name, tmp_path)
    tokenizer = load_tokenizer(tmp_path, vocab_size=size)
    assert type(tokenizer).__name__ == name
    rows = rows_from_lists([("all cats sleep", "cats sleeps"), ("all", "cats")])
    data = tokenise(rows, tokenizer, max_length=12, cache_dir=None)
    words = [tokenizer.convert_ids_to_tokens(data.tokens[begin:end]) for begin, end in itertools.pairwise(data.offsets)]
    assert " ".join(words[0]).replace("\u2581", "_") == "<s> _all _cats _sleep </s> </s> _cats _sleep s </s>"
    assert " ".join(words[1]).replace("\u2581", "_") == "<s> _all </s> </s> _cats </s>"
    assert not data.types.any()
    assert tokenizer_digests(tokenizer) == tokenizer_digests(load_tokenizer(tmp_path, vocab_size=size + 1))


@pytest.mark.parametrize("name", UNIGRAM)
def test_unigram_tokenizer_that_does_not_fit_the_trunk_is_refused(name: str, tmp_path: Path) -> None:
    size = write_unigram(name, tmp_path)
    with pytest.raises(UserError) as raised:
        load_tokenizer(tmp_path, vocab_size=size - 1)
    assert has_facts(str(raised.value), str(tmp_path), f"{size} tokens", f"{size - 1} embeddings")


@pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "spm.model"])
def test_sentencepiece_model_is_copied_but_not_read(name: str, tmp_path: Path) -> None:
    assert name in TOKENIZER_FILES
    (tmp_path / name).write_bytes(b"")
    assert not has_tokenizer(tmp_path)
    with pytest.raises(UserError) as raised:
        load_tokenizer(tmp_path, vocab_size=10)
    assert has_facts(str(raised.value), str(tmp_path), "tokenizer.json", name)


def test_normalizer_of_debertas_tokenizer_json_is_kept(tmp_path: Path) -> None:
    """With the class DebertaV2Tokenizer, transformers 5 would replace the normalizer (docs/how_to/encoders.md)."""
    special = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
    vocabulary = [*((token, 0.0) for token in special), ("\u2581all", -1.0), ("\u2581cats", -1.0), ("A", -2.0)]
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=3))
    tokenizer.normalizer = NFKC()
    tokenizer.pre_tokenizer = Metaspace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    loaded = load_tokenizer(tmp_path, vocab_size=len(vocabulary))
    # The text has a fullwidth A, which the normalizer NFKC replaces by A.
    data = tokenise(rows_from_lists([("all cats\uff21", "cats")]), loaded, max_length=12, cache_dir=None)
    assert " ".join(loaded.convert_ids_to_tokens(data.tokens)).replace("\u2581", "_") == (
        "[CLS] _all _cats A [SEP] _cats [SEP]"
    )
