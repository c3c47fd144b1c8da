"""Multiple choice: each row has a correct choice among its own choices."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import optax
from jax import Array

from afjax.tasks.kind import KindSpec


def losses(logits: Array, batch: Mapping[str, Any]) -> Array:
    """The cross-entropy over each row's choices.

    Logits are ``[batch, choices]``, with the dtype's lowest value for missing choices.
    """
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """All scores of a split; logits as for :func:`losses`."""
    return {"accuracy": float(np.mean(logits.argmax(-1) == labels))}


KIND = KindSpec(
    name="multiple_choice",
    # A head has one output per choice.
    num_outputs=lambda label_names: 1,
    losses=losses,
    has_choices=True,
    metrics=("accuracy",),
    scores=scores,
)
