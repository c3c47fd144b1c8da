"""The interface of a kind of task.

Each module of this package with a ``KIND`` defines one kind.
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
from afjax.data.tokenise import TokenisedRows
from afjax.tasks.predictions import Predictions
from afjax.tasks.weighted_scores import Weighted
from afjax.trees import AnyArray

# An axis of a row's label in a batch: the two positions of an answer, the head's outputs, or the row's tokens.
LabelAxis = Literal["answer", "outputs", "length"]
# The input of a head: one pooled vector per row, or the hidden state of every token.
Reads = Literal["pooled", "tokens"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelReading:
    """How to read a split's labels.

    Attributes:
      names: Label names that override the task's, the source's or the data's.
      listed: Whether an integer label can be an index into the label names. None means that it can if the task or its
        source lists label names. Names collected from data have no order that the labels could refer to.
      required: Whether labels are required. If False, labels are ignored. If None, they are read if there are any.
      train: Opens the train rows, to collect label names if no label names are listed. None to collect them from the
        split itself.
    """

    names: tuple[str, ...] = ()
    listed: bool | None = None
    required: bool | None = True
    train: Callable[[], SplitSource] | None = None


NEEDS_LABELS = LabelReading()


@dataclasses.dataclass(frozen=True)
class Form:
    """A set of columns that a model can predict on.

    Attributes:
      texts: The text columns, in the model's order.
      choices: For multiple choice, one column with a list or one column per choice.
    """

    texts: tuple[str, ...]
    choices: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.texts, *self.choices)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindText:
    """Texts that describe a kind of task to users.

    Attributes:
      pipeline_tag: The hub's pipeline tag.
      row: A row of an input file, as JSON.
      texts: The argument of ``TaskModel.predict`` in Python code, with its closing parenthesis.
      logits: The meaning of the logits in an exported program.
      per_output: The meaning of a head's outputs, printed after their number; may be empty.
      second_text: A name for the second text, such as "a context", if rows need one; otherwise empty.
      label: A name for a row's label.
    """

    pipeline_tag: str
    row: str = '{"text": "..."} or {"text_a": "...", "text_b": "..."}'
    texts: str = '[("A text.", "Another.")])  # or single texts, as in training'
    logits: str
    per_output: str = ""
    second_text: str = ""
    label: str = "label"


class Read(Protocol):
    """Reads and checks the rows of a source."""

    def __call__(self, task: TaskConfig, source: SplitSource, labels: LabelReading) -> AnyRows:
        """Returns the rows.

        Raises:
          UserError: A column, text or label is invalid.
        """
        ...


class FromLists(Protocol):
    """Makes rows from Python lists."""

    def __call__(self, texts: list[Any], labels: list[Any] | None, label_names: tuple[str, ...]) -> AnyRows:
        """Returns the rows.

        Args:
          texts: The texts, at least one; see :func:`afjax.rows_from_lists`.
          labels: One label per text, or None.
          label_names: The label names in the order of their indices, or empty.

        Raises:
          UserError: A text or label is invalid.
        """
        ...


class Tokenize(Protocol):
    """Tokenizes rows."""

    def __call__(
        self,
        rows: Any,
        tokenizer: Any,
        task: TaskConfig,
        *,
        max_length: int,
        training: bool,
        cache_dir: Path | None,
    ) -> TokenisedRows:
        """Returns the token ids; see :func:`afjax.tokenize`."""
        ...


class PaddedLosses(Protocol):
    """Computes the loss of each row from padded logits; see ``KindSpec.padded_losses``."""

    def __call__(
        self, logits: Float[AnyArray, "batch ..."], batch: Mapping[str, Any], num_outputs: Int[AnyArray, ""]
    ) -> Float[Array, "batch"]: ...


def accept(rows: Any, tokenizer: Any, name: str) -> None:
    """Accepts rows with any tokenizer; see ``KindSpec.check_tokens``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindSpec:
    """A kind of task.

    Attributes:
      name: The kind's name in configs.
      reads: The input of a head.
      num_outputs: Returns a head's number of outputs for the given label names.
      losses: Returns the loss of each row for logits and a batch with ``labels``, ``mask`` and ``weights``.
      padded_losses: Does the same as ``losses`` for logits with additional outputs that do not belong to the head. It
        also takes the head's number of outputs, an int32 scalar. Heads are padded while they train, so that tasks share
        programs. None if ``losses`` only reads the head's own outputs.
      label_axes: The axes of a row's label in a batch, without the batch axis.
      label_dtype: The dtype of labels in a batch.
      output_bias: Returns the initial bias of a head's outputs for the labels of the train rows. None for zeros.
      has_choices: Whether each row has several sequences, one per choice.
      named_outputs: Whether the outputs are the label names, in their order.
      has_classes: Whether each row has exactly one of the label names.
      has_numbers: Whether labels and predictions are numbers.
      metrics: The metrics that early stopping can use; higher is better.
      read: Reads and checks the rows of a source.
      from_lists: Makes rows from Python lists.
      forms: The columns that rows to predict on can have, in order of preference, for a task and its number of texts
        per row (``Rows.text_columns``; None if not known).
      pick: Picks a row's input for ``from_lists``, given the row's name in error messages, its values, and its form.
      check_tokens: Raises UserError if rows cannot be tokenized, given the rows, a tokenizer and the rows' name. A run
        calls it before it writes anything.
      tokenize: Tokenizes rows.
      predict: Returns the predictions for the logits of all tokenized rows, the task and the label names.
      scores: Returns all scores of a split for its predictions, right labels and task. The right labels of a split are
        its ``labels``.
      errors: Returns each row's error for predictions, right labels and task: 0 if the prediction is right and 1 if it
        is wrong, or the absolute error of a number.
      weighted: Returns the scores as a function of the rows' weights, for predictions, right labels and task.
      text: Texts that describe the kind to users.
    """

    name: TaskKind
    reads: Reads = "pooled"
    num_outputs: Callable[[Sequence[str]], int]
    losses: Callable[[Float[AnyArray, "batch ..."], Mapping[str, Any]], Float[Array, "batch"]]
    padded_losses: PaddedLosses | None = None
    label_axes: tuple[LabelAxis, ...] = ()
    label_dtype: Literal["int32", "float32"] = "int32"
    output_bias: Callable[[Any], Float32[np.ndarray, "outputs"]] | None = None
    has_choices: bool = False
    named_outputs: bool = False
    has_classes: bool = False
    has_numbers: bool = False
    metrics: tuple[str, ...]
    read: Read
    from_lists: FromLists
    forms: Callable[[TaskConfig, int | None], list[Form]]
    pick: Callable[[str, dict[str, Any], Form], Any]
    check_tokens: Callable[[Any, Any, str], None] = accept
    tokenize: Tokenize
    predict: Callable[[Float[np.ndarray, "rows ..."], TokenisedRows, TaskConfig, Sequence[str]], Predictions]
    scores: Callable[[Predictions, Any, TaskConfig], dict[str, float]]
    errors: Callable[[Predictions, Any, TaskConfig], Float[np.ndarray, "rows"]]
    weighted: Callable[[Predictions, Any, TaskConfig], Weighted]
    text: KindText

    def label_shape(self, num_outputs: int, length: int) -> tuple[int, ...]:
        """Returns the shape of a row's label in a batch, without the batch axis.

        Args:
          num_outputs: The number of outputs of the (widest) head.
          length: The batch's padded length.
        """
        sizes = {"answer": 2, "outputs": num_outputs, "length": length}
        return tuple(sizes[axis] for axis in self.label_axes)
