"""Parses and formats the values of ``--config.SETTING=VALUE``."""

import ast
from typing import Any


def parse_value(text: str) -> Any:
    """Parses a value as a Python literal, or else as a string.

    Example:
      >>> parse_value("1e-3"), parse_value("(32, 64)"), parse_value("data/rte")
      (0.001, (32, 64), 'data/rte')
    """
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def value_text(value: Any) -> str:
    """Formats a value so that :func:`parse_value` returns it.

    Example:
      >>> value_text("data/rte"), value_text("1e-3"), value_text(1e-3)
      ('data/rte', "'1e-3'", '0.001')
    """
    return value if isinstance(value, str) and parse_value(value) == value else repr(value)
