"""What a kind of task consists of. Each module of this package with a ``KIND`` defines one kind."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from jax import Array

from afjax.config.tasks import TaskKind

# A head reads one pooled vector per row, or the hidden state of every token.
Reads = Literal["pooled", "tokens"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class KindSpec:
    """One kind of task: everything that differs between kinds after its rows are read.

    Attributes:
      name: The kind, as configs name it.
      reads: What a head reads.
      num_outputs: The number of a head's outputs, from the label names.
      losses: The loss of each row, float ``[batch]``, from logits and a batch with ``labels`` and ``mask``.
      label_shape: The axes of a row's label in a batch, after the batch's axis.
      label_dtype: The dtype of labels in a batch.
      has_choices: Whether each row has several sequences, one per choice.
      metrics: The scores that early stopping can follow; a higher value is better.
      scores: Every score of a split, from logits and labels of all rows. None if scores are made of answers.
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
