"""Statistics of a split: labels, lengths in tokens, truncation and padding."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import batches_per_epoch, eval_padding_share, padding_share
from afjax.data.lengths import ProgramTokens, eval_lengths, train_lengths
from afjax.data.splits import AnyRows, ChoiceRows, MultiLabelRows, Rows, SpanRows, TagRows
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.tokenize import tokenize
from afjax.tasks.windows import TokenisedWindows

# Percentiles of lengths in a summary.
PERCENTILES = (5, 25, 50, 75, 95, 99, 100)

# A maximum length that truncates no row and that tokenizers accept.
UNLIMITED = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Count:
    """A number of rows, and their share of the split."""

    rows: int
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """Statistics of one split.

    Attributes:
      rows: Number of rows.
      labelled: Whether the split has labels.
      labels: The number of rows per label name, in the order of the labels. For multiple choice, a label is the name or
        else the index of the correct choice. For tagging, the number of rows in which a tag occurs. A row of a
        multi-label or tagging split can count for several labels. Empty for unlabelled splits, regression and span
        tasks.
      values: For regression, the minimum, mean and maximum label; else None.
      choices: For multiple choice, rows per number of choices; else empty.
      answers: For labelled span tasks, rows per number of correct answers (0 if a question has no answer); else empty.
      unplaced: For span tasks, the number of rows that are not trained on because the start of their first answer is
        not known; else 0.
      lengths: ``PERCENTILES`` of sequence lengths in tokens before truncation, including special tokens. For multiple
        choice, a sequence is a context with one choice. For span tasks, it is a question, truncated to
        ``span.max_question_length``, with its context. Each percentile is the length of an actual sequence.
      truncated: The share of sequences longer than ``max_length``. For span tasks and tagging, the share of rows with
        more than one window.
      windows: For span tasks and tagging, the mean and maximum number of windows per row; else None.
      padded: The padded lengths of training batches, or of batches that evaluate the split once.
      padding: The share of padding among the tokens of all padded rows (for span tasks and tagging, all padded
        windows). Rows that only complete a batch do not count.
    """

    rows: int
    labelled: bool
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
    """A row as text, label and tokens.

    Attributes:
      fields: The row's texts by name. Choices are a list.
      label: The label's name; for multiple choice, the name of the correct choice; for regression, a number; for span
        tasks, the correct answers; for multi-label tasks, the names of the labels; for tagging, the entities. None if
        the row is not labelled.
      tokens: The tokens of the row's first sequence: for multiple choice, the context with the first choice; for span
        tasks and tagging, the first window.
    """

    fields: Mapping[str, str | list[str]]
    label: str | float | list[str] | None
    tokens: list[str]


def summarise(
    rows: AnyRows, tokenizer: Any, task: TaskConfig, config: TrainConfig, cost: ProgramTokens, *, training: bool
) -> SplitSummary:
    """Computes the statistics of a split.

    Args:
      rows: The split, with at least one row.
      tokenizer: A fast tokenizer of transformers.
      task: The task. Only a span task's window settings are used.
      config: ``max_length``, ``buckets``, ``batch_size``, ``epochs`` and ``max_steps``.
      cost: The cost of compiling a program, which decides a run's padded lengths.
      training: Whether the split is trained on, rather than evaluated.

    Raises:
      UserError: The tokenizer is not a fast one, ``max_length`` leaves no room for text, or a word of a tagging task
        has no token.
    """
    full = tokenize(rows, tokenizer, task, max_length=UNLIMITED, training=False, cache_dir=None)
    lengths = np.diff(full.offsets)
    windows = None
    if TASK_KINDS[task.kind].reads == "tokens":
        cut = tokenize(rows, tokenizer, task, max_length=config.max_length, training=False, cache_dir=None)
        assert isinstance(cut, TokenisedWindows), "a head that reads tokens needs all of them"
        windows_of_row = np.bincount(cut.row_of)
        windows = float(windows_of_row.mean()), int(windows_of_row.max())
        truncated = float((windows_of_row > 1).mean())
    else:
        # Only the truncated lengths are needed, so the rows are not tokenised again.
        offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, config.max_length))])
        cut = dataclasses.replace(full, offsets=offsets)
        truncated = float((lengths > config.max_length).mean())
    batch_size = config.batch_size
    if training:
        num_steps = config.num_steps(batches_per_epoch(len(cut), batch_size))
        padded = (
            config.lengths
            if config.buckets
            else train_lengths([cut], config, cost.train, num_steps=num_steps, common=True)
        )
        padding = padding_share(cut, batch_size=batch_size, lengths=padded, padding_rows=False)
    else:
        padded = eval_lengths([cut], config, cost.dev, common=True)
        padding = eval_padding_share(cut, batch_size=batch_size, lengths=padded, padding_rows=False)
    labels = rows.labels if isinstance(rows, Rows) and not rows.label_names else None
    return SplitSummary(
        rows=len(rows),
        labelled=rows.labels is not None,
        labels=_label_counts(rows),
        values=None if labels is None else (float(labels.min()), float(labels.mean()), float(labels.max())),
        choices=_counted(rows.num_choices.tolist()) if isinstance(rows, ChoiceRows) else {},
        answers=_counted(map(len, rows.labels)) if isinstance(rows, SpanRows) and rows.labels is not None else {},
        unplaced=sum(bool(right) and right[0][1] < 0 for right in rows.labels or ())
        if isinstance(rows, SpanRows)
        else 0,
        lengths=tuple(np.percentile(lengths, PERCENTILES, method="inverted_cdf").astype(int).tolist()),
        truncated=truncated,
        windows=windows,
        padded=padded,
        padding=padding,
    )


def first_examples(rows: AnyRows, num: int, tokenizer: Any, task: TaskConfig, config: TrainConfig) -> list[Example]:
    """Returns the first ``num`` rows, or all if there are fewer, as examples.

    The tokens are truncated to ``config.max_length``.

    Raises:
      UserError: The tokenizer is not a fast one, ``max_length`` leaves no room for text, or a word of a tagging task
        has no token.
    """
    rows = rows.take(range(min(num, len(rows))))
    data = tokenize(rows, tokenizer, task, max_length=config.max_length, training=False, cache_dir=None)
    if isinstance(data, TokenisedWindows):
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


def _label_counts(rows: AnyRows) -> dict[str, Count]:
    return {name: Count(count, count / len(rows)) for name, count in rows.label_counts().items()}


def _counted(values: Iterable[int]) -> dict[int, Count]:
    """Counts how often each value occurs, in ascending order of the values."""
    counts = Counter(values)
    total = counts.total()
    return {value: Count(count, count / total) for value, count in sorted(counts.items())}


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
        return rows.label_of(row).split("; ")
    if isinstance(rows, MultiLabelRows):
        return rows.names_of(row)
    if isinstance(rows, ChoiceRows):
        index = int(rows.labels[row])
        return rows.label_names[index] if index < len(rows.label_names) else str(index)
    if rows.label_names:
        return rows.label_names[rows.labels[row]]
    return float(str(rows.labels[row]))  # This gives 4.2 instead of float32's 4.19999980926513...
