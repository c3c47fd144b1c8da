"""Parses and formats the values of flags."""

import ast
from typing import Any

from afjax.errors import UserError


def parse_value(text: str) -> Any:
    """Parses a value of ``--config.SETTING=VALUE`` as a Python literal, or else as a string.

    Example:
      >>> parse_value("1e-3"), parse_value("(32, 64)"), parse_value("data/rte")
      (0.001, (32, 64), 'data/rte')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def split_names(text: str) -> list[str]:
    """Splits a flag's comma-separated names. Spaces around a name and empty names are dropped.

    Example:
      >>> split_names("rte, cb,")
      ['rte', 'cb']
    """
    return [name.strip() for name in text.split(",") if name.strip()]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Parses the value of ``--seeds``. Raises UserError if it is not a list of integers."""
    try:
        return tuple(int(seed) for seed in text.split(","))
    except ValueError:
        raise UserError(f'--seeds is "{text}"; use comma-separated integers, such as --seeds=0,1,2.') from None


def value_text(value: Any) -> str:
    """Formats a value so that :func:`parse_value` returns it.

    Example:
      >>> value_text("data/rte"), value_text("1e-3"), value_text(1e-3)
      ('data/rte', "'1e-3'", '0.001')
    """
    return value if isinstance(value, str) and parse_value(value) == value else repr(value)
