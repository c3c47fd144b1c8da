"""The parts of a tokenized row: token ids of texts, and special tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from afjax.errors import UserError

# Texts per tokenizer call: enough to keep its threads busy, few enough to bound its memory use.
CHUNK = 16384


@dataclass(frozen=True)
class Pieces:
    """Concatenated token ids of several texts, without special tokens.

    Attributes:
      tokens: int32 [tokens].
      offsets: int64 [texts + 1]; the tokens of text ``i`` are ``tokens[offsets[i] : offsets[i + 1]]``.
      characters: int32 [tokens, 2], the character offsets of each token's start and end (exclusive) in its text; None
        if not requested.
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

    def room(self, max_length: int, *, least: int = 1) -> int:
        """Returns how many of a row's ``max_length`` tokens are left for its texts.

        Raises:
          UserError: Fewer than ``least`` are left.
        """
        room = max_length - self.num_special
        if room < least:
            raise UserError(
                f"max_length is {max_length}, but each row has {self.num_special} special tokens; increase it."
            )
        return room


def plain_backend(tokenizer: Any) -> Any:
    """Returns the tokenizer's backend, with padding and truncation disabled.

    The backend is from the tokenizers library. It is copied first if padding or truncation was enabled.
    """
    check_fast(tokenizer)
    backend = tokenizer.backend_tokenizer
    if backend.padding is None and backend.truncation is None:
        return backend
    copy = type(backend).from_str(backend.to_str())
    # to_str does not contain this setting.
    copy.encode_special_tokens = backend.encode_special_tokens
    copy.no_padding()
    copy.no_truncation()
    return copy


def check_fast(tokenizer: Any) -> None:
    """Raises UserError unless the transformers tokenizer is a fast one."""
    if not getattr(tokenizer, "is_fast", False):
        raise UserError(
            f"The tokenizer {type(tokenizer).__name__} is not a fast tokenizer; use a trunk that has a tokenizer.json."
        )


def number_texts(*columns: Iterable[str]) -> tuple[list[str], list[np.ndarray]]:
    """Deduplicates texts.

    Returns the unique texts and, for each column, indices into these texts, int64 [rows].
    """
    numbers: dict[str, int] = {}
    indices = [np.array([numbers.setdefault(text, len(numbers)) for text in column], np.int64) for column in columns]
    return list(numbers), indices


def encode_texts(backend: Any, texts: Sequence[str], *, characters: bool = False) -> Pieces:
    """Tokenizes texts with a backend from :func:`plain_backend`."""
    tokens, lengths, bounds = [], [0], []
    encode = backend.encode_batch if characters else backend.encode_batch_fast
    for start in range(0, len(texts), CHUNK):
        encodings = encode(list(texts[start : start + CHUNK]), add_special_tokens=False)
        lengths += [len(encoding) for encoding in encodings]
        tokens.append(np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), np.int32))
        if characters:
            bounds += [np.array(encoding.offsets, np.int32).reshape(-1, 2) for encoding in encodings]
    offsets = np.cumsum(lengths, dtype=np.int64)
    return Pieces(np.concatenate(tokens), offsets, np.concatenate(bounds) if characters else None)


def encode_rows(backend: Any, texts: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields each text's token ids and character offsets, as in :class:`Pieces`. Tokenizes repeated texts only once."""
    distinct, (numbers,) = number_texts(texts)
    pieces = encode_texts(backend, distinct, characters=True)
    assert pieces.characters is not None, "requested above"
    for number in numbers:
        part = slice(*pieces.offsets[number : number + 2])
        yield pieces.tokens[part], pieces.characters[part]


def learn_template(backend: Any, tokenizer: Any, *, pair: bool) -> Template:
    """Infers a tokenizer's special tokens by encoding a short text or pair.

    All token types are 0 if the model does not use them.

    Raises:
      UserError: The tokenizer has no tokens for any text.
    """
    text = "a" if _has_tokens(backend, "a") else _text_with_tokens(backend)
    encoding = backend.encode(text, text) if pair else backend.encode(text)
    types = encoding.type_ids if "token_type_ids" in tokenizer.model_input_names else [0] * len(encoding)
    ends = [0]
    for number in range(1 + pair):
        positions = [position for position, sequence in enumerate(encoding.sequence_ids) if sequence == number]
        assert positions == list(range(positions[0], positions[-1] + 1)), "a text's tokens are contiguous"
        assert positions[0] >= ends[-1], "the second text comes after the first"
        ends += [positions[0], positions[-1] + 1]
    gaps = [slice(begin, end) for begin, end in zip(ends[::2], [*ends[1::2], len(encoding)], strict=True)]
    return Template(
        tuple(encoding.ids[gap] for gap in gaps),
        tuple(types[gap] for gap in gaps),
        tuple(types[begin] for begin in ends[1::2]),
    )


def _has_tokens(backend: Any, text: str) -> bool:
    return bool(backend.encode(text, add_special_tokens=False).ids)


def _text_with_tokens(backend: Any) -> str:
    """Finds a text that has tokens. A vocabulary without an unknown token may have none for "a"."""
    # This lists the whole vocabulary, which takes too long to do for every request of a server.
    for text in backend.get_vocab(with_added_tokens=False):
        if _has_tokens(backend, text):
            return str(text)
    raise UserError("The trunk's tokenizer has no tokens for any text; fetch it again.")


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenates the ranges ``arange(start, start + length)``; int64."""
    ends = np.cumsum(lengths)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(ends[-1] if len(ends) else 0)
