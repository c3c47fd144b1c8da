"""Tokenises splits and caches their token ids by content."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from afjax.data.cache import read_arrays, write_arrays
from afjax.data.pieces import CHUNK, check_fast, encode_texts, learn_template, number_texts, plain_backend, ranges
from afjax.data.splits import ChoiceRows, Rows
from afjax.errors import UserError

# Part of the cache key. Increment it when the content or the computation of the stored arrays changes.
FORMAT_VERSION = 1


@dataclass(frozen=True)
class TokenisedRows:
    """The concatenated token ids of a split.

    A row has one sequence, or one per choice for multiple choice.

    Attributes:
      tokens: int32 [tokens].
      types: int8 [tokens], 0 for the first text and 1 for the second; all 0 if the tokenizer has no token types.
      offsets: int64 [sequences + 1]; the tokens of sequence ``i`` are ``tokens[offsets[i] : offsets[i + 1]]``.
      labels: int32 or float32 [rows], the split's labels; None if it is not labelled. For span tasks int32 [rows, 2],
        the answer's first and last token. For multi-label tasks float32 [rows, labels].
      truncated: Number of sequences that were truncated to the maximum length.
      choices: int64 [rows + 1] for multiple choice, else None. Row ``i`` has the sequences from ``choices[i]`` up to,
        but not including, ``choices[i + 1]``.
      token_labels: int32 [tokens] for tagging, else None: the label of each token, or -1 for tokens without one. In
        batches they replace ``labels``.
    """

    tokens: np.ndarray
    types: np.ndarray
    offsets: np.ndarray
    labels: np.ndarray | None
    truncated: int
    choices: np.ndarray | None = None
    token_labels: np.ndarray | None = None

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.offsets if self.choices is None else self.choices) - 1

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each row; for multiple choice, of the row's longest sequence. int64 [rows]."""
        lengths = np.diff(self.offsets)
        return lengths if self.choices is None else np.maximum.reduceat(lengths, self.choices[:-1])

    @property
    def num_choices(self) -> int:
        """The maximum number of sequences per row."""
        return 1 if self.choices is None else int(np.diff(self.choices).max())

    @property
    def right_labels(self) -> Any:
        """The correct labels to score predictions with, one per row of the split. None if the split is not labelled."""
        return self.labels

    def per_row(self, values: np.ndarray) -> np.ndarray:
        """Converts one value per row or window to one value per row of the split.

        Here these are the same. ``TokenisedWindows`` averages over the windows of a row.
        """
        return values

    def source_row(self, index: int) -> tuple[int, int]:
        """Returns the index in the split of row or window ``index``, and the split's number of rows.

        Here the indices are the same. In ``TokenisedWindows``, several windows can belong to one row.
        """
        return index, len(self)


def tokenise(rows: Rows | ChoiceRows, tokenizer: Any, *, max_length: int, cache_dir: Path | None) -> TokenisedRows:
    """Tokenises a split, or reads its token ids from the cache.

    Args:
      rows: Texts, pairs, or contexts with choices. A pair that is too long is truncated by :func:`cut_longest`, on the
        tokenizer's ``truncation_side``.
      tokenizer: A fast tokenizer of transformers.
      max_length: Maximum number of tokens per sequence, including special tokens.
      cache_dir: The cache's folder. File names are digests of everything that the token ids depend on. None disables
        the cache.

    Raises:
      UserError: The tokenizer is not a fast one, ``max_length`` leaves no room for text, or the cache is not writable.
    """
    if isinstance(rows, ChoiceRows):
        pairs = tokenise(rows.pairs(), tokenizer, max_length=max_length, cache_dir=cache_dir)
        choices = np.concatenate([[0], np.cumsum(rows.num_choices)])
        return replace(pairs, labels=rows.labels, choices=choices)
    check_fast(tokenizer)
    if cache_dir is None:
        return replace(run_tokenizer(rows, tokenizer, max_length), labels=rows.labels)
    path = cache_dir / f"{cache_key(rows, tokenizer, max_length)}.npz"
    data = read_cache(path, len(rows))
    if data is None:
        data = run_tokenizer(rows, tokenizer, max_length)
        write_cache(path, data)
    return replace(data, labels=rows.labels)


def run_tokenizer(rows: Rows, tokenizer: Any, max_length: int) -> TokenisedRows:
    """Computes token ids, without labels.

    Repeated texts are tokenised only once: for example, MNLI has each premise in three rows.
    """
    backend, from_left = plain_backend(tokenizer), truncates_left(tokenizer)
    columns = [rows.text_a] if rows.text_b is None else [rows.text_a, rows.text_b]
    template = learn_template(backend, tokenizer, pair=len(columns) == 2)
    room = max_length - template.num_special
    if room < 1:
        raise UserError(
            f"max_length is {max_length}, but a row has {template.num_special} special tokens; give a larger one."
        )
    texts, numbers = number_texts(*columns)
    pieces = encode_texts(backend, texts)
    lengths = np.diff(pieces.offsets)
    full = [lengths[column] for column in numbers]
    cut = [np.minimum(full[0], room)] if rows.text_b is None else cut_longest(full[0], full[1], room)
    offsets = np.concatenate([[0], np.cumsum(sum(cut) + template.num_special)]).astype(np.int64)
    data = TokenisedRows(
        np.empty(offsets[-1], np.int32),
        np.empty(offsets[-1], np.int8),
        offsets,
        None,
        int((sum(full) > room).sum()),
    )
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        places = offsets[:-1][part].copy()
        for number, (ids, types) in enumerate(zip(template.specials, template.special_types, strict=True)):
            for token, type_ in zip(ids, types, strict=True):
                data.tokens[places], data.types[places] = token, type_
                places += 1
            if number < len(columns):
                count, first = cut[number][part], pieces.offsets[numbers[number][part]]
                if from_left:
                    first = first + full[number][part] - count
                targets = ranges(places, count)
                data.tokens[targets] = pieces.tokens[ranges(first, count)]
                data.types[targets] = template.types[number]
                places += count
    return data


def truncates_left(tokenizer: Any) -> bool:
    """Whether a text that is too long loses its first tokens (``truncation_side`` in tokenizer_config.json)."""
    return bool(getattr(tokenizer, "truncation_side", "right") == "left")


def cut_longest(first: np.ndarray, second: np.ndarray, room: int) -> list[np.ndarray]:
    """Returns the number of tokens to keep of both texts of each pair, truncating the longer text first.

    A pair with at most ``room`` tokens is not truncated. If both texts are longer than half of ``room``, each keeps one
    half. If ``room`` is odd, the longer text gets the remaining token, or the second text if both are equally long. If
    only one text is longer than half, it keeps the tokens that the other one leaves. This matches ``longest_first`` of
    the tokenizers library.
    """
    short, long = np.minimum(first, second), np.maximum(first, second)
    halved = 2 * short > room
    fits = first + second <= room
    kept_short = np.where(fits, short, np.where(halved, room // 2, short))
    kept_long = np.where(fits, long, np.where(halved, room - room // 2, room - short))
    swapped = first > second
    return [np.where(swapped, kept_long, kept_short), np.where(swapped, kept_short, kept_long)]


def cache_key(rows: Rows, tokenizer: Any, max_length: int) -> str:
    """Returns the SHA-256 (hex) of everything that the token ids depend on."""
    names = ",".join([*tokenizer.model_input_names, *(["left"] if truncates_left(tokenizer) else [])])
    tokenizer_digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    everything = (
        f"{FORMAT_VERSION} {tokenizers.__version__} {max_length} {names} {tokenizer_digest} {rows.texts_digest()}"
    )
    return hashlib.sha256(everything.encode()).hexdigest()


def read_cache(path: Path, num_rows: int) -> TokenisedRows | None:
    """Reads the token ids that :func:`write_cache` wrote. Returns None if they are missing or damaged."""
    arrays = read_arrays(path)
    if arrays is None or arrays.keys() != {"tokens", "types", "offsets", "truncated"}:
        return None
    data = TokenisedRows(arrays["tokens"], arrays["types"], arrays["offsets"], None, int(arrays["truncated"]))
    sound = (
        len(data) == num_rows
        and (data.tokens.dtype, data.types.dtype, data.offsets.dtype) == (np.int32, np.int8, np.int64)
        and len(data.tokens) == len(data.types) == data.offsets[-1]
    )
    return data if sound else None


def write_cache(path: Path, data: TokenisedRows) -> None:
    arrays = {
        "tokens": data.tokens,
        "types": data.types,
        "offsets": data.offsets,
        "truncated": np.array(data.truncated),
    }
    write_arrays(path, arrays)
