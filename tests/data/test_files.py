"""Readers of JSONL, TSV and CSV: what they give, and that every bad file is named with its line."""

import gzip
import re
from pathlib import Path

import pytest

from afjax.data.files import find_split_file, read_rows
from afjax.errors import UserError


def write(path: Path, content: str | bytes) -> Path:
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def refused(path: Path, *words: str) -> None:
    with pytest.raises(UserError) as caught:
        list(read_rows(path))
    for word in words:
        assert word in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_all_formats_give_the_same_rows(tmp_path: Path, packed: str, mark: bytes) -> None:
    contents = {
        "a.jsonl": '{"text": "é one", "label": "x"}\n\n{"text": "two", "label": "y"}\n',
        "a.tsv": "text\tlabel\r\né one\tx\r\n\r\ntwo\ty\r\n",
        "a.csv": "text,label\né one,x\n\ntwo,y",
    }
    for name, content in contents.items():
        rows = list(read_rows(write(tmp_path / f"{name}{packed}", mark + content.encode())))
        assert [row for _, row in rows] == [{"text": "é one", "label": "x"}, {"text": "two", "label": "y"}]
        first = 1 if "jsonl" in name else 2
        assert [number for number, _ in rows] == [first, first + 2]


def test_tsv_has_no_quoting(tmp_path: Path) -> None:
    rows = list(read_rows(write(tmp_path / "a.tsv", 'text\tlabel\n"half a quote\tx\n')))
    assert rows == [(2, {"text": '"half a quote', "label": "x"})]


def test_csv_quotes_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    rows = list(read_rows(write(tmp_path / "a.csv", 'text,label\n"one, ""two""\nthree",x\nfour,y\n')))
    assert rows == [(2, {"text": 'one, "two"\nthree', "label": "x"}), (4, {"text": "four", "label": "y"})]


def test_unusual_line_separators_do_not_split_a_line(tmp_path: Path) -> None:
    rows = list(read_rows(write(tmp_path / "a.tsv", "text\tlabel\none\u2028two\x0cthree\tx\n")))
    assert rows[0][1]["text"] == "one\u2028two\x0cthree"


def test_missing_file_suggests_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", "{}")
    refused(tmp_path / "trian.jsonl", "does not exist", 'Did you mean "train.jsonl"?')


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").mkdir()
    refused(tmp_path / "a.tsv", "is a folder")


def test_unknown_format(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.txt", "text"), ".jsonl.gz")


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.csv", "a.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_empty_file(tmp_path: Path, name: str, content: bytes) -> None:
    refused(write(tmp_path / name, content), "has no rows")


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_file_of_column_names_only(tmp_path: Path, name: str) -> None:
    refused(write(tmp_path / name, "text\n"), "has no rows")


def test_truncated_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", "".join(f'{{"text": "{index**9}"}}\n' for index in range(500)))
    path.write_bytes(path.read_bytes()[:-400])
    refused(path, "in the middle of its gzip data", "after line ")


def test_damaged_gzip(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", "".join(f'{{"text": "{index**9}"}}\n' for index in range(500)))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(UserError, match=re.escape(str(path))):
        list(read_rows(path))


def test_plain_text_named_gz(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_text('{"text": "one"}\n')
    refused(path, "gzip")


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.csv", "a.csv.gz"])
def test_not_utf8(tmp_path: Path, name: str) -> None:
    lines = {"jsonl": b'{"text": "one"}\n{"text": "\xe9"}\n', "tsv": b"text\tlabel\ncaf\xe9\tx\n"}
    content = lines["jsonl" if "jsonl" in name else "tsv"].replace(b"\t", b"," if "csv" in name else b"\t")
    refused(write(tmp_path / name, content), ":2 ", "UTF-8", "0xe9")


@pytest.mark.parametrize("line", ['{"text": "one"', "nonsense", '{"text": 1' + "0" * 5000 + "}", "[" * 100_000])
def test_malformed_json(tmp_path: Path, line: str) -> None:
    refused(write(tmp_path / "a.jsonl", '{"text": "one"}\n' + line + "\n"), ":2 ", "is not JSON")


@pytest.mark.parametrize("line", ["[1]", '"text"', "null", "3"])
def test_json_that_is_no_object(tmp_path: Path, line: str) -> None:
    refused(write(tmp_path / "a.jsonl", line), ":1 ", "must be one JSON object")


@pytest.mark.parametrize("line", ["one", "one\tx\ty"])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_rows_with_another_number_of_columns(tmp_path: Path, name: str, line: str) -> None:
    content = f"text\tlabel\none\tx\n{line}\n"
    path = write(tmp_path / name, content.replace("\t", "," if "csv" in name else "\t"))
    refused(path, ":3 ", f"has {line.count(chr(9)) + 1} columns", "names 2 (text, label)")


def test_csv_with_an_open_quote(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.csv", 'text,label\none,x\n"two,y\nthree,z\n'), ":3 ", "is not CSV")


def test_a_column_named_twice(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.csv", "text,text\none,two\n"), ":1 ", '"text" twice')


def test_split_file(tmp_path: Path) -> None:
    write(tmp_path / "train.csv.gz", "text")
    assert find_split_file(tmp_path, "train") == tmp_path / "train.csv.gz"
    assert find_split_file(tmp_path, "dev") is None
    write(tmp_path / "train.tsv", "text")
    with pytest.raises(UserError, match=r"train\.tsv and train\.csv\.gz"):
        find_split_file(tmp_path, "train")


def test_missing_folder_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "mnli").mkdir()
    with pytest.raises(UserError, match=r'mnil.*Did you mean "mnli"'):
        find_split_file(tmp_path / "mnil", "train")
