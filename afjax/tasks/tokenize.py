"""Tokenizes the rows of any kind of task."""

from pathlib import Path
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows, SpanRows
from afjax.data.tokenise import TokenisedRows, tokenise
from afjax.tasks.windows import tokenise_spans


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
      task: The task. Only a span task's window settings are used.
      max_length: Maximum tokens per sequence (for span tasks, per window). Longer sequences are truncated; longer
        contexts of span tasks are split into windows.
      training: Whether the rows are trained on. Only then do the windows of a span task have labels.
      cache_dir: The folder for cached token ids, or None for no cache.

    Returns:
      The token ids and labels of all rows, the input of :func:`afjax.train_batches`.
    """
    if isinstance(rows, SpanRows):
        return tokenise_spans(rows, tokenizer, task.span, max_length=max_length, training=training, cache_dir=cache_dir)
    return tokenise(rows, tokenizer, max_length=max_length, cache_dir=cache_dir)
