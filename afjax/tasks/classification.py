"""Classification: each row has one of several labels."""

from collections.abc import Mapping
from typing import Any

import optax
from jax import Array

from afjax.tasks.kind import KindSpec
from afjax.tasks.metrics import classification_scores


def losses(logits: Array, batch: Mapping[str, Any]) -> Array:
    """The cross-entropy of each row; logits ``[batch, labels]``."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])


KIND = KindSpec(
    name="classification",
    num_outputs=len,
    losses=losses,
    metrics=("accuracy", "f1", "macro_f1", "matthews"),
    scores=classification_scores,
)
