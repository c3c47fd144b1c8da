"""Applies overrides such as ``train.learning_rate=1e-3`` to the values of a config."""

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from afjax.config.experiment import ExperimentConfig
from afjax.config.flags import parse_value
from afjax.config.from_dict import field_types
from afjax.errors import UserError


def apply_override(values: dict[str, Any], override: str) -> None:
    """Sets the value of one ``SETTING=VALUE`` in nested values.

    Raises:
      UserError: The override has no value, or a parent of the setting has no nested settings.
    """
    key, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"--config.{override} has no value; use --config.{override}=VALUE.")
    *parents, last = setting_parts(values, key)
    node = values
    for parent in parents:
        # Add missing parents here. If there is no such setting, from_dict raises an error later.
        # train.class_weights is "" or a dict.
        if node.get(parent) == "":
            node[parent] = {}
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise UserError(f"--config.{key}: {parent} has no nested settings.")
    value = parse_value(text)
    # A name or column can look like a number.
    node[last] = text if isinstance(value, int | float) and _is_text([*parents, last]) else value


def setting_parts(values: Mapping[str, Any], key: str) -> list[str]:
    """Splits a dotted setting into its parts. The name of a source or task can itself contain dots."""
    root, _, rest = key.partition(".")
    named = values.get(root) if root in ("sources", "tasks") else None
    names = map(str, named) if isinstance(named, Mapping) else ()
    name = max((name for name in names if f"{rest}.".startswith(f"{name}.")), key=len, default="")
    return [root, name, *rest.removeprefix(name).split(".")[1:]] if name else key.split(".")


def _is_text(parts: Sequence[str]) -> bool:
    """Whether the type of a setting is ``str``."""
    hint: Any = ExperimentConfig
    for part in parts:
        if typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]  # The part is the name of a source or task.
        else:
            members: Iterable[Any] = filter(dataclasses.is_dataclass, (hint, *typing.get_args(hint)))
            hint = next((field_types(member).get(part) for member in members), None)
    return hint is str
