"""Tokenizes requests for the routed program, and predicts from its outputs."""

import dataclasses
import functools
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from afjax.data.over_rows import check_outputs
from afjax.data.splits import AnyRows
from afjax.data.tokenization import TokenizedRows, tokenize_rows
from afjax.errors import UserError
from afjax.model.editing import attention_axes
from afjax.model.task_model import TaskModel
from afjax.serve.program import RoutedPlan
from afjax.tasks.kinds import TASK_KINDS
from afjax.tasks.load import rows_from_lists
from afjax.tasks.tokenize import tokenize
from afjax.trees import Tree
from afjax.trunk.embedding import EmbeddingConfig, embedding_rows

Item = TypeVar("Item")


class UnknownTaskError(UserError):
    """No task with this name is being served, or the store has no such artifact."""


class RowError(UserError):
    """A row does not have the form that its task requires.

    Attributes:
      row: The row's index.
      problem: The task's name and the problem, as the rest of a sentence about the row.
    """

    def __init__(self, row: int, problem: str) -> None:
        super().__init__(f"rows[{row}] {problem}")
        self.row, self.problem = row, problem


@dataclasses.dataclass(frozen=True, eq=False)
class ServedTask:
    """A task that is being served.

    Attributes:
      number: A unique number, which is not reused if the task is replaced by one with the same name.
      name: The task's name.
      model: The task's model, without its parameters.
      head_bank: The number of the bank that holds the task's head.
      entries: ``{bank number: the task's parameters in the bank}``, for each bank that the task uses.
    """

    number: int
    name: str
    model: TaskModel
    head_bank: int
    entries: Mapping[int, Tree]


@dataclasses.dataclass(frozen=True)
class Sequences:
    """The tokenized sequences of one task in a request.

    Attributes:
      task: The task, or None for the trunk's embeddings.
      data: The token ids. Each choice (multiple choice) or window (span and tagging) is a separate sequence.
      rows: The indices of the rows in the request.
    """

    task: ServedTask | None
    data: TokenizedRows
    rows: tuple[int, ...]

    def __len__(self) -> int:
        """Counts the sequences."""
        return len(self.data.offsets) - 1


@dataclasses.dataclass(frozen=True)
class SharedSequences:
    """Tokenized sequences that several tasks share.

    Attributes:
      tasks: The tasks.
      data: The token ids, as in :class:`Sequences`.
      rows: The indices of the rows in the request.
    """

    tasks: tuple[ServedTask, ...]
    data: TokenizedRows
    rows: tuple[int, ...]

    def __len__(self) -> int:
        """Counts each sequence once per task."""
        return len(self.tasks) * (len(self.data.offsets) - 1)

    @property
    def parts(self) -> list[Sequences]:
        """Each task's sequences."""
        return [Sequences(task, self.data, self.rows) for task in self.tasks]


def read_rows(
    task: ServedTask | None, texts: Sequence[Any], rows: Sequence[int], tokenizer: Any, embedding: EmbeddingConfig
) -> Sequences:
    """Checks and tokenizes one task's rows.

    Args:
      task: The task, or None for the trunk's embeddings.
      texts: The rows.
      rows: The indices of these rows in the request.
      tokenizer: The trunk's tokenizer.
      embedding: The settings for embeddings. The maximum length is set.

    Raises:
      UserError: A row does not have the form that the task requires.
    """
    if task is None:
        assert embedding.max_length is not None
        plain = embedding_rows(texts, embedding)
        data = tokenize_rows(plain, tokenizer, max_length=embedding.max_length, cache_dir=None)
        return Sequences(None, data, tuple(rows))
    model = task.model

    def tokenized(some_texts: Sequence[Any]) -> TokenizedRows:
        own = _as_split(task, some_texts)
        return tokenize(own, tokenizer, model.task, max_length=model.max_length, training=False)

    return Sequences(task, _for_rows(task, texts, rows, tokenized), tuple(rows))


def grouped(items: Iterable[Item], key: Callable[[Item], Hashable]) -> list[list[Item]]:
    """Groups items with equal keys, in the order of each group's first item."""
    groups: dict[Hashable, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def check_rows(task: ServedTask, texts: Sequence[Any], rows: Sequence[int]) -> None:
    """Checks one task's rows.

    Args:
      task: The task.
      texts: The rows.
      rows: The indices of these rows in the request.

    Raises:
      UserError: A row does not have the form that the task requires.
    """
    _for_rows(task, texts, rows, functools.partial(_as_split, task))


def _for_rows(
    task: ServedTask, texts: Sequence[Any], rows: Sequence[int], read: Callable[[Sequence[Any]], Item]
) -> Item:
    """Reads one task's rows. Errors name the row in the request."""
    try:
        return read(texts)
    except UserError as error:
        for text, row in zip(texts, rows, strict=True):
            try:
                read([text])
            except UserError as own_error:
                # The list of rows that was read has only one row.
                problem = re.sub(r"^(texts:0|Row 1 of the split)\b", "the text", str(own_error))
                raise RowError(row, f'(for "{task.name}"): {problem}') from None
        raise UserError(f'Rows for "{task.name}": {error}') from None


def _as_split(task: ServedTask, texts: Sequence[Any]) -> AnyRows:
    rows = rows_from_lists(texts, kind=task.model.task.kind)
    task.model.check_form(rows)
    return rows


def groups_with_equal_tokens(tasks: Sequence[ServedTask]) -> list[list[ServedTask]]:
    """Groups tasks that tokenize and truncate rows identically."""

    def key(task: ServedTask) -> Hashable:
        config = task.model.task
        return TASK_KINDS[config.kind].tokenize, config.span, task.model.max_length

    return grouped(tasks, key)


def predict_rows(part: Sequences, outputs: Float[np.ndarray, "sequences ..."]) -> list[dict[str, Any]]:
    """Converts the outputs of sequences to predictions for their rows.

    Args:
      part: The rows' sequences.
      outputs: The embeddings, or the head's outputs, ``[sequences, num_outputs]`` or ``[sequences, length,
        num_outputs]``.

    Returns:
      One prediction per row, in the order of ``part.rows``.

    Raises:
      UserError: An output is NaN or infinite.
    """
    if part.task is None:
        check_outputs(outputs, part.data, {})
        return [{"embedding": embedding.tolist()} for embedding in outputs]
    model, data, logits = part.task.model, part.data, outputs
    if data.choices is not None:
        # A choice's logit is its first output. Missing choices have the lowest float32.
        logits = np.full((len(data), data.num_choices), np.finfo(np.float32).min, np.float32)
        for row, (begin, end) in enumerate(zip(data.choices[:-1], data.choices[1:], strict=True)):
            logits[row, : end - begin] = outputs[begin:end, 0]
    try:
        check_outputs(logits, data, {"trunk": model.trunk.params, "task": list(part.task.entries.values())})
        logits = model.in_label_units(logits, data)
    except UserError as error:
        raise UserError(f'Rows for "{part.task.name}": {error}') from None
    predictions = TASK_KINDS[model.task.kind].predict(logits, data, model.task, model.labels)
    return [predictions.as_json(row) for row in range(len(predictions.labels))]


def predict_parts(
    parts: Sequence[Sequences],
    outputs: Sequence[Float[np.ndarray, "sequences ..."]],
    num_rows: int,
    attention: Sequence[Mapping[str, Float[np.ndarray, "sequences layers num_adapters"]]] | None = None,
) -> list[dict[str, Any]]:
    """Converts the outputs of a request's parts to predictions for its rows.

    Args:
      parts: The sequences of each task.
      outputs: The outputs of each part.
      num_rows: The number of rows in the request.
      attention: The attention over adapters for each part, if requested.

    Returns:
      One prediction per row, in the order of the request.

    Raises:
      UserError: An output is NaN or infinite.
    """
    predictions: list[dict[str, Any]] = [{} for _ in range(num_rows)]
    for number, (part, part_outputs) in enumerate(zip(parts, outputs, strict=True)):
        part_predictions = predict_rows(part, part_outputs)
        if attention is not None and attention[number]:
            for prediction, shares in zip(part_predictions, _row_attention(part, attention[number]), strict=True):
                prediction["fusion_attention"] = shares
        for row, prediction in zip(part.rows, part_predictions, strict=True):
            predictions[row] = prediction
    return predictions


def predict_groups(
    groups: Sequence[SharedSequences], outputs: Sequence[Sequence[Float[np.ndarray, "sequences ..."]]], num_rows: int
) -> list[dict[str, dict[str, Any]]]:
    """Converts the outputs of all tasks to predictions for a request's rows.

    Args:
      groups: The sequences of each group of tasks.
      outputs: For each group, the outputs of each task.
      num_rows: The number of rows in the request.

    Returns:
      For each row, ``{task name: prediction}``.

    Raises:
      UserError: An output is NaN or infinite.
    """
    predictions: list[dict[str, dict[str, Any]]] = [{} for _ in range(num_rows)]
    for group, group_outputs in zip(groups, outputs, strict=True):
        for task, part, part_outputs in zip(group.tasks, group.parts, group_outputs, strict=True):
            for row, prediction in zip(part.rows, predict_rows(part, part_outputs), strict=True):
                predictions[row][task.name] = prediction
    return predictions


def fusion_attention_of(
    task: ServedTask, plan: RoutedPlan, attention: Mapping[str, Float[np.ndarray, "batch layers num_adapters"]]
) -> dict[str, Float[np.ndarray, "batch layers num_adapters"]]:
    """Selects a task's layers and adapters from the program's attention.

    Args:
      task: A task with a fusion.
      plan: The program's static part.
      attention: The result of :func:`afjax.serve.program.attention_outputs`.
    """
    names, own_layers = attention_axes(task.model.model)
    bank = next(name for name in plan.num_fused if int(name) in task.entries)
    first = sum(number for name, number in plan.num_fused.items() if int(name) < int(bank))
    layers = [plan.layers.index(layer) for layer in own_layers]
    return {slot: attention[slot][:, layers, first : first + len(slot_names[0])] for slot, slot_names in names.items()}


def _row_attention(
    part: Sequences, attention: Mapping[str, Float[np.ndarray, "sequences layers num_adapters"]]
) -> list[dict[str, Any]]:
    """Converts each row's attention to JSON, with layer indices and adapter names."""
    assert part.task is not None, "the task has a fusion"
    names, layers = attention_axes(part.task.model.model)
    data = part.data
    by_row: dict[str, np.ndarray] = {}
    for slot, values in attention.items():
        if data.choices is None:
            by_row[slot] = data.per_row(values)
        else:
            # The average is over the tokens of all choices, so longer choices have a higher weight.
            num_tokens = np.diff(data.offsets)[:, None, None]
            totals = np.add.reduceat(values * num_tokens, data.choices[:-1], axis=0)
            by_row[slot] = totals / np.add.reduceat(num_tokens, data.choices[:-1], axis=0)
    return [
        {
            slot: {
                "layers": list(layers),
                "adapters": [list(layer_names) for layer_names in names[slot]],
                "attention": by_row[slot][row].tolist(),
            }
            for slot in names
        }
        for row in range(len(part.rows))
    ]
