"""Checks arrays against annotated dtypes and shapes while tests run.

jaxtyping's import hook wraps the functions and dataclasses of ``MODULES`` when they are imported. Subprocesses started
by tests are not checked.
"""

from collections.abc import Callable
from typing import Any, get_args

from beartype import beartype
from jaxtyping import AbstractArray, install_import_hook

# Packages and modules whose functions take arrays. Two modules cannot be checked. In afjax.model.outputs, JAX also
# builds the pytree ``Outputs`` with leaves that are not arrays, such as the shapes from ``jax.eval_shape``. In
# afjax.trunk.hugging_face, functions take dicts whose arrays have different shapes.
MODULES = (
    "afjax.adapters",
    "afjax.analysis",
    "afjax.fusion",
    "afjax.model.encoder_module",
    "afjax.model.heads",
    "afjax.model.model",
    "afjax.nn",
    "afjax.tasks",
    "afjax.train.loss",
    "afjax.train.multitask_step",
    "afjax.train.step",
    "afjax.trunk.encoder_layer",
    "afjax.trunk.bert",
    "afjax.trunk.embedding",
    "afjax.trunk.encoder",
    "afjax.trunk.post_norm_layer",
    "afjax.trunk.layer_masks",
    "afjax.trunk.layers",
    "afjax.trunk.mpnet",
    "afjax.trunk.pretrained",
    "afjax.trunk.roberta",
    "afjax.trunk.slots",
)


def check_shapes() -> None:
    """Makes the functions of ``MODULES`` check their arguments and results. Call this before importing afjax."""
    install_import_hook(MODULES, "shape_checker.check")


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function to check the array types in its annotations.

    Other types are left to mypy. beartype cannot check all of them, for example protocols.
    """
    hints = function.__annotations__
    function.__annotations__ = {name: hint for name, hint in hints.items() if has_array_type(hint)}
    return beartype(function) if function.__annotations__ else function


def has_array_type(annotation: Any) -> bool:
    """Whether an annotation contains a jaxtyping type."""
    if isinstance(annotation, list):
        return any(map(has_array_type, annotation))
    if isinstance(annotation, type) and issubclass(annotation, AbstractArray):
        return True
    return any(map(has_array_type, get_args(annotation)))
