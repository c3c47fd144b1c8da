"""Token ids match the tokenizer's output. They are cached by text and tokenizer, and damaged caches are rebuilt."""

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from afjax.config.tasks import TaskConfig
from afjax.data import tokenization
from afjax.data.cache import write_arrays
from afjax.data.pieces import learn_template
from afjax.data.splits import Rows, SpanRows, TagRows
from afjax.data.tokenization import TokenizedRows, tokenize_rows
from afjax.errors import UserError
from afjax.tasks.load import rows_from_lists
from afjax.tasks.tag_windows import tokenize_tags
from afjax.tasks.windows import tokenize_spans

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "four", "five", "##s", "é"]


def make_tokenizer(*, types: bool = True, words: list[str] = WORDS) -> Any:
    backend = Tokenizer(models.WordPiece({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    second = 1 if types else 0
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] $B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = ["input_ids", *(["token_type_ids"] if types else []), "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=names,
    )


TOKENIZERS = {types: make_tokenizer(types=types) for types in (False, True)}
PAIRS = Rows(
    ["One two", "three", "five fives five five five five", ""],
    ["four", "one two three four five", "two two", "é six"],
    np.array([1, 0, 1, 0], np.int32),
    ("no", "yes"),
)
SINGLES = Rows(PAIRS.text_a, None, PAIRS.labels, PAIRS.label_names)


@settings(deadline=None)
@given(
    texts=st.lists(st.tuples(*[st.text("one two,fives é", max_size=30)] * 2), min_size=1, max_size=4),
    types=st.booleans(),
    max_length=st.integers(4, 20),
)
def test_any_pair_equals_a_direct_tokenizer_call(texts: list[tuple[str, str]], types: bool, max_length: int) -> None:
    tokenizer = TOKENIZERS[types]
    backend = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
    backend.enable_truncation(max_length, strategy="longest_first")
    first, second = zip(*texts, strict=True)
    data = tokenize_rows(Rows(first, second, None, ()), tokenizer, max_length=max_length, cache_dir=None)
    for row, encoding in enumerate(backend.encode_batch(texts)):
        part = slice(data.offsets[row], data.offsets[row + 1])
        assert data.tokens[part].tolist() == encoding.ids
        assert data.types[part].tolist() == (encoding.type_ids if types else [0] * len(encoding))
    assert data.truncated == sum(bool(encoding.overflowing) for encoding in backend.encode_batch(texts))


def same(one: TokenizedRows, other: TokenizedRows) -> bool:
    arrays = zip((one.tokens, one.types, one.offsets), (other.tokens, other.types, other.offsets), strict=True)
    return one.truncated == other.truncated and all(np.array_equal(first, second) for first, second in arrays)


@pytest.mark.parametrize("rows", [PAIRS, SINGLES])
@pytest.mark.parametrize("types", [True, False])
@pytest.mark.parametrize("max_length", [4, 7, 64])
def test_rows_equal_a_direct_tokenizer_call(rows: Rows, types: bool, max_length: int) -> None:
    tokenizer = make_tokenizer(types=types)
    before = tokenizer.backend_tokenizer.to_str()
    data = tokenize_rows(rows, tokenizer, max_length=max_length, cache_dir=None)
    assert tokenizer.backend_tokenizer.to_str() == before
    assert (data.tokens.dtype, data.types.dtype, data.offsets.dtype) == (np.int32, np.int8, np.int64)
    texts = (rows.text_a,) if rows.text_b is None else (rows.text_a, rows.text_b)
    expected = tokenizer(*texts, truncation="longest_first", max_length=max_length)
    whole = tokenizer(*texts)["input_ids"]
    for row, ids in enumerate(expected["input_ids"]):
        part = slice(data.offsets[row], data.offsets[row + 1])
        assert data.tokens[part].tolist() == ids
        assert data.types[part].tolist() == (expected["token_type_ids"][row] if types else [0] * len(ids))
    assert data.truncated == sum(len(ids) > max_length for ids in whole)
    assert len(data) == len(rows)
    assert data.labels is rows.labels


def test_chunk_size_does_not_change_token_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=None)
    monkeypatch.setattr(tokenization, "CHUNK", 3)
    assert same(tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=None), whole)


def refuse_to_run(*_: Any) -> None:
    raise AssertionError("tokenized again")


def test_second_call_reads_the_cache_and_keeps_its_own_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=tmp_path / "cache")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npz"]
    monkeypatch.setattr(tokenization, "run_tokenizer", refuse_to_run)
    unlabeled = Rows(PAIRS.text_a, PAIRS.text_b, None, ())
    second = tokenize_rows(unlabeled, make_tokenizer(), max_length=7, cache_dir=tmp_path / "cache")
    assert same(first, second)
    assert second.labels is None


@pytest.mark.parametrize(
    "change",
    [
        {"max_length": 8},
        {"tokenizer": make_tokenizer(words=[*WORDS, "six"])},
        {"tokenizer": make_tokenizer(types=False)},
        {"rows": SINGLES},
        {"rows": Rows(["One two f", *PAIRS.text_a[1:]], ["our", *(PAIRS.text_b or [])[1:]], None, ())},
        {"rows": Rows([f"{PAIRS.text_a[0]}three", "", *PAIRS.text_a[2:]], PAIRS.text_b, None, ())},
    ],
)
def test_cache_key_covers_everything_that_affects_token_ids(tmp_path: Path, change: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"rows": PAIRS, "tokenizer": make_tokenizer(), "max_length": 7}
    tokenize_rows(**settings, cache_dir=tmp_path)
    changed = tokenize_rows(**(settings | change), cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert same(changed, tokenize_rows(**(settings | change), cache_dir=None))


@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "other", "version", "encrypted"])
def test_damaged_cache_is_rebuilt(tmp_path: Path, damage: str) -> None:
    expected = tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    raw = path.read_bytes()
    at, directory = raw.index(expected.tokens.tobytes()), raw.index(b"PK\x01\x02")
    damaged = {
        "empty": b"",
        "cut": raw[:-200],
        "flipped": raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :],
        "other": b"nothing of the kind",
        # The version and the flags in the header of the first file in the archive's directory.
        "version": raw[: directory + 6] + b"\xff" + raw[directory + 7 :],
        "encrypted": raw[: directory + 8] + b"\x01" + raw[directory + 9 :],
    }
    path.write_bytes(damaged[damage])
    assert same(tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=tmp_path), expected)
    assert path.read_bytes() != b""
    assert list(tmp_path.iterdir()) == [path]
    assert same(tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=tmp_path), expected)


def test_unwritable_cache_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be cached .*file"):
        tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=tmp_path / "file")


def test_failed_write_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left on device"):
        tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_max_length_without_room_for_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"max_length is 3, .*3 special tokens"):
        tokenize_rows(PAIRS, make_tokenizer(), max_length=3, cache_dir=None)


def test_tokenizer_without_latin_letters_is_accepted() -> None:
    backend = Tokenizer(models.BPE({"<s>": 0, "中": 1, "文": 2}, []))
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<s>")
    data = tokenize_rows(rows_from_lists(["中文", "中"]), tokenizer, max_length=4, cache_dir=None)
    assert data.tokens.tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(UserError, match="no tokens for any text"):
        learn_template(Tokenizer(models.BPE({}, [])), tokenizer, pair=False)


def test_slow_tokenizer_is_refused() -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        tokenize_rows(PAIRS, object(), max_length=7, cache_dir=None)


def test_tokenizing_does_not_warn(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tokenize_rows(PAIRS, make_tokenizer(), max_length=7, cache_dir=tmp_path)


def test_requests_without_a_cache_do_little_work_on_the_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    # Listing the vocabulary and hashing the tokenizer take milliseconds, which each request of a server would wait for.
    monkeypatch.setattr("afjax.data.pieces._text_with_tokens", refuse_to_run)
    monkeypatch.setattr("afjax.data.cache.token_digest", refuse_to_run)
    tokenizer = TOKENIZERS[True]
    spans = rows_from_lists([("one", "two three")], kind="span")
    tags = rows_from_lists(["one two"], kind="tagging")
    assert isinstance(spans, SpanRows)
    assert isinstance(tags, TagRows)
    assert len(tokenize_rows(SINGLES, tokenizer, max_length=8, cache_dir=None)) == 4
    task = TaskConfig(name="task")
    assert len(tokenize_spans(spans, tokenizer, task, max_length=8, training=False, cache_dir=None)) == 1
    assert len(tokenize_tags(tags, tokenizer, task, max_length=8, training=False, cache_dir=None)) == 1


def test_interrupt_after_the_cache_file_is_renamed_is_not_an_error_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.replace

    def interrupted(source: str, target: str) -> None:
        rename(source, target)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_arrays(tmp_path / "arrays.npz", {"tokens": np.arange(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["arrays.npz"]
