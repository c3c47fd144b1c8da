"""A damaged or hostile JSON file is refused with a UserError that names the file."""

from pathlib import Path

import pytest

from afjax.errors import UserError
from afjax.storage.json_files import MAX_DEPTH, parse_json, read_json


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "null",
        '"bert"',
        '{"a": NaN}',
        '{"a": Infinity}',
        '{"a": 1e999}',
        '{"b": {"a": 1, "a": 1}}',
        '{"a": ' + "9" * 5000 + "}",
        "[" * 100_000,
        '{"a":' * (MAX_DEPTH + 1) + "1" + "}" * (MAX_DEPTH + 1),
        b"\xff\xfe",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_error_about_an_invalid_document_names_the_file(text: str | bytes) -> None:
    with pytest.raises(UserError) as refused:
        parse_json(text, "trunk/config.json")
    assert "trunk/config.json" in str(refused.value)


def test_repeated_keys_of_data_rows_are_refused() -> None:
    with pytest.raises(UserError, match='"text" occurs twice'):
        parse_json('{"text": "a", "text": "b", "label": NaN}', "rows.jsonl:1", constants=True)


def test_deepest_allowed_document_is_read() -> None:
    text = '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH
    assert set(parse_json(text, "x")) == {"a"}


def test_missing_file_returns_none_and_folder_is_refused(tmp_path: Path) -> None:
    assert read_json(tmp_path / "missing.json") is None
    with pytest.raises(UserError) as refused:
        read_json(tmp_path)
    assert str(tmp_path) in str(refused.value)


def test_byte_order_mark_is_skipped_and_top_level_type_is_checked(tmp_path: Path) -> None:
    (tmp_path / "labels.json").write_bytes(b'\xef\xbb\xbf["no", "yes"]')
    assert read_json(tmp_path / "labels.json", expected=list) == ["no", "yes"]
    with pytest.raises(UserError):
        read_json(tmp_path / "labels.json")
