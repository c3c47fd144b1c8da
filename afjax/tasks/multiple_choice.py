"""Multiple choice: one of each row's own choices."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import optax
from jax import Array

from afjax.tasks.kind import KindSpec


def losses(logits: Array, batch: Mapping[str, Any]) -> Array:
    """The cross-entropy over a row's choices; logits ``[batch, choices]``, the lowest number for missing choices."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Every score of a split; logits as for :func:`losses`."""
    return {"accuracy": float(np.mean(logits.argmax(-1) == labels))}


KIND = KindSpec(
    name="multiple_choice",
    # A head gives each choice one number.
    num_outputs=lambda label_names: 1,
    losses=losses,
    has_choices=True,
    metrics=("accuracy",),
    scores=scores,
)
