"""Reads JSON files that may be damaged or may come from elsewhere.

Every failure raises a ``UserError`` that names the file: invalid JSON, numbers that are too long, excessive nesting, or
the wrong type of document.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from etils import epath

from afjax.errors import UserError
from afjax.storage.paths import AnyPath, error_text

# Manifests, configs and tokenizers nest fewer than 20 levels deep. Python's own limit depends on the Python version.
MAX_DEPTH = 64

_NAMES: Mapping[type, str] = {dict: "an object", list: "a list", str: "a string"}


def parse_json(
    text: str | bytes,
    where: str,
    *,
    expected: type | None = dict,
    advice: str = "restore the file",
    constants: bool = False,
) -> Any:
    """Parses a JSON document.

    Args:
      text: The document; bytes must be UTF-8, with or without a byte order mark.
      where: The file's name, for error messages.
      expected: The required type of the document: ``dict``, ``list`` or ``str``. None allows every type.
      advice: How to fix a bad file; the last part of the error message.
      constants: Whether NaN, Infinity and numbers that overflow to Infinity are allowed. They are allowed in data rows,
        whose columns are checked when they are used.

    Returns:
      The parsed value.

    Raises:
      UserError: The text is not JSON, repeats a key, contains NaN or Infinity (unless ``constants``), nests more than
        ``MAX_DEPTH`` levels, or does not have the expected type.

    Example:
      >>> parse_json('{"hidden_size": 384}', "config.json")
      {'hidden_size': 384}
    """
    decoded = ""
    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = (_DATA if constants else _STRICT).decode(decoded)
    except json.JSONDecodeError as error:
        subject = f"{where}, line {error.lineno}: this" if "\n" in decoded.strip() else where
        raise UserError(f"{subject} is not JSON ({error.msg}); {advice}.") from None
    except RecursionError:
        raise UserError(f"{where} nests more than {MAX_DEPTH} levels deep; {advice}.") from None
    except ValueError as error:  # Not UTF-8, an integer with too many digits, or rejected by _STRICT.
        raise UserError(f"{where} is not valid JSON ({error}); {advice}.") from None
    # Counting brackets is fast, and sufficient for nearly every document.
    if decoded.count("[") + decoded.count("{") > MAX_DEPTH and _depth_exceeds(value, MAX_DEPTH):
        raise UserError(f"{where} nests more than {MAX_DEPTH} levels deep; {advice}.")
    if expected is not None and not isinstance(value, expected):
        raise UserError(f"{where} is {short_json(value)}, but must be {_NAMES[expected]}; {advice}.")
    return value


def read_json(
    path: AnyPath, *, expected: type | None = dict, advice: str = "restore the file", constants: bool = False
) -> Any | None:
    """Reads and parses a JSON file, local or on an object store.

    Args:
      path: The file.
      expected, advice, constants: As in :func:`parse_json`.

    Returns:
      The parsed value, or None if the file does not exist.

    Raises:
      UserError: The file cannot be read, or :func:`parse_json` rejects its contents.
    """
    try:
        text = epath.Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error_text(error)}); {advice}.") from error
    return parse_json(text, str(path), expected=expected, advice=advice, constants=constants)


def read_existing_json(path: AnyPath, *, expected: type | None = dict, advice: str, constants: bool = False) -> Any:
    """Reads a JSON file like :func:`read_json`, but raises UserError if it does not exist."""
    value = read_json(path, expected=expected, advice=advice, constants=constants)
    if value is None:
        raise UserError(f"{path} does not exist; {advice}.")
    return value


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        repeated = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {short_json(repeated)} occurs twice in one object")
    return values


_DATA = json.JSONDecoder(object_pairs_hook=_unique)
_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_reject_constant, parse_float=_finite_float)


def _depth_exceeds(value: Any, limit: int) -> bool:
    """Checks whether lists and objects nest deeper than ``limit``.

    The search is iterative, because deep nesting would exhaust the stack.
    """
    pending = [(value, 1)]
    while pending:
        node, depth = pending.pop()
        if isinstance(node, dict | list):
            if depth > limit:
                return True
            pending.extend((child, depth + 1) for child in (node.values() if isinstance(node, dict) else node))
    return False


def short_json(value: Any) -> str:
    """Formats a value as JSON for an error message, with at most 60 characters."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


def json_digest(value: Any) -> str:
    """Returns the SHA-256 of a JSON value. The order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
