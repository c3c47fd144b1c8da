"""Frozen dataclasses from nested mappings and back, for configs, manifests and workdirs."""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from afjax.errors import UserError, did_you_mean

UNIONS = (typing.Union, types.UnionType)


def from_dict(cls: Any, values: Mapping[str, Any], path: str = "config") -> Any:
    """Makes the frozen dataclass ``cls`` from nested mappings.

    Where ``cls`` is a union of dataclasses, ``values["kind"]`` says which of them; without it, it is the first.

    Raises:
      UserError: An unknown key (with a suggestion), a missing one, or a value of another type.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{path} is {values!r}; give its settings as a mapping.")
    if typing.get_origin(cls) in UNIONS:
        cls = _member(typing.get_args(cls), values, path)
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise UserError(
                f"{path}.{key} is not a known setting.{did_you_mean(str(key), fields)}"
                f" {path} takes: {', '.join(fields)}."
            )
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise UserError(f"{path}.{name} is missing; give it a value.")
    return cls(**{key: _convert(hints[key], value, f"{path}.{key}") for key, value in values.items()})


def _member(classes: tuple[Any, ...], values: Mapping[str, Any], path: str) -> Any:
    """The dataclass of a union that ``values["kind"]`` names."""
    kinds = {kind: cls for cls in classes for kind in typing.get_args(typing.get_type_hints(cls)["kind"])}
    kind = values.get("kind", next(iter(kinds)))
    return kinds[_convert(Literal[tuple(kinds)], kind, f"{path}.kind")]


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in UNIONS:
        if value is None and type(None) in arguments:
            return None
        allowed = [kind for kind in arguments if kind is not type(None)]
        choices = tuple(choice for kind in allowed for choice in typing.get_args(kind))
        if choices and all(typing.get_origin(kind) is Literal for kind in allowed):
            return _convert(Literal[choices], value, path)
        if len(allowed) > 1 and isinstance(value, Mapping):
            return from_dict(hint, value, path)
        return _convert(allowed[0], value, path)
    if origin is Literal:
        if value not in arguments:
            names = [str(choice) for choice in arguments]
            raise UserError(
                f'{path} is "{value}"; allowed: {", ".join(name for name in names if name)}.'
                f"{did_you_mean(str(value), names)}"
            )
        return value
    if origin is tuple:
        if isinstance(value, str | Mapping) or not hasattr(value, "__iter__"):
            raise UserError(f"{path} is {value!r}; give a list.")
        return tuple(_convert(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(value))
    if dataclasses.is_dataclass(hint):
        return from_dict(typing.cast(type, hint), value, path)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise UserError(f"{path} is {value!r}; it must be of type {hint.__name__}.")
    return value


def to_dict(config: Any) -> dict[str, Any]:
    """The dataclass as nested dicts and lists, ready for JSON; :func:`from_dict` takes it back."""
    return {
        key: [to_dict(item) if dataclasses.is_dataclass(item) else item for item in value]
        if isinstance(value, tuple)
        else to_dict(value)
        if dataclasses.is_dataclass(value)
        else value
        for key, value in ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
    }
