"""Parses and validates the bodies of HTTP requests before anything is computed."""

from typing import Any

from starlette.exceptions import HTTPException

from afjax.config.server import ServerConfig
from afjax.errors import UserError
from afjax.serve.columns import ADAPTER_COLUMN
from afjax.storage.json_files import parse_json

_PREDICT_FORM = 'The body must be {"rows": [...]} with at least one row, and optionally "fusion_attention": true.'
_ALL_FORM = 'The body must be {"rows": [...]} with at least one row, and optionally "adapters": a list of names.'


def parse_predict(body: bytes, config: ServerConfig) -> tuple[list[dict[str, Any]], bool]:
    """Parses the body of ``POST /predict``.

    Args:
      body: The body, a JSON object with ``rows`` and optionally ``fusion_attention``.
      config: The server's limits.

    Returns:
      Each row's columns, and whether to return the attention over adapters. The column ``adapter`` is a name, or None
      for an embedding.

    Raises:
      HTTPException: The body does not have this form, or exceeds a limit.
    """
    request = _object(body)
    fusion_attention = request.get("fusion_attention", False)
    if not (set(request) <= {"rows", "fusion_attention"} and isinstance(fusion_attention, bool)):
        raise HTTPException(400, _PREDICT_FORM)
    rows = _rows(request, config, _PREDICT_FORM)
    for index, row in enumerate(rows):
        if ADAPTER_COLUMN not in row:
            raise HTTPException(400, f'rows[{index}] must be an object with the field "{ADAPTER_COLUMN}".')
        if not (row[ADAPTER_COLUMN] is None or isinstance(row[ADAPTER_COLUMN], str)):
            raise HTTPException(400, f'rows[{index}]: "{ADAPTER_COLUMN}" must be a name, or null for an embedding.')
    return rows, fusion_attention


def parse_predict_all(body: bytes, config: ServerConfig) -> tuple[list[dict[str, Any]], list[str] | None]:
    """Parses the body of ``POST /predict_all``.

    Args:
      body: The body, a JSON object with ``rows`` and optionally ``adapters``.
      config: The server's limits.

    Returns:
      Each row's columns, and the names of the adapters, or None for all.

    Raises:
      HTTPException: The body does not have this form, or exceeds a limit.
    """
    request = _object(body)
    names = request.get("adapters")
    is_list = names is None or (isinstance(names, list) and names and all(isinstance(name, str) for name in names))
    if not (is_list and set(request) <= {"rows", "adapters"}):
        raise HTTPException(400, _ALL_FORM)
    try:
        _num_chars(names)
    except UnicodeEncodeError:
        raise HTTPException(400, '"adapters" has a name that is not Unicode.') from None
    rows = _rows(request, config, _ALL_FORM)
    for index, row in enumerate(rows):
        if ADAPTER_COLUMN in row:
            raise HTTPException(
                400, f'rows[{index}] has the field "{ADAPTER_COLUMN}"; list adapters for all rows in "adapters".'
            )
    return rows, names


def _object(body: bytes) -> dict[str, Any]:
    try:
        request = parse_json(body, "The body", expected=None, advice="correct the request", constants=True)
    except UserError as error:
        raise HTTPException(400, str(error)) from None
    return request if isinstance(request, dict) else {}


def _rows(request: dict[str, Any], config: ServerConfig, form: str) -> list[dict[str, Any]]:
    """Extracts the rows, and checks their number and the sizes of their texts."""
    rows = request.get("rows")
    if not (isinstance(rows, list) and rows):
        raise HTTPException(400, form)
    if len(rows) > config.max_rows:
        raise HTTPException(413, f"There are {len(rows)} rows; at most {config.max_rows} are allowed.")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise HTTPException(400, f"rows[{index}] must be an object.")
        try:
            num_chars = _num_chars(row)
        except UnicodeEncodeError:
            raise HTTPException(400, f"rows[{index}] has a text that is not Unicode.") from None
        if num_chars > config.max_text_chars:
            limit = config.max_text_chars
            raise HTTPException(413, f"rows[{index}] has {num_chars} characters; at most {limit} are allowed.")
    return rows


def _num_chars(value: Any) -> int:
    """Counts the characters in all strings of a JSON value.

    Raises:
      UnicodeEncodeError: A string is not valid Unicode, because it has a lone surrogate.
    """
    if isinstance(value, str):
        value.encode()
        return len(value)
    if isinstance(value, dict):
        value = [*value, *value.values()]
    return sum(map(_num_chars, value)) if isinstance(value, list) else 0
