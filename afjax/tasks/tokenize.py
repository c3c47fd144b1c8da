"""From the rows of any kind of task to token ids."""

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
    """Turns the rows of a split into token ids.

    Args:
      rows: The split.
      tokenizer: A fast tokenizer of transformers, as ``Trunk.tokenizer()`` returns it.
      task: The task; the settings of a span task's windows are read.
      max_length: Tokens per row (for span: per window); longer rows are truncated.
      training: Whether the rows are trained on, so that the windows of span rows need labels.
      cache_dir: The folder for token ids, or None to keep them nowhere.

    Returns:
      The token ids and labels of all rows, from which :func:`afjax.train_batches` makes batches.
    """
    if isinstance(rows, SpanRows):
        return tokenise_spans(rows, tokenizer, task.span, max_length=max_length, training=training, cache_dir=cache_dir)
    return tokenise(rows, tokenizer, max_length=max_length, cache_dir=cache_dir)
