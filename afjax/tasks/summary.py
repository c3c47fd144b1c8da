"""Dataset statistics: labels, token lengths, truncation and padding."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import batches_per_epoch, padding_share
from afjax.data.lengths import ProgramTokens, eval_lengths, train_lengths
from afjax.data.splits import NO_ENTITIES, AnyRows, ChoiceRows, MultiLabelRows, Rows, SpanRows, TagRows
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.tokenize import tokenize
from afjax.tasks.windows import TokenizedWindows

# Length percentiles to report.
PERCENTILES = (5, 25, 50, 75, 95, 99, 100)

# Disables truncation. Larger values are not accepted by tokenizers.
UNLIMITED = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Count:
    """A number of rows, as a count and a fraction of the split."""

    rows: int
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """Statistics of one split.

    Attributes:
      rows: Number of rows.
      labeled: Whether the split has labels.
      labels: Number of rows with each label, in label order. For multiple choice, a label is the name or else the index
        of the correct choice. Rows with several labels or tags count for each of them. Empty for unlabeled splits,
        regression and span tasks.
      values: For regression, the minimum, mean and maximum label; else None.
      choices: For multiple choice, number of rows by number of choices; else empty.
      answers: For labeled span tasks, number of rows by number of gold answers (0 if unanswerable); else empty.
      unplaced: For span tasks, number of rows that are excluded from training because the start of their first answer
        is unknown; else 0.
      lengths: ``PERCENTILES`` of sequence lengths in tokens before truncation, including special tokens. For multiple
        choice, a sequence is a context with one choice. For span tasks, it is a question, truncated to
        ``span.max_question_length``, with its context. Percentiles are not interpolated.
      truncated: Fraction of sequences longer than ``max_length``. For span tasks and tagging, fraction of rows with
        more than one window.
      windows: For span tasks and tagging, the mean and maximum number of windows per row; else None.
      padded: The padded lengths of training batches, or of batches for a single evaluation.
      padding: Fraction of padding tokens in all rows (for span tasks and tagging, in all windows), not counting padding
        rows.
    """

    rows: int
    labeled: bool
    labels: Mapping[str, Count]
    values: tuple[float, float, float] | None
    choices: Mapping[int, Count]
    answers: Mapping[int, Count]
    unplaced: int
    lengths: tuple[int, ...]
    truncated: float
    windows: tuple[float, int] | None
    padded: tuple[int, ...]
    padding: float


@dataclasses.dataclass(frozen=True)
class Example:
    """An example row to display, with its label and tokens.

    Attributes:
      fields: The row's texts by name. Choices are a list.
      label: The label's name; for multiple choice, the name of the correct choice; for regression, a number; for span
        tasks, the gold answers; for multi-label tasks, the names of the labels; for tagging, the entities. None if the
        row is unlabeled.
      tokens: The tokens of the row's first sequence: for multiple choice, the context with the first choice; for span
        tasks and tagging, the first window.
    """

    fields: Mapping[str, str | list[str]]
    label: str | float | list[str] | None
    tokens: list[str]


def summarize(
    rows: AnyRows, tokenizer: Any, task: TaskConfig, config: TrainConfig, cost: ProgramTokens, *, training: bool
) -> SplitSummary:
    """Computes the statistics of a split.

    Args:
      rows: The split, with at least one row.
      tokenizer: A fast transformers tokenizer.
      task: The task, which provides the window settings of span tasks.
      config: Provides ``max_length``, ``buckets``, ``batch_size``, ``epochs`` and ``max_steps``.
      cost: Cost of compiling a program, which affects the choice of padded lengths.
      training: Whether the split is for training rather than evaluation.

    Raises:
      UserError: The tokenizer is not fast, ``max_length`` leaves no room for text, or a word in a tagging task has no
        tokens.
    """
    full = tokenize(rows, tokenizer, task, max_length=UNLIMITED, training=False, cache_dir=None)
    lengths = np.diff(full.offsets)
    windows = None
    if TASK_KINDS[task.kind].reads == "tokens":
        truncated_data = tokenize(rows, tokenizer, task, max_length=config.max_length, training=False, cache_dir=None)
        assert isinstance(truncated_data, TokenizedWindows), "token-level heads use windows"
        windows_of_row = np.bincount(truncated_data.row_of)
        windows = float(windows_of_row.mean()), int(windows_of_row.max())
        truncated = float((windows_of_row > 1).mean())
    else:
        # Only the truncated lengths are needed, so there is no need to tokenize again.
        offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, config.max_length))])
        truncated_data = dataclasses.replace(full, offsets=offsets)
        truncated = float((lengths > config.max_length).mean())
    batch_size = config.batch_size
    if training:
        num_steps = config.num_steps(batches_per_epoch(len(truncated_data), batch_size))
        padded = train_lengths([truncated_data], config, cost.train, num_steps=num_steps, common=True)
    else:
        padded = eval_lengths([truncated_data], config, cost.dev, common=True)
    padding = padding_share(
        truncated_data, batch_size=batch_size, lengths=padded, training=training, padding_rows=False
    )
    labels = rows.labels if isinstance(rows, Rows) and not rows.label_names else None
    num_choices = rows.num_choices.tolist() if isinstance(rows, ChoiceRows) else ()
    num_answers = map(len, rows.labels or ()) if isinstance(rows, SpanRows) else ()
    return SplitSummary(
        rows=len(rows),
        labeled=rows.labels is not None,
        labels=_shares(rows.label_counts(), len(rows)),
        values=None if labels is None else (float(labels.min()), float(labels.mean()), float(labels.max())),
        choices=_shares(Counter(sorted(num_choices)), len(rows)),
        answers=_shares(Counter(sorted(num_answers)), len(rows)),
        unplaced=len(rows.labels or ()) - len(rows.trainable()) if isinstance(rows, SpanRows) else 0,
        lengths=tuple(np.percentile(lengths, PERCENTILES, method="inverted_cdf").astype(int).tolist()),
        truncated=truncated,
        windows=windows,
        padded=padded,
        padding=padding,
    )


def first_examples(rows: AnyRows, num: int, tokenizer: Any, task: TaskConfig, config: TrainConfig) -> list[Example]:
    """Returns up to ``num`` rows from the beginning of the split as examples.

    The tokens are truncated to ``config.max_length``.

    Raises:
      UserError: The tokenizer is not fast, ``max_length`` leaves no room for text, or a word in a tagging task has no
        tokens.
    """
    rows = rows.take(range(min(num, len(rows))))
    data = tokenize(rows, tokenizer, task, max_length=config.max_length, training=False, cache_dir=None)
    if isinstance(data, TokenizedWindows):
        first = np.searchsorted(data.row_of, np.arange(len(rows)))
    else:
        first = np.arange(len(rows)) if data.choices is None else data.choices[:-1]
    return [
        Example(
            _fields(rows, row),
            _label(rows, row),
            tokenizer.convert_ids_to_tokens(data.tokens[data.offsets[sequence] : data.offsets[sequence + 1]].tolist()),
        )
        for row, sequence in enumerate(first)
    ]


def _shares(counts: Mapping[Any, int], num_rows: int) -> dict[Any, Count]:
    return {value: Count(count, count / num_rows) for value, count in counts.items()}


def _fields(rows: AnyRows, row: int) -> dict[str, str | list[str]]:
    if isinstance(rows, ChoiceRows):
        return {"context": rows.contexts[row], "choices": list(rows.choices[row])}
    if isinstance(rows, SpanRows):
        return {"question": rows.questions[row], "context": rows.contexts[row]}
    if isinstance(rows, TagRows):
        return {"words": " ".join(rows.words_of(row))}
    if rows.text_b is None:
        return {"text": rows.text_a[row]}
    return {"text_a": rows.text_a[row], "text_b": rows.text_b[row]}


def _label(rows: AnyRows, row: int) -> str | float | list[str] | None:
    if rows.labels is None:
        return None
    if isinstance(rows, SpanRows):
        return [text for text, _ in rows.labels[row]]
    if isinstance(rows, TagRows):
        return rows.entities_of(row) or [NO_ENTITIES]
    if isinstance(rows, MultiLabelRows):
        return rows.names_of(row)
    if isinstance(rows, ChoiceRows):
        index = int(rows.labels[row])
        return rows.label_names[index] if index < len(rows.label_names) else str(index)
    if rows.label_names:
        return rows.label_names[rows.labels[row]]
    return float(str(rows.labels[row]))  # Avoids float32's 4.19999980926513 for 4.2.
