"""Tokenizes splits and caches the token ids by content."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from afjax.data.cache import Arrays, cached_arrays
from afjax.data.pieces import CHUNK, encode_texts, learn_template, number_texts, plain_backend, ranges
from afjax.data.splits import ChoiceRows, Rows

VERSION = "1"


@dataclass(frozen=True)
class TokenizedRows:
    """The concatenated token ids of a split.

    Each row has one sequence, or one per choice for multiple choice.

    Attributes:
      tokens: int32 [tokens].
      types: int8 [tokens], 0 for the first text and 1 for the second; all 0 if the tokenizer has no token types.
      offsets: int64 [sequences + 1]; the tokens of sequence ``i`` are ``tokens[offsets[i] : offsets[i + 1]]``.
      labels: int32 or float32 [rows]; None if the split is unlabeled. For span tasks, int32 [rows, 2], the answer's
        first and last token. For multi-label tasks, float32 [rows, labels].
      truncated: Number of sequences truncated to the maximum length.
      choices: int64 [rows + 1] for multiple choice, else None. Row ``i`` has the sequences ``choices[i]`` to
        ``choices[i + 1] - 1``.
      token_labels: int32 [tokens] for tagging, else None: the label of each token, or -1 for tokens without a label. In
        batches, these replace ``labels``.
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

    # Cached, because it takes time proportional to the split, and loops over batches use it once per batch.
    @cached_property
    def lengths(self) -> np.ndarray:
        """Number of tokens in each row's longest sequence, int64 [rows]."""
        lengths = np.diff(self.offsets)
        return lengths if self.choices is None else np.maximum.reduceat(lengths, self.choices[:-1])

    @cached_property
    def num_choices(self) -> int:
        """Maximum number of sequences per row."""
        return 1 if self.choices is None else int(np.diff(self.choices).max())

    @property
    def true_labels(self) -> Any:
        """The true labels for evaluation, one per row of the split.

        None if the split is unlabeled.
        """
        return self.labels

    def per_row(self, values: np.ndarray) -> np.ndarray:
        """Aggregates values to one per row of the split.

        This base class returns them unchanged. ``TokenizedWindows`` averages over each row's windows.
        """
        return values

    def source_row(self, index: int) -> tuple[int, int]:
        """Maps row or window ``index`` to its row in the split.

        Also returns the split's number of rows. This base class returns the index unchanged. In ``TokenizedWindows``, a
        row can have several windows.
        """
        return index, len(self)

    def source_rows(self, indices: Iterable[int]) -> list[int]:
        """Maps the indices of a batch's rows or windows to rows of the split.

        Padding (index -1) and repeated rows are left out.
        """
        return list(dict.fromkeys(self.source_row(int(index))[0] for index in indices if index >= 0))


def tokenize_rows(rows: Rows | ChoiceRows, tokenizer: Any, *, max_length: int, cache_dir: Path | None) -> TokenizedRows:
    """Tokenizes a split, or loads its token ids from the cache.

    Args:
      rows: Texts, pairs, or contexts with choices. Long pairs are truncated by :func:`cut_longest`, on the tokenizer's
        ``truncation_side``.
      tokenizer: A fast transformers tokenizer.
      max_length: Maximum number of tokens per sequence, including special tokens.
      cache_dir: The cache folder, or None to disable the cache. Files are named by a digest of everything that the
        token ids depend on.

    Raises:
      UserError: The tokenizer is not fast, ``max_length`` leaves no room for text, or the cache is not writable.
    """
    if isinstance(rows, ChoiceRows):
        pairs = tokenize_rows(rows.pairs(), tokenizer, max_length=max_length, cache_dir=cache_dir)
        choices = np.concatenate([[0], np.cumsum(rows.num_choices)])
        return replace(pairs, labels=rows.labels, choices=choices)
    settings = f"{max_length} left" if truncates_left(tokenizer) else f"{max_length}"
    arrays = cached_arrays(
        rows, tokenizer, VERSION, settings, lambda: run_tokenizer(rows, tokenizer, max_length), cache_dir
    )
    return TokenizedRows(arrays["tokens"], arrays["types"], arrays["offsets"], rows.labels, int(arrays["truncated"]))


def run_tokenizer(rows: Rows, tokenizer: Any, max_length: int) -> Arrays:
    """Tokenizes a split: ``tokens``, ``types``, ``offsets`` and the number of ``truncated`` rows.

    Repeated texts are tokenized only once. In MNLI, for example, each premise occurs in three rows.
    """
    backend, from_left = plain_backend(tokenizer), truncates_left(tokenizer)
    columns = [rows.text_a] if rows.text_b is None else [rows.text_a, rows.text_b]
    template = learn_template(backend, tokenizer, pair=len(columns) == 2)
    room = template.room(max_length)
    texts, numbers = number_texts(*columns)
    pieces = encode_texts(backend, texts)
    lengths = np.diff(pieces.offsets)
    full = [lengths[column] for column in numbers]
    kept = [np.minimum(full[0], room)] if rows.text_b is None else cut_longest(full[0], full[1], room)
    offsets = np.concatenate([[0], np.cumsum(sum(kept) + template.num_special)]).astype(np.int64)
    tokens, token_types = np.empty(offsets[-1], np.int32), np.empty(offsets[-1], np.int8)
    for start in range(0, len(rows), CHUNK):
        part = slice(start, start + CHUNK)
        positions = offsets[:-1][part].copy()
        for number, (ids, types) in enumerate(zip(template.specials, template.special_types, strict=True)):
            for token, type_ in zip(ids, types, strict=True):
                tokens[positions], token_types[positions] = token, type_
                positions += 1
            if number < len(columns):
                count, first = kept[number][part], pieces.offsets[numbers[number][part]]
                if from_left:
                    first = first + full[number][part] - count
                targets = ranges(positions, count)
                tokens[targets] = pieces.tokens[ranges(first, count)]
                token_types[targets] = template.types[number]
                positions += count
    truncated = np.array(int((sum(full) > room).sum()))
    return {"tokens": tokens, "types": token_types, "offsets": offsets, "truncated": truncated}


def truncates_left(tokenizer: Any) -> bool:
    """Whether texts that are too long lose their first tokens.

    The setting is ``truncation_side`` in tokenizer_config.json.
    """
    return bool(getattr(tokenizer, "truncation_side", "right") == "left")


def cut_longest(first: np.ndarray, second: np.ndarray, room: int) -> list[np.ndarray]:
    """Computes how many tokens of each text of a pair to keep.

    Pairs are truncated longest first. Pairs of at most ``room`` tokens are not truncated. If both texts are longer than
    half of ``room``, each keeps half, and if ``room`` is odd, the extra token goes to the longer text, or to the second
    in a tie. If only one text is longer than half, it is truncated to the room that the other text leaves. This matches
    the tokenizers library's ``longest_first``.
    """
    short, long = np.minimum(first, second), np.maximum(first, second)
    halved = 2 * short > room
    fits = first + second <= room
    kept_short = np.where(fits, short, np.where(halved, room // 2, short))
    kept_long = np.where(fits, long, np.where(halved, room - room // 2, room - short))
    swapped = first > second
    return [np.where(swapped, kept_long, kept_short), np.where(swapped, kept_short, kept_long)]
