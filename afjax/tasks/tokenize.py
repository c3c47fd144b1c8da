"""Tokenizes the rows of any kind of task."""

from pathlib import Path
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows
from afjax.data.tokenise import TokenisedRows
from afjax.tasks.kinds import TASK_KINDS


def tokenize(
    rows: AnyRows,
    tokenizer: Any,
    task: TaskConfig,
    *,
    max_length: int,
    training: bool = True,
    cache_dir: Path | None = None,
) -> TokenisedRows:
    """Tokenizes the rows of a split.

    Args:
      rows: The split.
      tokenizer: A fast tokenizer of transformers, such as ``Trunk.tokenizer()``.
      task: The task. Its kind is used, and a span task's window settings.
      max_length: Maximum tokens per sequence or window. Longer sequences are truncated, except that longer contexts of
        span tasks and longer sentences of tagging tasks are split into windows.
      training: Whether the rows are trained on. Only then do the windows of a span task have labels.
      cache_dir: The folder for cached token ids, or None for no cache.

    Returns:
      The token ids (int32) and labels of all rows, :class:`~afjax.data.tokenise.TokenisedRows`: the input of
      :func:`afjax.train_batches`. For span tasks and tagging they have one entry per window.

    Raises:
      UserError: The tokenizer is not a fast one, ``max_length`` leaves no room for text, no row of a span task can be
        trained on, a word of a tagging task has no token, or the cache is not writable.

    Example:
      >>> from transformers import BertTokenizer
      >>> from afjax import TaskConfig, rows_from_lists, tokenize
      >>> words = "[PAD] [UNK] [CLS] [SEP] [MASK] a fine film".split()
      >>> tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(words)})
      >>> data = tokenize(rows_from_lists(["A fine film"]), tokenizer, TaskConfig(name="reviews"), max_length=8)
      >>> data.tokens.tolist(), data.lengths.tolist()
      ([2, 5, 6, 7, 3], [5])
    """
    tokenize_rows = TASK_KINDS[task.kind].tokenize
    return tokenize_rows(rows, tokenizer, task, max_length=max_length, training=training, cache_dir=cache_dir)
