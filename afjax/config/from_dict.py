"""Converts nested mappings to frozen dataclasses and back.

These functions read and write configs, manifests and workdirs. Most config classes derive from :class:`Settings`, so
configs constructed in Python are validated in the same way as configs that :func:`from_dict` builds from files or
flags.
"""

import dataclasses
import functools
import numbers
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from afjax.errors import UserError, did_you_mean

UNIONS = (typing.Union, types.UnionType)

# Steps, sizes and counts are int32 on the devices.
MAX_INT = 2**31 - 1


class UnknownSettingError(UserError):
    """A mapping has a key that is not a setting.

    Attributes:
      path: The name of the mapping.
      key: The key.
      known: The settings that the mapping can have.
    """

    def __init__(self, path: str, key: str, known: Iterable[str]) -> None:
        self.path, self.key, self.known = path, key, tuple(known)
        super().__init__(
            f"{path}.{key} is not a known setting.{did_you_mean(key, self.known)}"
            f" {path} takes: {', '.join(self.known)}."
        )


def from_dict(cls: Any, values: Mapping[str, Any], path: str = "config") -> Any:
    """Builds an instance of the frozen dataclass ``cls`` from nested mappings.

    If ``cls`` is a union of dataclasses, ``values["kind"]`` selects the member. It defaults to the first.

    Raises:
      UnknownSettingError: A key is unknown.
      UserError: A key is missing, or a value has the wrong type.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{path} is {shown(values)}; it must be a mapping of settings.")
    if typing.get_origin(cls) in UNIONS:
        cls = _member(typing.get_args(cls), values, path)
    hints = field_types(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise UnknownSettingError(path, str(key), fields)
    for name, field in fields.items():
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if needed and name not in values:
            raise UserError(f"{path}.{name} is missing; it has no default.")
    return cls(**{key: check_value(hints[key], value, f"{path}.{key}") for key, value in values.items()})


def check_fields(config: Any, path: str, *, unbounded: tuple[str, ...] = ()) -> None:
    """Validates and converts the fields of a frozen dataclass.

    Call it first in ``__post_init__``. Conversions are the same as in :func:`from_dict`: integers in float fields
    become floats, NumPy numbers become Python numbers, lists become tuples, and mappings become nested dataclasses.

    Args:
      config: The dataclass.
      path: The name of the dataclass in error messages, such as ``train``.
      unbounded: Integer fields that may exceed ``MAX_INT``, because the caller checks their range.

    Raises:
      UserError: A value has the wrong type, a number is outside its range, a string is not one of the allowed values
        (with a suggestion), or the absolute value of an integer exceeds ``MAX_INT``.
    """
    cls: Any = type(config)
    for name, hint in field_types(cls).items():
        value = getattr(config, name)
        checked = check_value(hint, value, f"{path}.{name}")
        if checked is not value:
            object.__setattr__(config, name, checked)
        if name not in unbounded:
            _check_bounds(checked, f"{path}.{name}")


@functools.cache
def field_types(cls: Any) -> Mapping[str, Any]:
    """Returns the types of a dataclass's fields by name, including their ranges."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _check_bounds(value: Any, path: str) -> None:
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            _check_bounds(item, f"{path}[{index}]")
    elif isinstance(value, int) and abs(value) > MAX_INT:
        raise UserError(f"{path} is {shown(value)}; its absolute value must be at most {MAX_INT}.")


def _member(classes: tuple[Any, ...], values: Mapping[str, Any], path: str) -> Any:
    """Selects the member of a union of dataclasses by ``values["kind"]``."""
    kinds = {kind: cls for cls in classes for kind in typing.get_args(field_types(cls)["kind"])}
    kind = values.get("kind", next(iter(kinds)))
    return kinds[check_value(Literal[tuple(kinds)], kind, f"{path}.kind")]


def check_value(hint: Any, value: Any, path: str) -> Any:
    """Checks a value against a type hint, and converts it.

    The conversions are described in :func:`check_fields`.

    Args:
      hint: ``int``, ``float``, ``bool``, ``str``, a number with a :class:`~afjax.config.ranges.Range`, a ``Literal`` of
        strings, a tuple, a mapping from strings, a dataclass, or a union of these.
      value: The value.
      path: The name of the value in error messages.

    Raises:
      UserError: The value does not match the type hint, or is outside its range.

    Example:
      >>> check_value(float, 3, "train.epochs")
      3.0
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        number_type, allowed_range = arguments
        number = check_value(number_type, value, path)
        if number not in allowed_range:
            raise UserError(f"{path} is {shown(number)}; it must be {allowed_range.requirement(number)}.")
        return number
    if origin in UNIONS:
        return _check_union(hint, value, path)
    if origin is Literal:
        return _check_choice(arguments, value, path)
    if origin is tuple:
        return _check_tuple(arguments[0], value, path)
    if origin is Mapping:
        return _check_mapping(arguments[1], value, path)
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, typing.cast(type, hint)) else from_dict(hint, value, path)
    if isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool):
        return value
    if hint is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)  # A NumPy integer.
    if hint is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise UserError(f"{path} is {shown(value)}, which is too large for a floating-point number.") from None
    raise UserError(f"{path} is {shown(value)}; it must be of type {hint.__name__}.")


def _check_union(hint: Any, value: Any, path: str) -> Any:
    """Checks a value against a union: of dataclasses, of choices with a mapping, or of one type and None."""
    kinds = typing.get_args(hint)
    if value is None and type(None) in kinds:
        return None
    allowed = [kind for kind in kinds if kind is not type(None)]
    if all(dataclasses.is_dataclass(kind) for kind in allowed):
        if isinstance(value, tuple(allowed)):
            return value
        if len(allowed) > 1:
            return from_dict(hint, value, path)
    mappings = [kind for kind in allowed if typing.get_origin(kind) is Mapping]
    if mappings and isinstance(value, Mapping):
        return check_value(mappings[0], value, path)
    allowed = [kind for kind in allowed if kind not in mappings]
    choices = tuple(choice for kind in allowed for choice in typing.get_args(kind))
    if mappings and not (isinstance(value, str) and value in choices):
        named = ", ".join(f'"{choice}"' for choice in choices if choice)
        suggestion = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise UserError(f"{path} is {shown(value)}; it must be a mapping or {named}.{suggestion}")
    if choices and all(typing.get_origin(kind) is Literal for kind in allowed):
        return _check_choice(choices, value, path)
    return check_value(allowed[0], value, path)


def _check_choice(choices: tuple[Any, ...], value: Any, path: str) -> Any:
    if any(isinstance(value, type(choice)) and value == choice for choice in choices):
        return value
    names = [str(choice) for choice in choices]
    given = value[:200] if isinstance(value, str) else shown(value)
    raise UserError(
        f'{path} is "{given}"; allowed: {", ".join(name for name in names if name)}.{did_you_mean(given, names)}'
    )


def _check_tuple(hint: Any, value: Any, path: str) -> tuple[Any, ...]:
    """Checks a list, whose items must match ``hint``, and converts it to a tuple."""
    if isinstance(value, str | Mapping | set | frozenset) or not hasattr(value, "__iter__"):
        raise UserError(f"{path} is {shown(value)}; it must be a list.")
    items = tuple(check_value(hint, item, f"{path}[{index}]") for index, item in enumerate(value))
    is_unchanged = isinstance(value, tuple) and all(map(lambda new, old: new is old, items, value))
    return value if is_unchanged else items


def _check_mapping(hint: Any, value: Any, path: str) -> dict[str, Any]:
    """Checks a mapping, whose values must match ``hint``, and converts its keys to strings."""
    if not isinstance(value, Mapping):
        raise UserError(f"{path} is {shown(value)}; it must be a mapping.")
    checked = {}
    for key, item in value.items():
        # Keys can be label names. afjax converts a dataset's integer labels to strings.
        if isinstance(key, bool) or not isinstance(key, str | numbers.Integral):
            raise UserError(f"{path} has the key {shown(key)}; its keys must be strings.")
        checked[str(key)] = check_value(hint, item, f"{path}[{str(key)!r}]")
    if len(checked) < len(value):
        raise UserError(f"{path} is {shown(value)}; two of its keys are the same when converted to strings.")
    return checked


def shown(value: Any) -> str:
    """Formats a value's ``repr`` for an error message, truncated to 200 characters.

    Values whose ``repr`` fails (integers of more than 4,300 digits, deeply nested values) are described by type.
    """
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} that is too long to show"
    return text if len(text) <= 200 else f"{text[:197]}..."


def settings_repr(config: Any) -> str:
    """Formats a config's non-default settings for ``repr``, truncating long values."""
    given = [
        f"{field.name}={_truncate(repr(value))}"
        for field in dataclasses.fields(config)
        if (value := getattr(config, field.name)) != field.default
    ]
    return f"{type(config).__name__}({', '.join(given)})"


def _truncate(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."


class Settings:
    """Base class of config classes: checks and converts the fields, and shows only those that are set.

    Subclasses are frozen dataclasses with ``repr=False``, which keeps this class's repr. A class with further checks
    extends ``__post_init__``.

    Args:
      name: The config's name in error messages, such as ``train``. Inherited if not given.
    """

    _name: ClassVar[str]

    def __init_subclass__(cls, *, name: str = "") -> None:
        if name:
            cls._name = name

    def __post_init__(self) -> None:
        check_fields(self, self._name)

    __repr__ = settings_repr


def to_dict(config: Any) -> dict[str, Any]:
    """Converts a dataclass to nested dicts and lists for JSON.

    :func:`from_dict` is the inverse.
    """
    return {
        key: [to_dict(item) if dataclasses.is_dataclass(item) else item for item in value]
        if isinstance(value, tuple)
        else to_dict(value)
        if dataclasses.is_dataclass(value)
        else value
        for key, value in ((field.name, getattr(config, field.name)) for field in dataclasses.fields(config))
    }
