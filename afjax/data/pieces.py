"""The pieces of a tokenised row: the token ids of each text, and the special tokens around them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from afjax.errors import UserError

# Texts per call of the tokenizer: enough to keep its threads busy, few enough to bound its memory use.
CHUNK = 16384


@dataclass(frozen=True)
class Pieces:
    """Concatenated token ids of texts, without special tokens.

    Attributes:
      tokens: int32 [tokens].
      offsets: int64 [texts + 1]; the tokens of text ``i`` are ``tokens[offsets[i] : offsets[i + 1]]``.
      characters: int32 [tokens, 2], the start and the end (exclusive) of each token in its text in characters; None if
        not requested.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    characters: np.ndarray | None


@dataclass(frozen=True)
class Template:
    """The special tokens before, between and after the texts of a row.

    Attributes:
      specials: Lists of token ids: one before each text, and one after the last.
      special_types: The token types of ``specials``.
      types: The token type of each text.
    """

    specials: tuple[list[int], ...]
    special_types: tuple[list[int], ...]
    types: tuple[int, ...]

    @property
    def num_special(self) -> int:
        return sum(map(len, self.specials))


def plain_backend(tokenizer: Any) -> Any:
    """Returns a tokenizer's backend (of the tokenizers library), without padding and truncation.

    If the backend pads or truncates, the result is a copy of it.
    """
    check_fast(tokenizer)
    backend = tokenizer.backend_tokenizer
    if backend.padding is None and backend.truncation is None:
        return backend
    backend = type(backend).from_str(backend.to_str())
    backend.no_padding()
    backend.no_truncation()
    return backend


def check_fast(tokenizer: Any) -> None:
    """Raises UserError unless a tokenizer of transformers is a fast tokenizer."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"The tokenizer {type(tokenizer).__name__} is not a fast one; give a trunk that has a tokenizer.json."
        )


def number_texts(*columns: Iterable[str]) -> tuple[list[str], list[np.ndarray]]:
    """Deduplicates texts. Returns the unique texts, and for each column the indices of its texts, int64 [rows]."""
    numbers: dict[str, int] = {}
    indices = [np.array([numbers.setdefault(text, len(numbers)) for text in column], np.int64) for column in columns]
    return list(numbers), indices


def encode_texts(backend: Any, texts: Sequence[str], *, characters: bool = False) -> Pieces:
    """Tokenises texts with a backend from :func:`plain_backend`."""
    tokens, lengths, places = [], [0], []
    encode = backend.encode_batch if characters else backend.encode_batch_fast
    for start in range(0, len(texts), CHUNK):
        encodings = encode(list(texts[start : start + CHUNK]), add_special_tokens=False)
        lengths += [len(encoding) for encoding in encodings]
        tokens.append(np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32))
        if characters:
            places += [np.array(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
    offsets = np.cumsum(lengths, dtype=np.int64)
    return Pieces(np.concatenate(tokens), offsets, np.concatenate(places) if characters else None)


def learn_template(backend: Any, tokenizer: Any, *, pair: bool) -> Template:
    """Determines a tokenizer's special tokens by encoding a short text or pair.

    All types are 0 if the model has no token types.
    """
    encoding = backend.encode("a", "a") if pair else backend.encode("a")
    types = encoding.type_ids if "token_type_ids" in tokenizer.model_input_names else [0] * len(encoding)
    ends = [0]
    for text in range(1 + pair):
        places = [place for place, owner in enumerate(encoding.sequence_ids) if owner == text]
        assert places == list(range(places[0], places[-1] + 1)), "a text's tokens are contiguous"
        assert places[0] >= ends[-1], "the second text comes after the first"
        ends += [places[0], places[-1] + 1]
    cuts = [slice(begin, end) for begin, end in zip(ends[::2], [*ends[1::2], len(encoding)], strict=True)]
    return Template(
        tuple(encoding.ids[cut] for cut in cuts),
        tuple(types[cut] for cut in cuts),
        tuple(types[begin] for begin in ends[1::2]),
    )


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenates ``arange(start, start + length)`` for all starts and lengths; int64."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
