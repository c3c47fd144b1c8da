"""Tokenizes questions and contexts, and splits long contexts into windows."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int32, Shaped

from afjax.config.tasks import SpanConfig, TaskConfig
from afjax.data.cache import Arrays, cached_arrays
from afjax.data.pieces import encode_rows, encode_texts, learn_template, plain_backend
from afjax.data.splits import AnyRows, SpanRows
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError

VERSION = "windows 1"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedWindows(TokenizedRows):
    """The windows of a split. Each window is an entry of :class:`TokenizedRows`.

    Attributes:
      row_of: The row index of each window, in ascending order.
      rows: The split.
    """

    row_of: Int32[np.ndarray, "windows"]
    rows: AnyRows

    @property
    def true_labels(self) -> Any:
        return self.rows.labels

    @property
    def shares(self) -> Float32[np.ndarray, "windows"]:
        """Each window's token count as a fraction of its row's total over windows."""
        totals = np.bincount(self.row_of, weights=self.lengths)
        return (self.lengths / totals[self.row_of]).astype(np.float32)

    def per_row(self, values: Float[np.ndarray, "windows *shape"]) -> Float[np.ndarray, "rows *shape"]:
        """Averages values over the tokens of each row's windows."""
        means = np.zeros((len(self.rows), *values.shape[1:]), values.dtype)
        shares = self.shares.reshape(-1, *[1] * (values.ndim - 1))
        np.add.at(means, self.row_of, values * shares)
        return means

    def source_row(self, index: int) -> tuple[int, int]:
        return int(self.row_of[index]), len(self.rows)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenizedSpans(TokenizedWindows):
    """The windows of a span split.

    Attributes:
      characters: The character offsets of each context token's start and end. -1 for other tokens.
      rows: The split.
    """

    characters: Int32[np.ndarray, "tokens 2"]
    rows: SpanRows


def tokenize_spans(
    rows: SpanRows, tokenizer: Any, task: TaskConfig, *, max_length: int, training: bool, cache_dir: Path | None
) -> TokenizedSpans:
    """Tokenizes questions and contexts, or loads their token ids from the cache.

    A window contains the special tokens, the question and part of the context. Consecutive windows start
    ``task.span.doc_stride`` tokens apart, but at most half of the room for context, so that they overlap. A window's
    label is the first and last token of the row's first answer. If the window does not contain the entire answer, both
    are 0, the index of the first special token.

    Args:
      rows: The split.
      tokenizer: A fast transformers tokenizer.
      task: The task, which provides the stride and maximum lengths.
      max_length: Maximum number of tokens per window.
      training: Whether to label the windows. If so, rows with unknown answer starts are skipped with a warning.
      cache_dir: The cache folder, or None to disable the cache. Files are named by a digest of everything that the
        token ids depend on.

    Returns:
      The windows. They are labeled if ``training`` is true.

    Raises:
      UserError: The tokenizer is not fast, ``max_length`` leaves no room for a question and context, no row is usable
        for training, or the cache is not writable.
    """
    if training:
        assert rows.labels is not None, "training rows have answers"
        trainable = rows.trainable()
        if not trainable:
            raise UserError("No row has a known answer start; add answer_start to the train rows' answers.")
        if len(trainable) < len(rows):
            warnings.warn(
                f"{len(rows) - len(trainable)} of {len(rows)} train rows are skipped because their answer_start is "
                "unknown.",
                stacklevel=2,
            )
            rows = rows.take(trainable)
    settings = f"{task.span.doc_stride} {task.span.max_question_length} {max_length}"
    arrays = cached_arrays(
        rows, tokenizer, VERSION, settings, lambda: _make_windows(rows, tokenizer, task.span, max_length), cache_dir
    )
    truncated = int(arrays.pop("truncated"))
    data = TokenizedSpans(**arrays, labels=None, truncated=truncated, rows=rows)
    return dataclasses.replace(data, labels=_labels(data)) if training else data


def _make_windows(rows: SpanRows, tokenizer: Any, config: SpanConfig, max_length: int) -> Arrays:
    backend = plain_backend(tokenizer)
    template = learn_template(backend, tokenizer, pair=True)
    # Reserve at least half of a window, without special tokens, for the context.
    texts_room = template.room(max_length, least=2)
    longest_question = min(config.max_question_length, texts_room // 2)
    questions = encode_texts(backend, rows.questions)
    parts: dict[str, list[np.ndarray]] = {"tokens": [], "types": [], "characters": []}
    row_of, truncated = list[int](), 0
    for row, (ids, characters) in enumerate(encode_rows(backend, rows.contexts)):
        question = questions.tokens[questions.offsets[row] : questions.offsets[row + 1]][:longest_question]
        front = np.concatenate([template.specials[0], question, template.specials[1]])
        question_types = [template.types[0]] * len(question)
        front_types = [*template.special_types[0], *question_types, *template.special_types[1]]
        room = texts_room - len(question)
        step = min(config.doc_stride, max(1, room // 2))
        begins = range(0, max(1, len(ids) - room + step), step)
        truncated += len(begins) > 1
        for begin in begins:
            piece = ids[begin : begin + room]
            front_characters = np.full((len(front), 2), -1, np.int32)
            end_characters = np.full((len(template.specials[2]), 2), -1, np.int32)
            parts["tokens"].append(np.concatenate([front, piece, template.specials[2]]).astype(np.int32))
            types = [*front_types, *[template.types[1]] * len(piece), *template.special_types[2]]
            parts["types"].append(np.array(types, np.int8))
            parts["characters"].append(
                np.concatenate([front_characters, characters[begin : begin + room], end_characters])
            )
            row_of.append(row)
    return {**join_windows(parts, row_of), "truncated": np.array(truncated)}


def join_windows(parts: Mapping[str, Sequence[Shaped[np.ndarray, "..."]]], row_of: Sequence[int]) -> Arrays:
    """Concatenates the arrays of all windows, and adds ``offsets`` and ``row_of``.

    Args:
      parts: ``{name: one array per window}``, with ``tokens``.
      row_of: Each window's row.
    """
    return {
        **{name: np.concatenate(arrays) for name, arrays in parts.items()},
        "offsets": np.cumsum([0, *map(len, parts["tokens"])], dtype=np.int64),
        "row_of": np.array(row_of, np.int32),
    }


def _labels(data: TokenizedSpans) -> Int32[np.ndarray, "windows 2"]:
    """Finds the answer's first and last token in each window.

    Both are 0 if the answer is incomplete.
    """
    assert data.rows.labels is not None, "training rows have answers"
    labels = np.zeros((len(data), 2), np.int32)
    # For each window, the start and end in the context of its tokens that overlap with the answer.
    bounds = np.full((len(data), 2), -1, np.int64)
    for window, row in enumerate(data.row_of):
        for text, begin in data.rows.labels[row][:1]:
            characters = data.characters[data.offsets[window] : data.offsets[window + 1]]
            (inside,) = np.nonzero((characters[:, 1] > begin) & (characters[:, 0] < begin + len(text)))
            if len(inside):
                labels[window] = inside[0], inside[-1]
                bounds[window] = characters[inside[0], 0], characters[inside[-1], 1]
    # A window contains the complete answer if it has all of the answer's tokens that occur in any of the row's windows.
    # Comparing these offsets with the answer's own would fail if it has leading or trailing white space, which is not
    # part of any token.
    first = np.full(len(data.rows), np.iinfo(np.int64).max)
    last = np.full(len(data.rows), -1)
    np.minimum.at(first, data.row_of, np.where(bounds[:, 0] < 0, np.iinfo(np.int64).max, bounds[:, 0]))
    np.maximum.at(last, data.row_of, bounds[:, 1])
    is_complete = (bounds[:, 0] == first[data.row_of]) & (bounds[:, 1] == last[data.row_of])
    return np.where(is_complete[:, None], labels, 0)
