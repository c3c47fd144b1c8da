"""Lists the settings of the config dataclasses for the help of ``afjax train``."""

import dataclasses
import functools
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from afjax.config.defaults import LEARNING_RATES, POOL_LIKE_TRUNK
from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import UNIONS, field_types, shown
from afjax.config.ranges import Range


@functools.cache
def settings_text() -> str:
    """Returns the help text with every setting, its default and its allowed values."""
    lines = [
        "settings and their defaults, as in --config.train.epochs=3 (a config may set others):",
        *(f"  {line}" for line in _settings(ExperimentConfig)),
    ]
    return "\n".join(lines)


def _settings(cls: Any, prefix: str = "") -> Iterator[str]:
    """Yields one line per setting of a dataclass and of its nested dataclasses."""
    hints = field_types(cls)
    for field in dataclasses.fields(cls):
        path, members = f"{prefix}{field.name}", _dataclasses(hints[field.name])
        if not members:
            yield _setting(field, hints[field.name], path)
        elif typing.get_origin(hints[field.name]) is tuple:
            yield f"{path}.NAME.SETTING  (of the {field.name.removesuffix('s')} NAME: {_parts(members[0])})"
        elif len(members) == 1:
            yield from _settings(members[0], f"{path}.")
        else:
            for member in members:
                (kind,) = typing.get_args(field_types(member)["kind"])
                yield f"{path}.kind={kind}"
                yield from (
                    f"  {line}" for line in _settings(member, f"{path}.") if not line.startswith(f"{path}.kind=")
                )


def _parts(cls: Any) -> str:
    """Describes the settings in ``tasks.NAME`` or ``sources.NAME``.

    Other lines of the help list them in full.
    """
    hints = field_types(cls)
    parts = [field.name for field in dataclasses.fields(cls) if _dataclasses(hints[field.name])]
    return ", ".join(f"{part}.SETTING" for part in parts) if "task" in parts else "as task.SETTING"


def _setting(field: Any, hint: Any, path: str) -> str:
    names = _allowed(hint)
    if path == "train.learning_rate":
        # The default depends on the partition.
        names = [f"{partition}: {rate:g}" for partition, rate in LEARNING_RATES.items()]
    if path == "head.pooling":
        # The default depends on the trunk.
        names += [f"default: the trunk's own pooling for {', '.join(POOL_LIKE_TRUNK)}; otherwise first"]
    allowed = f"  ({', '.join(names)})" if names else ""
    default = "" if field.default is dataclasses.MISSING else default_text(field.default)
    return f"{path}={default}{allowed}"


def _dataclasses(hint: Any) -> list[Any]:
    """Returns the dataclasses in a hint: itself, a union's members or a tuple's items."""
    if dataclasses.is_dataclass(hint):
        return [hint]
    if typing.get_origin(hint) is tuple or typing.get_origin(hint) in UNIONS:
        return [member for argument in typing.get_args(hint) for member in _dataclasses(argument)]
    return []


def _allowed(hint: Any) -> list[str]:
    """Lists the names or the range of numbers that a type hint allows."""
    if typing.get_origin(hint) is Literal:
        names = [str(name) for name in typing.get_args(hint) if name != ""]
        return names if len(names) > 1 else []
    if typing.get_origin(hint) is Annotated:
        return [str(item) for item in typing.get_args(hint) if isinstance(item, Range) and str(item)]
    if typing.get_origin(hint) in UNIONS:
        return [value for argument in typing.get_args(hint) for value in _allowed(argument)]
    return []


def default_text(value: Any) -> str:
    """Formats a default as text that the command line accepts after ``=``."""
    return (value or "''") if isinstance(value, str) else shown(value)
