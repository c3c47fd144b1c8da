"""Tokenizes rows of any kind of task."""

from pathlib import Path
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows
from afjax.data.tokenization import TokenizedRows
from afjax.tasks.kinds import TASK_KINDS


def tokenize(
    rows: AnyRows,
    tokenizer: Any,
    task: TaskConfig,
    *,
    max_length: int,
    training: bool = True,
    cache_dir: Path | None = None,
) -> TokenizedRows:
    """Tokenizes the rows of a split.

    Args:
      rows: The split.
      tokenizer: A fast transformers tokenizer, such as ``Trunk.tokenizer()``.
      task: The task, which provides the kind and the window settings of span tasks.
      max_length: Maximum number of tokens per sequence or window. Longer sequences are truncated, except for span tasks
        and tagging, which split them into windows.
      training: Whether the rows are used for training. Only then do the windows of a span task have labels.
      cache_dir: The folder for cached token ids, or None to disable the cache.

    Returns:
      The token ids (int32) and labels of all rows as :class:`~afjax.data.tokenization.TokenizedRows`, the input to
      :func:`afjax.train_batches`. For span tasks and tagging, they have one entry per window.

    Raises:
      UserError: The tokenizer is not fast, ``max_length`` leaves no room for text, no row of a span task is usable for
        training, a word in a tagging task has no tokens, or the cache is not writable.

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
