"""Windows cover all tokens of a context, with the right offsets and labels."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.data.splits import SpanRows
from afjax.errors import UserError
from afjax.tasks import windows
from afjax.tasks.windows import TokenizedSpans, tokenize_spans

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij", "who", "where", "##s", "é"]
CLS, SEP = 2, 3


def make_tokenizer(*, roberta: bool = False) -> Any:
    backend = Tokenizer(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Lowercase()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    second = 0 if roberta else 1
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair=f"[CLS] $A [SEP] {'[SEP] ' * roberta}$B:{second} [SEP]:{second}",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    names = ["input_ids", *([] if roberta else ["token_type_ids"]), "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=names,
    )


DEFAULTS = SpanConfig()
TOKENIZER, ROBERTA = make_tokenizer(), make_tokenizer(roberta=True)


def spans(contexts: list[str], answers: list[Any] | None = None, question: str = "who") -> SpanRows:
    return SpanRows([question] * len(contexts), contexts, answers, ids=[str(row) for row in range(len(contexts))])


def task_with(config: SpanConfig = DEFAULTS) -> TaskConfig:
    return TaskConfig(name="task", kind="span", span=config)


def evaluated(rows: SpanRows, config: SpanConfig = DEFAULTS, *, max_length: int = 64, **more: Any) -> TokenizedSpans:
    tokenizer = more.pop("tokenizer", TOKENIZER)
    data = tokenize_spans(
        rows, tokenizer, task_with(config), max_length=max_length, training=False, cache_dir=None, **more
    )
    assert isinstance(data, TokenizedSpans)
    return data


def window(data: TokenizedSpans, number: int) -> tuple[list[int], list[int], np.ndarray]:
    part = slice(data.offsets[number], data.offsets[number + 1])
    return data.tokens[part].tolist(), data.types[part].tolist(), data.characters[part]


@pytest.mark.parametrize("tokenizer", [TOKENIZER, ROBERTA])
def test_short_context_equals_a_direct_tokenizer_call(tokenizer: Any) -> None:
    data = evaluated(spans(["A bs, é!", ""]), tokenizer=tokenizer)
    for row, context in enumerate(("A bs, é!", "")):
        expected = tokenizer.backend_tokenizer.encode("who", context)
        tokens, types, characters = window(data, row)
        assert tokens == expected.ids
        assert types == expected.type_ids
        pieces = [context[begin:end] for begin, end in characters if begin >= 0]
        assert pieces == (["A", "b", "s", ",", "é", "!"] if context else [])


def test_windows_start_one_stride_apart() -> None:
    # A window is [CLS] who [SEP], five tokens of the context, and [SEP].
    data = evaluated(spans(["a b c d e f g h i j"]), SpanConfig(doc_stride=2), max_length=9)
    pieces = [
        "".join("a b c d e f g h i j"[begin:end] for begin, end in window(data, n)[2] if begin >= 0)
        for n in range(len(data))
    ]
    assert pieces == ["abcde", "cdefg", "efghi", "ghij"]
    assert data.row_of.tolist() == [0, 0, 0, 0]
    assert data.truncated == 1
    # Rows are named without padding and repetitions.
    assert data.source_rows(np.array([3, 0, 1, -1])) == [0]
    # A stride of more than half a window is reduced to half a window, so that consecutive windows overlap.
    assert len(evaluated(spans(["a b c d e f g h i j"]), SpanConfig(doc_stride=128), max_length=9)) == 4


def test_long_questions_are_truncated() -> None:
    data = evaluated(spans(["a b"], question="who who who who"), SpanConfig(max_question_length=2))
    assert window(data, 0)[0] == [CLS, WORDS.index("who"), WORDS.index("who"), SEP, 4, 5, SEP]
    # Questions are also truncated to half a row, so that there is room for the context.
    data = evaluated(spans(["a b c"], question="who who who who"), max_length=7)
    assert window(data, 0)[0] == [CLS, *[WORDS.index("who")] * 2, SEP, 4, 5, SEP]
    with pytest.raises(UserError, match=r"max_length is 4, .*3 special tokens"):
        evaluated(spans(["a b"]), max_length=4)


def test_labels_are_the_first_and_last_answer_tokens() -> None:
    config, context = SpanConfig(doc_stride=2), "a b c d e f g h i j"
    rows = spans([context] * 3, [(("d e", 6),), (("a", 0), ("b", 2)), ()])
    data = tokenize_spans(rows, TOKENIZER, task_with(config), max_length=9, training=True, cache_dir=None)
    assert data.labels is not None
    assert data.row_of.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    # The windows are abcde, cdefg, efghi and ghij. In each window, three tokens come before the context.
    assert data.labels.tolist() == [
        [6, 7], [4, 5], [0, 0], [0, 0],
        [3, 3], [0, 0], [0, 0], [0, 0],
        [0, 0], [0, 0], [0, 0], [0, 0],
    ]  # fmt: skip


def test_partial_word_answers_map_to_their_tokens() -> None:
    data = tokenize_spans(
        spans(["(ab) cs é"], [(("s é", 6),)]), TOKENIZER, task_with(), max_length=64, training=True, cache_dir=None
    )
    tokens = data.tokens[3:].tolist()
    assert data.labels is not None
    first, last = data.labels[0] - 3
    assert tokens[first] == WORDS.index("##s")
    assert tokens[last] == WORDS.index("é")


@pytest.mark.parametrize(
    ("context", "answer", "begin"),
    [("a b ", "b ", 2), (" a b", " a", 0), ("a b", "b\u200b", 2), ("a b c d e f g h i j", " j", 17)],
)
def test_answers_can_have_surrounding_blanks(context: str, answer: str, begin: int) -> None:
    rows, config = spans([context], [((answer, begin),)]), SpanConfig(doc_stride=2)
    data = tokenize_spans(rows, TOKENIZER, task_with(config), max_length=9, training=True, cache_dir=None)
    assert data.labels is not None
    assert data.labels.any()


def test_rows_without_answer_positions_are_not_trained_on() -> None:
    rows = spans(["a b", "c d"], [(("a", -1),), (("c", 0),)])
    with pytest.warns(UserWarning, match=r"1 of 2 train rows .*answer_start"):
        data = tokenize_spans(rows, TOKENIZER, task_with(), max_length=64, training=True, cache_dir=None)
    assert len(data) == 1
    with pytest.raises(UserError, match=r"No row .*answer_start"):
        tokenize_spans(rows.take([0]), TOKENIZER, task_with(), max_length=64, training=True, cache_dir=None)


def test_windows_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, calls = spans(["a b", "c d"], [(("a", 0),), (("c", 0),)]), []
    make = windows._make_windows
    monkeypatch.setattr(windows, "_make_windows", lambda *inputs: (calls.append(1), make(*inputs))[1])

    def run(config: SpanConfig = DEFAULTS, max_length: int = 64) -> np.ndarray:
        data = tokenize_spans(
            rows, TOKENIZER, task_with(config), max_length=max_length, training=True, cache_dir=tmp_path
        )
        assert data.labels is not None
        return data.labels

    first = run()
    assert np.array_equal(first, run())
    assert len(calls) == 1
    run(max_length=32)
    run(SpanConfig(doc_stride=5))
    assert len(calls) == 3
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    assert np.array_equal(first, run())
    assert len(calls) == 4


@settings(deadline=None, max_examples=60)
@given(
    context=st.text("abc é,s ", max_size=30), room=st.integers(1, 9), stride=st.integers(1, 12), roberta=st.booleans()
)
def test_every_token_is_in_a_window_with_its_characters(context: str, room: int, stride: int, roberta: bool) -> None:
    tokenizer = ROBERTA if roberta else TOKENIZER
    length = room + (5 if roberta else 4)
    data = evaluated(spans([context]), SpanConfig(doc_stride=stride), max_length=length, tokenizer=tokenizer)
    expected = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    covered: dict[tuple[int, int], int] = {}
    for number in range(len(data)):
        tokens, _, characters = window(data, number)
        assert len(tokens) <= length
        for token, (begin, end) in zip(tokens, characters.tolist(), strict=True):
            if begin >= 0:
                covered[(begin, end)] = token
    assert covered == dict(zip(map(tuple, expected["offset_mapping"]), expected["input_ids"], strict=True))
