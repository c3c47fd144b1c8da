"""Regression: each row has a number as label."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from afjax.tasks.kind import KindSpec
from afjax.tasks.metrics import regression_scores


def losses(logits: Array, batch: Mapping[str, Any]) -> Array:
    """The squared error of each row; logits ``[batch, 1]``."""
    return jnp.square(logits[:, 0] - batch["labels"])


def scores(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """All scores of a split; logits ``[rows]`` or ``[rows, 1]``."""
    return regression_scores(logits.reshape(len(labels)).astype(np.float64), labels.astype(np.float64))


KIND = KindSpec(
    name="regression",
    num_outputs=lambda label_names: 1,
    losses=losses,
    label_dtype="float32",
    metrics=("pearson", "spearman"),
    scores=scores,
)
