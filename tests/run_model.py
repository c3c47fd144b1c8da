"""Runs a model as one compiled program."""

import functools
from typing import Any

import jax

from afjax.model.model import Model
from afjax.model.outputs import Outputs
from afjax.trees import Tree


@functools.partial(jax.jit, static_argnames=("model", "fusion_attention"))
def run_model(model: Model, params: Tree, batch: Any, **options: Any) -> Outputs:
    """Calls the model with ``params``, ``batch`` and its ``options``.

    This is faster than calling the model itself, which compiles one program per operation and shape. Outputs of two
    models that must be bit-identical are computed without it, because XLA may fuse their operations differently.
    """
    return model(params, batch, **options)
