"""The best answers over windows equal an exhaustive search over all spans."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afjax.config.tasks import SpanConfig
from afjax.data.splits import SpanRows
from afjax.tasks.best_answers import best_answers
from afjax.tasks.windows import TokenizedSpans

CONTEXT = "one two three four five"
CHARACTERS = [(0, 3), (4, 7), (8, 13), (14, 18), (19, 23)]


def make_windows(pieces: list[list[tuple[int, int]]], contexts: list[str] | None = None) -> TokenizedSpans:
    """Makes a window for each token range of each row.

    Each window has a special token before and after its tokens.
    """
    row_of = [row for row, row_pieces in enumerate(pieces) for _ in row_pieces]
    bounds = [piece for row_pieces in pieces for piece in row_pieces]
    characters = [np.array([(-1, -1), *CHARACTERS[begin:end], (-1, -1)], np.int32) for begin, end in bounds]
    offsets = np.cumsum([0, *map(len, characters)])
    contexts = contexts or [CONTEXT] * len(pieces)
    return TokenizedSpans(
        tokens=np.zeros(offsets[-1], np.int32),
        types=np.zeros(offsets[-1], np.int8),
        offsets=offsets,
        labels=None,
        truncated=0,
        row_of=np.array(row_of, np.int32),
        characters=np.concatenate(characters),
        rows=SpanRows(["?"] * len(pieces), contexts, None),
    )


def logits_of(*windows: tuple[list[float], list[float]]) -> np.ndarray:
    length = max(len(starts) for starts, _ in windows)
    # The padding after a window has large logits, so that a test fails if they are read.
    logits = np.full((len(windows), length, 2), 99.0, np.float32)
    for number, (starts, ends) in enumerate(windows):
        logits[number, : len(starts)] = np.stack([starts, ends], -1)
    return logits


def test_token_without_characters_is_not_an_answer() -> None:
    windows = make_windows([[(0, 2)]])
    windows.characters[1] = (4, 4)
    logits = logits_of(([0.0, 9.0, 1.0, 0.0], [0.0, 9.0, 1.0, 0.0]))
    (answers,) = best_answers(logits, windows, SpanConfig(no_answer=False))
    assert [answer.text for answer in answers] == ["two"]


def test_best_span_has_its_characters_and_score() -> None:
    data = make_windows([[(0, 5)]])
    logits = logits_of(([9, 0, 5, 0, 0, 0, 9], [9, 0, 0, 0, 4, 0, 9]))
    best = best_answers(logits, data, SpanConfig())[0]
    assert (best[0].text, best[0].begin, best[0].end, best[0].score) == ("two three four", 4, 18, 9.0)
    assert sum(answer.probability for answer in best) == pytest.approx(1)
    assert best[0].probability > best[1].probability
    assert all(answer.text for answer in best)
    # With at most two tokens per answer, another span is the best.
    assert best_answers(logits, data, SpanConfig(max_answer_length=2))[0][0].text == "two"
    assert len(best_answers(logits, data, SpanConfig(num_best=3))[0]) == 3


def test_answers_have_no_surrounding_white_space() -> None:
    """The offsets of byte-level tokenizers include the space before a word."""
    data = make_windows([[(0, 5)]])
    characters = np.array([(-1, -1), (0, 3), (3, 7), (7, 13), (13, 18), (18, 23), (-1, -1)], np.int32)
    logits = logits_of(([0, 0, 9, 0, 0, 0, 0], [0, 0, 9, 0, 0, 0, 0]))
    best = best_answers(logits, dataclasses.replace(data, characters=characters), SpanConfig())[0][0]
    assert (best.text, best.begin, best.end) == ("two", 4, 7)


def test_span_in_several_windows_is_listed_once_with_its_best_score() -> None:
    data = make_windows([[(0, 4), (2, 5)]])
    logits = logits_of(([0, 0, 0, 3, 0, 0], [0, 0, 0, 3, 0, 0]), ([0, 4, 0, 0, 0], [0, 4, 0, 0, 0]))
    best = best_answers(logits, data, SpanConfig())[0]
    assert (best[0].text, best[0].score) == ("three", 8.0)
    assert [answer.text for answer in best].count("three") == 1


@pytest.mark.parametrize(("threshold", "text"), [(0.0, ""), (3.9, ""), (4.0, "two"), (5.0, "two")])
def test_no_answer_wins_if_its_margin_exceeds_the_threshold(threshold: float, text: str) -> None:
    data = make_windows([[(0, 5), (0, 5)]])
    # "No answer" has the score 12 in one window and 10 in the other. The lower score counts. The best span has the
    # score 6.
    two = ([6, 0, 3, 0, 0, 0, 0], [6, 0, 3, 0, 0, 0, 0])
    logits = logits_of(two, ([5, *two[0][1:]], [5, *two[1][1:]]))
    best = best_answers(logits, data, SpanConfig(no_answer=True, no_answer_threshold=threshold))[0]
    assert best[0].text == text
    assert [answer.score for answer in best if not answer.text] == [10.0]
    assert all(answer.text for answer in best_answers(logits, data, SpanConfig())[0])


def test_no_answer_is_ranked_by_its_score() -> None:
    data = make_windows([[(0, 3)]])
    logits = logits_of(([1, 3, 2, 0, 0], [1, 3, 2, 0, 0]))
    best = best_answers(logits, data, SpanConfig(no_answer=True))[0]
    assert [answer.score for answer in best] == [6, 5, 4, 3, 2, 2, 0]
    assert best[5].text == ""


def test_context_without_tokens_has_no_answer() -> None:
    best = best_answers(logits_of(([1, 0], [1, 0])), make_windows([[(0, 0)]], [""]), SpanConfig())
    assert [(answer.text, answer.probability) for answer in best[0]] == [("", 1.0)]


def search(
    logits: np.ndarray, windows: list[tuple[int, int]], longest: int, count: int
) -> list[tuple[float, tuple[int, int]]]:
    """Searches every span of every window with plain loops."""
    found: dict[tuple[int, int], float] = {}
    for number, (begin, end) in enumerate(windows):
        for first in range(begin, end):
            for last in range(first, min(end, first + longest)):
                span = (CHARACTERS[first][0], CHARACTERS[last][1])
                score = float(logits[number, first - begin + 1, 0] + logits[number, last - begin + 1, 1])
                found[span] = max(score, found.get(span, -np.inf))
    return sorted(((score, span) for span, score in found.items()), key=lambda item: (-item[0], item[1]))[:count]


@settings(deadline=None)
@given(
    windows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=3),
    longest=st.integers(1, 6),
    count=st.integers(1, 12),
    seed=st.integers(0, 2**31),
)
def test_best_answers_equal_an_exhaustive_search(
    windows: list[tuple[int, int]], longest: int, count: int, seed: int
) -> None:
    windows = [(begin, min(5, begin + size)) for begin, size in windows]
    logits = np.random.default_rng(seed).normal(size=(len(windows), 7, 2)).astype(np.float32)
    config = SpanConfig(max_answer_length=longest, num_best=count)
    best = best_answers(logits, make_windows([windows]), config)[0]
    expected = search(logits, windows, longest, count)
    assert [(answer.begin, answer.end) for answer in best] == [span for _, span in expected]
    assert [answer.score for answer in best] == pytest.approx([score for score, _ in expected])
