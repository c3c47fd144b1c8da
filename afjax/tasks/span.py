"""Span: each row's answer is a span of its context.

Long contexts are split into windows by :mod:`afjax.tasks.windows`. Answers are found by
:mod:`afjax.tasks.best_answers`.
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import optax
from jax import Array

from afjax.tasks.kind import KindSpec


def losses(logits: Array, batch: Mapping[str, Any]) -> Array:
    """The mean of the cross-entropies of the answer's first and last token; logits ``[batch, length, 2]``."""
    tokens = jnp.where(batch["mask"][..., None], logits, jnp.finfo(logits.dtype).min)
    return optax.softmax_cross_entropy_with_integer_labels(tokens, batch["labels"], axis=1).mean(-1)


KIND = KindSpec(
    name="span",
    reads="tokens",
    num_outputs=lambda label_names: 2,
    losses=losses,
    label_shape=(2,),
    metrics=("f1", "exact_match"),
    scores=None,
)
