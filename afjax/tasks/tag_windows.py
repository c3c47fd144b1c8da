"""Tokenizes tagged sentences and splits long ones into overlapping windows."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Int32, Int64

from afjax.config.tasks import TaskConfig
from afjax.data.cache import Arrays, cached_arrays
from afjax.data.pieces import encode_rows, learn_template, plain_backend
from afjax.data.sources.files import shorten
from afjax.data.splits import TagRows
from afjax.errors import UserError
from afjax.tasks.windows import TokenizedWindows, join_windows

VERSION = "tags 2"

# Maximum overlap of consecutive windows, in tokens.
OVERLAP = 64


@dataclass(frozen=True, kw_only=True)
class TokenizedTags(TokenizedWindows):
    """The windows of a tagging split.

    Attributes:
      word_of: For each token, the index of the word whose tag it predicts, or -1. A word's tag is predicted at its
        first token. If that token occurs in several windows, the one with the most context on both sides is used.
      rows: The split.
    """

    word_of: Int32[np.ndarray, "tokens"]
    rows: TagRows


def tokenize_tags(
    rows: TagRows, tokenizer: Any, task: TaskConfig, *, max_length: int, training: bool, cache_dir: Path | None
) -> TokenizedTags:
    """Tokenizes sentences, or loads their token ids from the cache.

    Sentences of more than ``max_length`` tokens are split into windows. Consecutive windows overlap by half of their
    tokens, up to :data:`OVERLAP`.

    Args:
      rows: The split.
      tokenizer: A fast transformers tokenizer.
      task, training: Not used; see ``KindSpec.tokenize``.
      max_length: Maximum number of tokens per window.
      cache_dir: The cache folder, or None to disable the cache. Files are named by a digest of everything that the
        token ids depend on.

    Returns:
      The windows, with token labels if the split has tags.

    Raises:
      UserError: The tokenizer is not fast, ``max_length`` leaves no room for text, a word has no tokens, or the cache
        is not writable.
    """
    arrays = cached_arrays(
        rows, tokenizer, VERSION, f"{max_length}", lambda: _make_windows(rows, tokenizer, max_length), cache_dir
    )
    token_labels = None if rows.labels is None else _token_labels(rows, arrays)
    return TokenizedTags(**arrays, labels=None, truncated=0, rows=rows, token_labels=token_labels)


def check_words(rows: TagRows, tokenizer: Any, name: str) -> None:
    """Raises UserError if a word has no tokens or the tokenizer is not fast.

    ``name`` is the split's name in the error message.
    """
    for row, (_, characters) in enumerate(encode_rows(plain_backend(tokenizer), rows.texts)):
        first_tokens(rows, row, characters, name)


def _make_windows(rows: TagRows, tokenizer: Any, max_length: int) -> Arrays:
    backend = plain_backend(tokenizer)
    template = learn_template(backend, tokenizer, pair=False)
    room = template.room(max_length)
    before, after = (np.array(ids, np.int32) for ids in template.specials)
    types_before, types_after = (np.array(types, np.int8) for types in template.special_types)
    parts: dict[str, list[np.ndarray]] = {"tokens": [], "types": [], "word_of": []}
    row_of = list[int]()
    for row, (ids, characters) in enumerate(encode_rows(backend, rows.texts)):
        word_of = first_tokens(rows, row, characters)
        for begin, end, owned in _windows(len(ids), room):
            words = np.where(owned, word_of[begin:end], -1).astype(np.int32)
            edges = np.full(len(before), -1, np.int32), np.full(len(after), -1, np.int32)
            parts["tokens"].append(np.concatenate([before, ids[begin:end], after]).astype(np.int32))
            parts["types"].append(
                np.concatenate([types_before, np.full(end - begin, template.types[0], np.int8), types_after])
            )
            parts["word_of"].append(np.concatenate([edges[0], words, edges[1]]))
            row_of.append(row)
    return join_windows(parts, row_of)


def first_tokens(
    rows: TagRows, row: int, characters: Int[np.ndarray, "tokens 2"], name: str = "the split"
) -> Int64[np.ndarray, "tokens"]:
    """Finds the first token of each word in a sentence.

    Args:
      rows: The split.
      row: The sentence's index.
      characters: The character offsets of each token's start and end. The start can be white space before the word, as
        in RoBERTa's tokenizer.
      name: The split's name in error messages.

    Returns:
      For each token, the index of the word that starts with it, or -1. Tokens of white space after the last word
      (RoBERTa's tokenizer has them) start no word.

    Raises:
      UserError: A word has no tokens.
    """
    bounds = rows.bounds[row]
    words = np.searchsorted(bounds[:, 1], characters[:, 0], side="right")
    first = np.full(len(characters), -1, np.int64)
    present, positions = np.unique(words, return_index=True)
    in_word = present < len(bounds)
    first[positions[in_word]] = present[in_word]
    if missing := sorted(set(range(len(bounds))) - set(present.tolist())):
        word = rows.texts[row][slice(*bounds[missing[0]])]
        raise UserError(
            f"Row {row + 1} of {name} has the word {shorten(word)} (number {missing[0] + 1}), which has no tokens in "
            "the trunk's tokenizer; remove or replace it."
        )
    return first


def _windows(num_tokens: int, room: int) -> list[tuple[int, int, Bool[np.ndarray, "_tokens"]]]:
    """Splits a sentence into windows.

    Returns:
      ``(first token, end token, owned)`` of each window. ``owned`` marks the tokens whose tags are predicted in this
      window rather than in an overlapping one.
    """
    if num_tokens <= room:
        return [(0, num_tokens, np.ones(num_tokens, bool))]
    overlap = min(room // 2, OVERLAP)
    begins = range(0, num_tokens - overlap, room - overlap)
    # The middle of an overlap divides its tokens, so that each has the more context in its window. The left window gets
    # the middle token of an odd number.
    firsts = [0, *(begin + (overlap + 1) // 2 for begin in begins[1:]), num_tokens]
    windows = []
    for begin, (first, after) in zip(begins, itertools.pairwise(firsts), strict=True):
        tokens = np.arange(begin, min(begin + room, num_tokens))
        windows.append((begin, begin + len(tokens), (first <= tokens) & (tokens < after)))
    return windows


def _token_labels(rows: TagRows, arrays: dict[str, np.ndarray]) -> Int32[np.ndarray, "tokens"]:
    """Labels each token that predicts a word's tag. Other tokens get -1."""
    assert rows.labels is not None, "the split is labeled"
    index_of = {tag: index for index, tag in enumerate(rows.label_names)}
    row_labels = [np.array([index_of[tag] for tag in tags], np.int32) for tags in rows.labels]
    starts = np.cumsum([0, *map(len, row_labels)])
    token_rows = np.repeat(arrays["row_of"], np.diff(arrays["offsets"]))
    word_of = arrays["word_of"]
    all_labels = np.concatenate(row_labels)
    labels = all_labels[np.where(word_of >= 0, starts[token_rows] + word_of, 0)]
    return np.where(word_of >= 0, labels, -1).astype(np.int32)
