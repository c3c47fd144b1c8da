"""The interface of a kind of task. Each module of this package with a ``KIND`` defines one kind."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jax import Array

from afjax.config.tasks import TaskKind

# The input of a head: one pooled vector per row, or the hidden state of every token.
Reads = Literal["pooled", "tokens"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindSpec:
    """A kind of task: everything that differs between kinds except reading rows.

    Attributes:
      name: The kind's name in configs.
      reads: The input of a head.
      num_outputs: Returns a head's number of outputs for the given label names.
      losses: Returns the loss of each row, float ``[batch]``, for logits and a batch with ``labels`` and ``mask``.
      label_shape: The shape of a row's label in a batch, without the batch axis.
      label_dtype: The dtype of labels in a batch.
      has_choices: Whether each row has several sequences, one per choice.
      metrics: The metrics that early stopping can use; higher is better.
      scores: Returns all scores of a split for the logits and labels of all rows. None if the kind is scored by its
        answers.
    """

    name: TaskKind
    reads: Reads = "pooled"
    num_outputs: Callable[[Sequence[str]], int]
    losses: Callable[[Array, Mapping[str, Any]], Array]
    label_shape: tuple[int, ...] = ()
    label_dtype: Literal["int32", "float32"] = "int32"
    has_choices: bool = False
    metrics: tuple[str, ...]
    scores: Callable[[np.ndarray, np.ndarray], dict[str, float]] | None
