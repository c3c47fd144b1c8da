"""The interface for kinds of tasks.

Each kind is a module of this package that defines ``KIND``.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from jax import Array
from jaxtyping import Float, Float32, Int

from afjax.config.tasks import TaskConfig, TaskKind
from afjax.data.sources.kind import SplitSource
from afjax.data.splits import AnyRows
from afjax.data.tokenization import TokenizedRows
from afjax.tasks.class_loss import mask_missing
from afjax.tasks.predictions import Predictions
from afjax.tasks.weighted_scores import Weighted
from afjax.trees import AnyArray

# An axis of a row's label in a batch: the answer's start and end, the head's outputs, or the tokens.
LabelAxis = Literal["answer", "outputs", "length"]
# Computes each row's loss from the logits and a batch with ``labels``, ``mask`` and ``weights``.
Losses = Callable[[Float[AnyArray, "batch ..."], Mapping[str, Any]], Float[Array, "batch"]]
PaddedLosses = Callable[[Float[AnyArray, "batch ..."], Mapping[str, Any], Int[AnyArray, ""]], Float[Array, "batch"]]
# A head's input: one pooled vector per row, or the hidden state of every token.
Reads = Literal["pooled", "tokens"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelReading:
    """How to load a split's labels.

    Attributes:
      names: Label names, which override any from the task, the source or the data.
      listed: Whether integer labels can be indices into the label names. If None, they can if the task or its source
        lists label names. They cannot if the names were collected from the data, because their order is arbitrary.
      required: Whether labels are required. If False, labels are ignored. If None, they are used if there are any.
      train: Opens the train split, to collect label names if none are listed. None to collect them from the split
        itself.
    """

    names: tuple[str, ...] = ()
    listed: bool | None = None
    required: bool | None = True
    train: Callable[[], SplitSource] | None = None


NEEDS_LABELS = LabelReading()


@dataclasses.dataclass(frozen=True)
class Form:
    """A set of input columns for prediction.

    Attributes:
      texts: The text columns, in the model's input order.
      choices: For multiple choice, one column with a list or one column per choice.
    """

    texts: tuple[str, ...]
    choices: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.texts, *self.choices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindText:
    """User-facing descriptions of a kind of task.

    Attributes:
      pipeline_tag: The hub's pipeline tag.
      row: An example row of an input file, as JSON. Empty if rows are texts or text pairs.
      texts: An example argument of ``TaskModel.predict`` in Python, with the closing parenthesis. Empty if rows are
        texts or text pairs.
      logits: Describes the logits of an exported program.
      per_output: Describes a head's outputs, printed after their number; may be empty.
      second_text: A noun for the second text, such as "a context", if rows must have one; otherwise empty.
      label: A noun for a row's label.
    """

    pipeline_tag: str
    row: str = ""
    texts: str = ""
    logits: str
    per_output: str = ""
    second_text: str = ""
    label: str = "label"

    def examples(self, text_columns: int | None) -> tuple[str, str]:
        """Returns an example row and an example argument; see ``row`` and ``texts``.

        Args:
          text_columns: The number of texts per row, or None if unknown.
        """
        if self.row:
            return self.row, self.texts
        single, pair = '{"text": "..."}', '{"text_a": "...", "text_b": "..."}'
        if text_columns is None:
            return f"{single} or {pair}", '[("A text.", "Another.")])  # or single texts, as in training'
        return (single, '["A text."])') if text_columns == 1 else (pair, '[("A text.", "Another.")])')


class Tokenize(Protocol):
    """Tokenizes rows."""

    def __call__(
        self, rows: Any, tokenizer: Any, task: TaskConfig, *, max_length: int, training: bool, cache_dir: Path | None
    ) -> TokenizedRows:
        """Tokenizes the rows; see :func:`afjax.tokenize`."""
        ...


def masked(losses: Losses) -> PaddedLosses:
    """Returns a function that masks the padding outputs before it computes the losses."""
    return lambda logits, batch, num_outputs: losses(mask_missing(logits, num_outputs), batch)


def accept(rows: Any, context: Any, name: str) -> None:
    """Accepts all rows; see ``KindSpec.check_labels`` and ``KindSpec.check_tokens``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindSpec:
    """A kind of task.

    Attributes:
      name: The kind's name in configs.
      reads: A head's input.
      num_outputs: Computes a head's number of outputs from the label names.
      losses: Computes each row's loss from the logits and a batch with ``labels``, ``mask`` and ``weights``.
      padded_losses: Like ``losses``, for a head with padding outputs, which are used during training so that tasks
        can share programs. Also takes the number of actual outputs, an int32 scalar. None if ``losses`` ignores padding
        outputs anyway.
      label_axes: The axes of a row's label in a batch, excluding the batch axis.
      label_dtype: The dtype of labels in a batch.
      output_bias: Computes the initial bias of a head's outputs from the train labels. None for zeros.
      has_choices: Whether each row has several sequences, one per choice.
      named_outputs: Whether there is one output per label name, in order.
      has_classes: Whether each row has exactly one of the label names.
      has_numbers: Whether labels and predictions are numbers.
      metrics: Metrics that early stopping can use, where higher is better.
      read: Loads and validates rows from a source.
      from_lists: Builds rows from lists: the texts of each row (see :func:`afjax.rows_from_lists`), one label per row
        or None, and the label names in index order or empty.
      forms: Lists the supported input columns for prediction, in order of preference, for a task and its number of
        texts per row (``Rows.text_columns``; None if unknown).
      pick: Extracts a row's input for ``from_lists``, given the row's name in error messages, its values and its form.
      check_labels: Raises UserError if the labels do not fit the task's settings, given the rows, the task and the
        rows' name. Called for rows from Python; ``read`` checks all others.
      check_tokens: Raises UserError if rows cannot be tokenized, given the rows, a tokenizer and the rows' name. Called
        before a run writes anything.
      tokenize: Tokenizes rows.
      predict: Computes predictions from the logits of all tokenized rows, the task and the label names.
      errors: Computes each row's error from the predictions, true labels and task: the absolute error for numbers,
        otherwise 0 if the prediction is correct and 1 if not.
      weighted: Prepares all scores as a function of row weights, from the predictions, true labels and task.
      text: User-facing descriptions of the kind.
    """

    name: TaskKind
    reads: Reads = "pooled"
    num_outputs: Callable[[Sequence[str]], int]
    losses: Losses
    padded_losses: PaddedLosses | None = None
    label_axes: tuple[LabelAxis, ...] = ()
    label_dtype: Literal["int32", "float32"] = "int32"
    output_bias: Callable[[Any], Float32[np.ndarray, "outputs"]] | None = None
    has_choices: bool = False
    named_outputs: bool = False
    has_classes: bool = False
    has_numbers: bool = False
    metrics: tuple[str, ...]
    read: Callable[[TaskConfig, SplitSource, LabelReading], AnyRows]
    from_lists: Callable[[list[Any], list[Any] | None, tuple[str, ...]], AnyRows]
    forms: Callable[[TaskConfig, int | None], list[Form]]
    pick: Callable[[str, dict[str, Any], Form], Any]
    check_labels: Callable[[Any, TaskConfig, str], None] = accept
    check_tokens: Callable[[Any, Any, str], None] = accept
    tokenize: Tokenize
    predict: Callable[[Float[np.ndarray, "rows ..."], TokenizedRows, TaskConfig, Sequence[str]], Predictions]
    errors: Callable[[Predictions, Any, TaskConfig], Float[np.ndarray, "rows"]]
    weighted: Callable[[Predictions, Any, TaskConfig], Weighted]
    text: KindText

    def label_shape(self, num_outputs: int, length: int) -> tuple[int, ...]:
        """Returns the shape of a row's label in a batch, excluding the batch axis.

        Args:
          num_outputs: The widest head's number of outputs.
          length: The batch's padded length.
        """
        sizes = {"answer": 2, "outputs": num_outputs, "length": length}
        return tuple(sizes[axis] for axis in self.label_axes)
