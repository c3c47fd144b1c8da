"""A split in numbers: its labels, how long its rows are in tokens, and how much of its batches is padding."""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import batches_per_epoch, eval_padding_share, padding_share
from afjax.data.lengths import eval_lengths, train_lengths
from afjax.data.splits import AnyRows, ChoiceRows, Rows, SpanRows
from afjax.tasks.tokenize import tokenize
from afjax.tasks.windows import TokenisedSpans

# Which of the lengths, in percent from the shortest.
PERCENTILES = (5, 25, 50, 75, 95, 99, 100)

# Longer than any row, and a number that tokenizers take.
UNLIMITED = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Count:
    """How many rows of a split, and what share of it."""

    rows: int
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """The numbers of one split.

    Attributes:
      rows: How many there are.
      labelled: Whether they have labels.
      labels: By label name, in the order of the labels; of multiple choice by the name (else the number from 0) of the
        right choice. Empty without labels, for regression and for span.
      values: The lowest, the mean and the highest label of regression; else None.
      choices: Of multiple choice, by the number of choices.
      answers: Of labelled span, by the number of answers that are right; 0: the question has none.
      unplaced: Of span, rows whose first answer's place is not known, which are not trained on.
      lengths: ``PERCENTILES`` of the tokens, special ones included, before anything is cut; of multiple choice those of
        a context with one of its choices; of span with the question cut to ``span.max_question_length``. Each is the
        length of some row.
      truncated: The share of those lengths above ``max_length``; of span the share of rows with several windows.
      windows: Of span, the mean and the highest number of windows that a row has; else None.
      padded: The padded lengths of its batches: of training batches, or of batches that evaluate it once.
      padding: The share of padding among the tokens of one pass over all rows (of span: all windows).
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
    """A row as a model gets it.

    Attributes:
      fields: Its texts by their names; choices are a list.
      label: Its label's name (of multiple choice the right choice's), a number for regression, the right answers for
        span; None: it has none.
      tokens: Of its first sequence: of multiple choice the context with the first choice, of span the first window.
    """

    fields: Mapping[str, str | list[str]]
    label: str | float | list[str] | None
    tokens: list[str]


def summarise(rows: AnyRows, tokenizer: Any, task: TaskConfig, config: TrainConfig, *, training: bool) -> SplitSummary:
    """The numbers of a split.

    Args:
      rows: The split, at least one row.
      tokenizer: A fast tokenizer of transformers.
      task: Its windows, of span.
      config: ``max_length``, ``buckets``, ``batch_size``, ``epochs`` and ``max_steps``.
      training: Whether the split is trained on, rather than evaluated.

    Raises:
      UserError: The tokenizer is not a fast one, or ``max_length`` leaves no room behind a question.
    """
    whole = tokenize(rows, tokenizer, task, max_length=UNLIMITED, training=False, cache_dir=None)
    lengths = np.diff(whole.offsets)
    windows = None
    if isinstance(rows, SpanRows):
        cut = tokenize(rows, tokenizer, task, max_length=config.max_length, training=False, cache_dir=None)
        assert isinstance(cut, TokenisedSpans), "of rows to look at, whatever their kind says"
        windows_of_row = np.bincount(cut.row_of)
        windows = float(windows_of_row.mean()), int(windows_of_row.max())
        truncated = float((windows_of_row > 1).mean())
    else:
        # What is too long is cut to just that length, so nothing has to be tokenised again.
        offsets = np.concatenate([[0], np.cumsum(np.minimum(lengths, config.max_length))])
        cut = dataclasses.replace(whole, offsets=offsets)
        truncated = float((lengths > config.max_length).mean())
    batch_size = config.batch_size
    if training:
        num_steps = config.num_steps(batches_per_epoch(len(cut), batch_size))
        padded = config.lengths if config.buckets else train_lengths([cut], config, num_steps=num_steps)
        padding = padding_share(cut, batch_size=batch_size, lengths=padded)
    else:
        padded = eval_lengths([cut], config)
        padding = eval_padding_share(cut, batch_size=batch_size, lengths=padded)
    labels = rows.labels if isinstance(rows, Rows) and not rows.label_names else None
    return SplitSummary(
        rows=len(rows),
        labelled=rows.labels is not None,
        labels=_label_counts(rows),
        values=None if labels is None else (float(labels.min()), float(labels.mean()), float(labels.max())),
        choices=_counted(rows.num_choices.tolist()) if isinstance(rows, ChoiceRows) else {},
        answers=_counted(map(len, rows.labels)) if isinstance(rows, SpanRows) and rows.labels is not None else {},
        unplaced=sum(bool(right) and right[0][1] < 0 for right in rows.labels or ()) if windows else 0,
        lengths=tuple(np.percentile(lengths, PERCENTILES, method="inverted_cdf").astype(int).tolist()),
        truncated=truncated,
        windows=windows,
        padded=padded,
        padding=padding,
    )


def first_examples(rows: AnyRows, num: int, tokenizer: Any, task: TaskConfig, config: TrainConfig) -> list[Example]:
    """The first ``num`` rows, or all where there are fewer, cut to ``config.max_length`` tokens.

    Raises:
      UserError: As :func:`summarise`.
    """
    rows = rows.take(range(min(num, len(rows))))
    data = tokenize(rows, tokenizer, task, max_length=config.max_length, training=False, cache_dir=None)
    if isinstance(data, TokenisedSpans):
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
    if isinstance(rows, SpanRows) or rows.labels is None:
        return {}
    if isinstance(rows, ChoiceRows):
        names = [_choice_name(rows, number) for number in range(int(rows.num_choices.max()))]
    else:
        names = list(rows.label_names)
    if not names:
        return {}
    counts = np.bincount(rows.labels, minlength=len(names)).tolist()
    return {name: Count(count, count / len(rows)) for name, count in zip(names, counts, strict=True)}


def _choice_name(rows: ChoiceRows, number: int) -> str:
    return rows.label_names[number] if number < len(rows.label_names) else str(number)


def _counted(values: Iterable[int]) -> dict[int, Count]:
    """How often each value occurs, in rising order."""
    counts = Counter(values)
    total = counts.total()
    return {value: Count(count, count / total) for value, count in sorted(counts.items())}


def _fields(rows: AnyRows, row: int) -> dict[str, str | list[str]]:
    if isinstance(rows, ChoiceRows):
        return {"context": rows.contexts[row], "choices": list(rows.choices[row])}
    if isinstance(rows, SpanRows):
        return {"question": rows.questions[row], "context": rows.contexts[row]}
    if rows.text_b is None:
        return {"text": rows.text_a[row]}
    return {"text_a": rows.text_a[row], "text_b": rows.text_b[row]}


def _label(rows: AnyRows, row: int) -> str | float | list[str] | None:
    if rows.labels is None:
        return None
    if isinstance(rows, SpanRows):
        return [text for text, _ in rows.labels[row]]
    if isinstance(rows, ChoiceRows):
        return _choice_name(rows, int(rows.labels[row]))
    if rows.label_names:
        return rows.label_names[rows.labels[row]]
    return float(str(rows.labels[row]))  # 4.2, not what float32 makes of it
