"""A trunk's tokenizer behaves as its files specify.

No code in the trunk's folder or repository is run.
"""

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from facts import has_facts
from tokenizers import Tokenizer
from tokenizers.models import BPE, Unigram
from tokenizers.normalizers import NFKC
from tokenizers.pre_tokenizers import ByteLevel, Metaspace
from tokenizers.processors import RobertaProcessing, TemplateProcessing

from afjax.data.tokenization import tokenize_rows
from afjax.errors import UserError
from afjax.store import trunk_difference
from afjax.tasks.load import rows_from_lists
from afjax.train.record import input_differences, trunk_inputs
from afjax.trunk.pretrained import Trunk, load_trunk
from afjax.trunk.sentencepiece_file import SENTENCEPIECE_FILES
from afjax.trunk.tokenizer import TOKENIZER_FILES, former_digests, has_tokenizer, load_tokenizer, tokenizer_digests

CODE = """
from pathlib import Path
from transformers import BertTokenizerFast

Path({marker!r}).touch()

class OwnTokenizer(BertTokenizerFast):
    pass
"""
AUTO_MAP = {"AutoTokenizer": [None, "own.OwnTokenizer"]}


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
        "tokenizer_config.json": {"tokenizer_class": tokenizer_class, "auto_map": AUTO_MAP},
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
    """Writes a tokenizer with a small Unigram vocabulary.

    Returns the number of its tokens.
    """
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
    data = tokenize_rows(rows, tokenizer, max_length=12, cache_dir=None)
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


@pytest.mark.parametrize("name", SENTENCEPIECE_FILES)
def test_sentencepiece_model_is_copied(name: str, tmp_path: Path) -> None:
    assert name in TOKENIZER_FILES
    assert not has_tokenizer(tmp_path)
    (tmp_path / name).write_bytes(b"")
    assert has_tokenizer(tmp_path)


def unigram_tokenizer(vocabulary: list[tuple[str, float]]) -> Tokenizer:
    """Makes a tokenizer with DeBERTa-v3's pipeline in transformers 4.

    Token 3 is the unknown token.
    """
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=3))
    tokenizer.normalizer = NFKC()
    tokenizer.pre_tokenizer = Metaspace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def test_tokenizer_json_saved_by_transformers_is_read(tmp_path: Path) -> None:
    special = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
    vocabulary = [*((token, 0.0) for token in special), ("\u2581all", -1.0), ("\u2581cats", -1.0), ("A", -2.0)]
    tokenizer = unigram_tokenizer(vocabulary)
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "deberta-v2"}))
    loaded = load_tokenizer(tmp_path, vocab_size=len(vocabulary))
    # The text has a fullwidth A, which the normalizer NFKC replaces by A.
    data = tokenize_rows(rows_from_lists([("all cats\uff21", "cats")]), loaded, max_length=12, cache_dir=None)
    assert " ".join(loaded.convert_ids_to_tokens(data.tokens)).replace("\u2581", "_") == (
        "[CLS] _all _cats A [SEP] _cats [SEP]"
    )


def write_pipeline(name: str, folder: Path, model_type: str, **settings: Any) -> None:
    """Writes a tokenizer.json with the pipeline of transformers 4, and config files.

    Args:
      name: The tokenizer's class in tokenizer_config.json.
      folder: The folder.
      model_type: The family in config.json.
      settings: Other settings in tokenizer_config.json.
    """
    special = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    vocabulary = [*((token, 0.0) for token in special), ("\u2581all", -1.0), ("\u2581cats", -1.25), ("A", -2.0)]
    tokenizer = unigram_tokenizer(vocabulary)
    tokenizer.add_special_tokens(list(special))
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"}
    values = {"tokenizer_class": name, **names, "mask_token": "[MASK]", **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


# The first text has a fullwidth A, which NFKC replaces by A. Other texts have spaces that the pipelines of the
# tokenizers' classes treat differently.
TEXTS = ["all cats\uff21", "  all \u3000 cats", "all\tcats\n", "[MASK] all", "", "\ufb01ne"]


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("DebertaV2Tokenizer", "deberta-v2"),
        ("DebertaV2TokenizerFast", "deberta-v2"),
        ("XLMRobertaTokenizer", "xlm-roberta"),
        ("PreTrainedTokenizerFast", "deberta-v2"),
        ("TokenizersBackend", "bert"),
    ],
)
def test_token_ids_equal_tokenizer_json(name: str, model_type: str, tmp_path: Path) -> None:
    write_pipeline(name, tmp_path, model_type)
    file = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    loaded = load_tokenizer(tmp_path, vocab_size=100)
    assert [loaded(text)["input_ids"] for text in TEXTS] == [file.encode(text).ids for text in TEXTS]
    assert loaded(TEXTS[0], TEXTS[1])["input_ids"] == file.encode(TEXTS[0], TEXTS[1]).ids
    assert (loaded.pad_token_id, loaded.mask_token_id) == (0, 4)


def test_transformers_gives_different_ids_than_tokenizer_json(tmp_path: Path) -> None:
    """This is why load_tokenizer compares the tokenizer with the file.

    If this test fails, the comparison may no longer be needed.
    """
    write_pipeline("DebertaV2Tokenizer", tmp_path, "deberta-v2")
    file = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert loaded(TEXTS[0])["input_ids"] != file.encode(TEXTS[0]).ids


@pytest.mark.parametrize(
    ("name", "has_types"), [("XLMRobertaTokenizer", False), ("CamembertTokenizer", False), ("DebertaV2Tokenizer", True)]
)
def test_file_is_read_if_its_model_does_not_fit_the_class(
    name: str, has_types: bool, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    """For example, a DeBERTa with a WordPiece vocabulary."""
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", tokenizer_class=name)
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder, 10_000, 2)
    assert tokenizer("All some", "cats")["input_ids"] == file.encode("All some", "cats").ids
    assert ("token_type_ids" in tokenizer.model_input_names) == has_types
    assert former_digests(folder, tokenizer) == {}
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        load_tokenizer(folder, 10_000, 2)


def test_tokenizer_that_matches_its_file_keeps_its_class(tiny_trunk_folder: Path) -> None:
    assert type(load_tokenizer(tiny_trunk_folder, vocab_size=10_000)).__name__ == "BertTokenizer"


def edited(folder: Path, copy: Path, **settings: Any) -> Path:
    """Copies a folder and changes settings in its tokenizer_config.json."""
    shutil.copytree(folder, copy)
    values = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**values, **settings}))
    return copy


def test_do_lower_case_overrides_the_normalizer_in_tokenizer_json(tiny_trunk_folder: Path, tmp_path: Path) -> None:
    """In transformers 4 and 5, this setting also overrides the normalizer."""
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", do_lower_case=False)
    cased, uncased = (load_tokenizer(path, vocab_size=10_000) for path in (folder, tiny_trunk_folder))
    assert cased.tokenize("All") == ["[UNK]"]
    assert uncased.tokenize("All") == ["all"]


@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("do_lower_case", [False, True])
def test_do_lower_case_also_overrides_the_normalizer_of_a_replaced_tokenizer(
    lowercase: bool, do_lower_case: bool, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", do_lower_case=do_lower_case)
    file = json.loads((folder / "tokenizer.json").read_text())
    file["normalizer"]["lowercase"] = lowercase
    file["model"]["max_input_chars_per_word"] = 3  # The class has 100, so the file's tokenizer is used.
    (folder / "tokenizer.json").write_text(json.dumps(file))
    tokenizer = load_tokenizer(folder, vocab_size=10_000)
    assert type(tokenizer).__name__ != "BertTokenizer"
    assert tokenizer.tokenize("All some") == ["all" if do_lower_case else "[UNK]", "[UNK]"]


def test_space_before_the_text_is_also_added_by_a_replaced_tokenizer(tmp_path: Path) -> None:
    vocab = {"<s>": 0, "</s>": 1, "<pad>": 2, "<unk>": 3, "<mask>": 4, "a": 5, "\u0120a": 6, "\u0120": 7}
    # The class has no unk_token in its model, so the file's tokenizer is used.
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[("\u0120", "a")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = RobertaProcessing(("</s>", 1), ("<s>", 0))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer", "add_prefix_space": true}')
    loaded = load_tokenizer(tmp_path, vocab_size=10)
    assert type(loaded).__name__ != "RobertaTokenizer"
    assert loaded("a")["input_ids"] == [0, 6, 1]


@pytest.mark.parametrize(
    ("settings", "type_vocab_size", "types"),
    [
        ({}, 2, 1),
        ({}, 1, 0),
        ({}, 0, 0),
        ({"model_input_names": ["input_ids", "attention_mask"]}, 2, 0),
        ({"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, 1, 1),
    ],
)
def test_general_class_returns_token_types_if_the_trunk_has_several(
    settings: dict[str, Any], type_vocab_size: int, types: int, tmp_path: Path
) -> None:
    write_pipeline("PreTrainedTokenizerFast", tmp_path, "bert", **settings)
    tokenizer = load_tokenizer(tmp_path, 100, type_vocab_size)
    data = tokenize_rows(rows_from_lists([("all", "cats")]), tokenizer, max_length=12, cache_dir=None)
    assert data.types.tolist() == [0, 0, 0, types, types]


def test_model_specific_class_keeps_its_inputs(tmp_path: Path) -> None:
    write_pipeline("XLMRobertaTokenizer", tmp_path, "xlm-roberta")
    assert "token_type_ids" not in load_tokenizer(tmp_path, 100, 2).model_input_names


def test_trunk_passes_its_number_of_token_types_to_its_tokenizer(tiny_trunk_folder: Path, tmp_path: Path) -> None:
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", tokenizer_class="PreTrainedTokenizerFast")
    before, after = (load_trunk(str(path)) for path in (tiny_trunk_folder, folder))
    assert after.tokenizer()("all", "some")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert before.identity()["tokenizer"] == after.identity()["tokenizer"]
    np.testing.assert_array_equal(before.embed([("all", "some")]), after.embed([("all", "some")]))


def test_records_of_earlier_versions_match_the_current_tokenizer(tiny_trunk_folder: Path, tmp_path: Path) -> None:
    """Earlier versions recorded another digest, because they lost the token types."""
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", tokenizer_class="PreTrainedTokenizerFast")
    trunk = load_trunk(str(folder))
    loaded = transformers.AutoTokenizer.from_pretrained(folder)
    former = {**trunk.identity(), "tokenizer": tokenizer_digests(loaded)}
    del former["former_tokenizer"]
    assert [part for part, digest in former["tokenizer"].items() if trunk.identity()["tokenizer"][part] != digest] == [
        "post_processor"
    ]
    for recorded, given in ((former, trunk.identity()), (trunk.identity(), former)):
        comparison = trunk_difference(recorded, given)
        assert not comparison.differences
        assert has_facts(*comparison.unchecked, "post processor")
    assert trunk_difference(trunk.identity(), trunk.identity()) == ([], [])
    other = {**former, "tokenizer": {**former["tokenizer"], "post_processor": "ab"}}
    assert trunk_difference(other, trunk.identity()).differences == ["the tokenizer's post processor"]
    # When a run is resumed, its inputs are compared in the same way.
    given = trunk_inputs(trunk)
    inputs = {name: value for name, value in given.items() if "earlier" not in name}
    inputs["the tokenizer's post_processor"] = former["tokenizer"]["post_processor"]
    changed, unchecked = input_differences(inputs, given)
    assert not changed
    assert has_facts(*unchecked, "post_processor")
    assert input_differences(given, given) == ([], [])
    inputs["the tokenizer's post_processor"] = "ab"
    assert has_facts(*input_differences(inputs, given)[0], "post_processor")


def test_identity_has_no_former_digests_if_the_tokenizer_did_not_change(tiny_trunk: Trunk) -> None:
    assert tiny_trunk.identity()["former_tokenizer"] == {}
    assert trunk_inputs(tiny_trunk)["the tokenizer in earlier versions"] == "{}"


def test_records_of_this_version_do_not_match_an_edited_tokenizer(
    tiny_trunk: Trunk, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    """Records of earlier versions do match, because transformers ignores the edit."""
    folder = shutil.copytree(tiny_trunk_folder, tmp_path / "trunk")
    values = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**values, "pre_tokenizer": {"type": "WhitespaceSplit"}}))
    trunk = load_trunk(str(folder))
    assert trunk_difference(tiny_trunk.identity(), trunk.identity()).differences == ["the tokenizer's pre tokenizer"]
    assert len(input_differences(trunk_inputs(tiny_trunk), trunk_inputs(trunk))[0]) == 1
    former = {name: value for name, value in tiny_trunk.identity().items() if name != "former_tokenizer"}
    assert trunk_difference(former, trunk.identity()).differences == []


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("max_length", [5, 6, 7, 8, 9, 20])
def test_texts_are_truncated_on_the_tokenizers_side(
    side: str, max_length: int, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", truncation_side=side)
    tokenizer = load_tokenizer(folder, 10_000, 2)
    pairs = [("all some the two", "two the"), ("all", "some the two all the"), ("all some the", "two the all")]
    for rows in (pairs, [first for first, _ in pairs]):
        data = tokenize_rows(rows_from_lists(rows), tokenizer, max_length=max_length, cache_dir=tmp_path)
        for number, row in enumerate(rows):
            texts = row if isinstance(row, tuple) else (row,)
            expected = tokenizer(*texts, truncation=True, max_length=max_length)
            tokens = slice(data.offsets[number], data.offsets[number + 1])
            assert data.tokens[tokens].tolist() == expected["input_ids"]
            assert data.types[tokens].tolist() == expected["token_type_ids"]


def test_padding_side_does_not_change_embeddings(tiny_trunk_folder: Path, tmp_path: Path) -> None:
    """Rows are always padded on the right.

    A token's position therefore does not depend on the other rows of the batch.
    """
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", padding_side="left", truncation_side="left")
    texts = ["all some the two", "all"]
    embeddings = [load_trunk(str(path)).embed(texts) for path in (tiny_trunk_folder, folder)]
    np.testing.assert_array_equal(*embeddings)


@pytest.mark.parametrize(("name", "value"), [("truncation_side", "left"), ("split_special_tokens", True)])
def test_identity_has_settings_that_change_token_ids(
    name: str, value: Any, tiny_trunk_folder: Path, tmp_path: Path
) -> None:
    changed = load_trunk(str(edited(tiny_trunk_folder, tmp_path / "trunk", **{name: value}))).identity()
    usual = load_trunk(str(tiny_trunk_folder)).identity()
    for recorded, in_use in ((changed, usual), (usual, changed)):
        (difference,) = trunk_difference(recorded, in_use).differences
        assert has_facts(difference, "tokenizer", "settings")
    # Earlier versions did not record the settings.
    former = {**usual, "tokenizer": {part: digest for part, digest in usual["tokenizer"].items() if part != "settings"}}
    assert trunk_difference(former, changed) == ([], [])


def test_special_tokens_in_texts_can_be_split(tiny_trunk_folder: Path, tmp_path: Path) -> None:
    rows = rows_from_lists(["all [SEP] some"])
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", split_special_tokens=True)
    for path in (tiny_trunk_folder, folder):
        tokenizer = load_tokenizer(path, 10_000, 2)
        expected = tokenizer("all [SEP] some")["input_ids"]
        # The second tokenizer must not read the first one's cache, and a copy without padding keeps the setting.
        for _ in range(2):
            assert (
                tokenize_rows(rows, tokenizer, max_length=16, cache_dir=tmp_path / "cache").tokens.tolist() == expected
            )
        tokenizer.backend_tokenizer.enable_padding()
        assert tokenize_rows(rows, tokenizer, max_length=16, cache_dir=None).tokens.tolist() == expected


def test_cache_key_depends_on_the_truncation_side(tiny_trunk_folder: Path, tmp_path: Path) -> None:
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", truncation_side="left")
    rows = rows_from_lists(["all some the two"])
    for path in (tiny_trunk_folder, folder):
        tokenize_rows(rows, load_tokenizer(path, 10_000, 2), max_length=4, cache_dir=tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("side", ["top", 3, None])
def test_unknown_truncation_side_is_refused(side: Any, tiny_trunk_folder: Path, tmp_path: Path) -> None:
    folder = edited(tiny_trunk_folder, tmp_path / "trunk", truncation_side=side)
    with pytest.raises(UserError) as raised:
        load_tokenizer(folder, 10_000, 2)
    assert has_facts(str(raised.value), str(folder))
