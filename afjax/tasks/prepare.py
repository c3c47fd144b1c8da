"""From the rows of any kind of task to token ids."""

from pathlib import Path
from typing import Any

from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows, SpanRows
from afjax.data.tokenise import TokenisedRows, tokenise
from afjax.tasks.windows import tokenise_spans


def prepare(
    rows: AnyRows, tokenizer: Any, task: TaskConfig, *, max_length: int, training: bool, cache_dir: Path | None
) -> TokenisedRows:
    """Tokenises a split: :func:`.tokenise` of ``afjax.data``, or :func:`~afjax.tasks.windows.tokenise_spans` for span.

    Args:
      rows: The split.
      tokenizer: A fast tokenizer of transformers.
      task: Its windows.
      max_length: Tokens a row (of span: a window) may have.
      training: Whether rows are to be trained on, so that windows need labels.
      cache_dir: Where token ids are kept; None: nowhere.
    """
    if isinstance(rows, SpanRows):
        return tokenise_spans(rows, tokenizer, task.span, max_length=max_length, training=training, cache_dir=cache_dir)
    return tokenise(rows, tokenizer, max_length=max_length, cache_dir=cache_dir)
