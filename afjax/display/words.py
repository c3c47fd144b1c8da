"""Formats numbers, names and texts for messages."""

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """Formats a count with its noun, pluralized unless the count is 1.

    Args:
      number: The count.
      noun: The singular noun. Its plural must be formed with "s".

    Example:
      >>> counted(1, "row"), counted(2490, "dev row")
      ('1 row', '2,490 dev rows')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def first_of(items: Sequence[str], most: int = 6) -> str:
    """Joins the first items and counts the others.

    Args:
      items: Names or short descriptions.
      most: The number of items to list.

    Example:
      >>> first_of(["a", "b", "c"], most=2)
      'a, b and 1 more'
    """
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def cut(text: str, limit: int) -> str:
    """Truncates a text to its first ``limit`` characters, followed by an ellipsis.

    Example:
      >>> cut("loss is nan", 4), cut("loss", 4)
      ('loss…', 'loss')
    """
    return text if len(text) <= limit else f"{text[:limit]}…"


def alternatives(numbers: Sequence[int]) -> str:
    """Formats numbers as alternatives.

    Example:
      >>> alternatives([16, 32, 64])
      '16, 32 or 64'
    """
    *others, last = map(str, numbers)
    return f"{', '.join(others)} or {last}" if others else last
