"""Sorts a training run's flat settings into recipe arguments."""

import dataclasses
from typing import Any

from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.train.options import RunOptions


def recipe_arguments(method: type[Method | FusionMethod | MultitaskMethod] = Method, **settings: Any) -> dict[str, Any]:
    """Sorts settings such as ``partition``, ``seed`` and ``config`` into ``method``, ``options`` and the rest.

    Args:
      method: The class of the recipe's method.
      **settings: Fields of the method and of :class:`RunOptions`, and other arguments of the recipe.
    """
    grouped: dict[str, Any] = {}
    for name, kind in (("method", method), ("options", RunOptions)):
        fields = {field.name for field in dataclasses.fields(kind)}
        grouped[name] = kind(**{key: settings.pop(key) for key in list(settings) if key in fields})
    return {**settings, **grouped}
