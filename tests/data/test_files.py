"""JSONL, TSV and CSV files are parsed, and errors name the file and the line."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

from afjax.data.sources.files import read_lines, read_text, table_rows
from afjax.data.sources.formats import find_split_files, read_rows
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
        path = write(tmp_path / f"{name}{packed}", mark + content.encode())
        rows = list(read_rows(path))
        assert [row for _, row in rows] == [{"text": "é one", "label": "x"}, {"text": "two", "label": "y"}]
        first = 1 if "jsonl" in name else 2
        assert [place for place, _ in rows] == [f"{path}:{first}", f"{path}:{first + 2}"]


def test_tsv_has_no_quoting(tmp_path: Path) -> None:
    rows = list(read_rows(write(tmp_path / "a.tsv", 'text\tlabel\n"half a quote\tx\n')))
    assert rows == [(f"{tmp_path}/a.tsv:2", {"text": '"half a quote', "label": "x"})]


def test_csv_quotes_commas_quotes_and_line_ends(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'text,label\n"one, ""two""\nthree",x\nfour,y\n')
    assert list(read_rows(path)) == [
        (f"{path}:2", {"text": 'one, "two"\nthree', "label": "x"}),
        (f"{path}:4", {"text": "four", "label": "y"}),
    ]


@pytest.mark.parametrize("ending", [".tsv", ".csv"])
def test_blank_line_of_a_table_with_one_column_is_an_empty_text(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"one{ending}", "\ntext\none\n\n\r\ntwo\n\n")
    texts = [(f"{path}:{line}", {"text": text}) for line, text in ((3, "one"), (4, ""), (5, ""), (6, "two"))]
    assert list(read_rows(path)) == texts
    separator = "\t" if ending == ".tsv" else ","
    path = write(tmp_path / f"two{ending}", "text|label\none|x\n\ntwo|y\n".replace("|", separator))
    assert [row["text"] for _, row in read_rows(path)] == ["one", "two"]


def test_unusual_line_separators_do_not_split_a_line(tmp_path: Path) -> None:
    rows = list(read_rows(write(tmp_path / "a.tsv", "text\tlabel\none\u2028two\x0cthree\tx\n")))
    assert rows[0][1]["text"] == "one\u2028two\x0cthree"


def test_missing_file_suggests_the_closest_name(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", "{}")
    refused(tmp_path / "trian.jsonl", "does not exist", 'Did you mean "train.jsonl"?')


def test_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").mkdir()
    refused(tmp_path / "a.tsv", "is a folder")


def test_unknown_format_is_refused(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.txt", "text"), ".jsonl.gz")


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.csv", "a.jsonl.gz"])
@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_empty_file_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    refused(write(tmp_path / name, content), "has no rows")


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_file_with_only_column_names_is_refused(tmp_path: Path, name: str) -> None:
    refused(write(tmp_path / name, "text\n"), "has no rows")


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", "".join(f'{{"text": "{index**9}"}}\n' for index in range(500)))
    path.write_bytes(path.read_bytes()[:-400])
    refused(path, "truncated", "gzip", "line ")


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", "".join(f'{{"text": "{index**9}"}}\n' for index in range(500)))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(UserError, match=re.escape(str(path))):
        list(read_rows(path))


def test_plain_text_named_gz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_text('{"text": "one"}\n')
    refused(path, "gzip")


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv", "a.csv", "a.csv.gz"])
def test_file_that_is_not_utf8_is_refused(tmp_path: Path, name: str) -> None:
    lines = {"jsonl": b'{"text": "one"}\n{"text": "\xe9"}\n', "tsv": b"text\tlabel\ncaf\xe9\tx\n"}
    content = lines["jsonl" if "jsonl" in name else "tsv"].replace(b"\t", b"," if "csv" in name else b"\t")
    refused(write(tmp_path / name, content), ":2 ", "UTF-8", "0xe9")


@pytest.mark.parametrize("line", ['{"text": "one"', "nonsense", '{"text": 1' + "0" * 5000 + "}", "[" * 100_000])
def test_malformed_json_is_refused(tmp_path: Path, line: str) -> None:
    refused(write(tmp_path / "a.jsonl", '{"text": "one"}\n' + line + "\n"), ":2 ", "one JSON object")


@pytest.mark.parametrize("line", ["[1]", '"text"', "null", "3"])
def test_json_line_that_is_not_an_object_is_refused(tmp_path: Path, line: str) -> None:
    refused(write(tmp_path / "a.jsonl", line), ":1 ", "JSON object")


@pytest.mark.parametrize(("line", "columns"), [("one", "1 column, "), ("one\tx\ty", "3 columns, ")])
@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_rows_with_the_wrong_number_of_columns_are_refused(tmp_path: Path, name: str, line: str, columns: str) -> None:
    content = f"text\tlabel\none\tx\n{line}\n"
    path = write(tmp_path / name, content.replace("\t", "," if "csv" in name else "\t"))
    refused(path, ":3 ", f"has {columns}", "names 2 (text, label)")


def test_csv_with_an_unclosed_quote_is_refused(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.csv", 'text,label\none,x\n"two,y\nthree,z\n'), ":3 ", "is not valid CSV")


def test_duplicate_column_name_is_refused(tmp_path: Path) -> None:
    refused(write(tmp_path / "a.csv", "text,text\none,two\n"), ":1 ", 'two columns named "text"')


def test_split_file(tmp_path: Path) -> None:
    write(tmp_path / "train.csv.gz", "text")
    assert find_split_files(tmp_path, "train") == (tmp_path / "train.csv.gz",)
    assert find_split_files(tmp_path, "dev") == ()
    write(tmp_path / "train.tsv", "text")
    with pytest.raises(UserError, match=r"train\.tsv and train\.csv\.gz"):
        find_split_files(tmp_path, "train")


def test_split_of_several_files(tmp_path: Path) -> None:
    names = ["train-00000-of-00003-0a1b.jsonl", "train-00001-of-00003.jsonl", "train-00002-of-00003.jsonl"]
    paths = [write(tmp_path / name, f'{{"text": "{number}"}}') for number, name in enumerate(names)]
    write(tmp_path / "validation-00000-of-00001.csv", "text")
    write(tmp_path / "trains-00000-of-00001.csv", "text")
    assert find_split_files(tmp_path, "train") == tuple(paths)
    assert find_split_files(tmp_path, "dev") == (tmp_path / "validation-00000-of-00001.csv",)
    paths[1].unlink()
    with pytest.raises(UserError) as caught:
        find_split_files(tmp_path, "train")
    assert has_facts(str(caught.value), str(tmp_path), "3", "train", "2", names[0], names[2])
    # The right number of files, but shard 0 twice.
    paths[0].with_name("train-00000-of-00003-0b.jsonl").write_text('{"text": "0"}')
    with pytest.raises(UserError) as caught:
        find_split_files(tmp_path, "train")
    assert has_facts(str(caught.value), "consecutive numbers")
    write(tmp_path / "dev.csv", "text")
    with pytest.raises(UserError) as caught:
        find_split_files(tmp_path, "dev")
    assert has_facts(str(caught.value), str(tmp_path), "dev.csv", "validation-00000-of-00001.csv")


def test_missing_folder_suggests_the_closest_name(tmp_path: Path) -> None:
    (tmp_path / "mnli").mkdir()
    with pytest.raises(UserError, match=r'mnil.*Did you mean "mnli"'):
        find_split_files(tmp_path / "mnil", "train")


def test_old_files_can_use_one_of_several_encodings(tmp_path: Path) -> None:
    encodings = ("utf-8", "cp1252", "latin-1")
    for raw, text in ((b"caf\xc3\xa9", "café"), (b"\x93caf\xe9", "“café"), (b"\x81caf\xe9", "\x81café")):
        path = write(tmp_path / "a.csv", b"one\r" + raw + b"\rthree\r\nfour\n")
        assert list(read_lines(path, encodings)) == [(1, "one\r"), (2, f"{text}\r"), (3, "three\r\n"), (4, "four\n")]
    with pytest.raises(UserError, match=r"a\.csv:3 .*UTF-8 or ascii .*0xff .*column 2"):
        list(read_lines(write(tmp_path / "a.csv", b"one\ntwo\nt\xff\n"), ("utf-8", "ascii")))


def test_read_text_reads_a_whole_file(tmp_path: Path) -> None:
    assert read_text(write(tmp_path / "a.json.gz", b"\xef\xbb\xbf{\r\n}")) == "{\r\n}"
    with pytest.raises(UserError, match=r"a\.json:2 .*UTF-8 .*0xff .*column 3"):
        read_text(write(tmp_path / "a.json", b"{\nab\xff}"))


def table(path: Path, **settings: Any) -> list[Any]:
    return list(table_rows(path, read_lines(path), tabs=".tsv" in path.name, **settings))


def test_table_without_a_header_line(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "x\tone\ny\ttwo")
    assert table(path, names=("label", "text")) == [
        (f"{path}:1", {"label": "x", "text": "one"}),
        (f"{path}:2", {"label": "y", "text": "two"}),
    ]
    with pytest.raises(UserError, match=r"a\.tsv:2 .*3 columns, .*format .*2 \(label, text\)"):
        table(write(tmp_path / "a.tsv", "x\tone\ny\ttwo\tz"), names=("label", "text"))


def test_short_rows_can_be_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "text\tlabel\none\tx\ntwo\nthree\ty\n")
    short: list[str] = []
    assert [row["text"] for _, row in table(path, short=short)] == ["one", "three"]
    assert short == [f"{path}:3"]


def test_csv_as_written_by_spreadsheets(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'v1,v2,,\nham,"a "b" c",,\n')
    assert [row["v2"] for _, row in table(path, lenient=True)] == ['a b" c"']
    refused(path, ":1 ", 'two columns named ""')
    refused(write(tmp_path / "a.csv", 'v1,v2\nham,"a "b" c"\n'), ":2 ", "is not valid CSV")
    refused(write(tmp_path / "a.csv", "text,label\rone,x\rtwo,y\r"), ":1 ", "(CR) outside quotes")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.tsv", "text,label\none,x\n", ("separated by commas", "but tabs", ".csv")),
        ("a.csv", "text\tlabel\none\tx\n", ("separated by tabs", "but commas", ".tsv")),
    ],
)
def test_wrong_separator_is_refused(tmp_path: Path, name: str, content: str, words: tuple[str, ...]) -> None:
    refused(write(tmp_path / name, content), ":1 ", *words)
