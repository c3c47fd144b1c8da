"""Rows for prediction are read in every format, with the task's columns.

Fields of the rows can be kept, so that they are written with the predictions.
"""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from afjax.config.tasks import TaskConfig
from afjax.data.splits import ChoiceRows, Rows, SpanRows
from afjax.errors import UserError
from afjax.tasks.prediction_rows import parse_keep, read_prediction_rows

REVIEWS = TaskConfig(name="t", text_a="review", label="stars")
OUTPUTS = ("logits", "label", "probabilities")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def refused(*args: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_prediction_rows(*args, **settings)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'id,review\n7,"good, but"\n8,poor\n'),
        ("a.tsv", "id\treview\n7\tgood, but\n8\tpoor\n"),
        ("a.jsonl", '{"id": "7", "review": "good, but"}\n{"id": "8", "review": "poor"}\n'),
        ("a.csv", '\ufeffid,review\n7,"good, but"\n8,poor\n'),
    ],
    ids=["csv", "tsv", "jsonl", "byte order mark"],
)
def test_every_format_is_read_with_the_task_columns(
    name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / name, text)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    kept = {"id": "id"}
    from_file = read_prediction_rows(path, REVIEWS, 1, keep=kept)
    piped = read_prediction_rows("-", REVIEWS, 1, keep=kept, file_format=path.suffix[1:])
    renamed = read_prediction_rows(path.rename(tmp_path / "a.txt"), REVIEWS, keep=kept, file_format=path.suffix[1:])
    for found in (from_file, piped, renamed):
        ((numbers, rows),) = found.forms
        assert isinstance(rows, Rows)
        assert (numbers, rows.text_a) == ([0, 1], ["good, but", "poor"])
        assert found.kept == [{"id": "7"}, {"id": "8"}]
        assert len(found) == 2


def test_standard_input_is_jsonl_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"review\npoor\n")))
    assert "standard input" in refused("-", REVIEWS)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"")))
    assert "no rows" in refused("-", REVIEWS)


def test_default_columns_are_read_if_the_task_columns_are_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"text": "x"}\n{"review": "y", "text": "z"}\n')
    ((_, rows),) = read_prediction_rows(path, REVIEWS, 1).forms
    assert isinstance(rows, Rows)
    assert rows.text_a == ["x", "y"]
    # The first input of a span model is the question, although text_a names the column of the context.
    spans = TaskConfig(name="t", kind="span", text_a="passage", text_b="query")
    row = {"query": "what", "passage": "this"}
    ((_, found),) = read_prediction_rows(write(tmp_path / "a.jsonl", json.dumps(row)), spans).forms
    assert isinstance(found, SpanRows)
    assert (found.questions, found.contexts) == (["what"], ["this"])
    # A TFDS dataset defines its own column names.
    tfds = TaskConfig(name="t", source="tfds:glue/sst2")
    ((_, rows),) = read_prediction_rows(write(tmp_path / "a.csv", "sentence\nfine\n"), tfds, 1).forms
    assert isinstance(rows, Rows)
    assert rows.text_a == ["fine"]


def test_choices_can_be_in_separate_columns(tmp_path: Path) -> None:
    task = TaskConfig(name="t", kind="multiple_choice", text_a="scene", choices=("one", "two"))
    path = write(tmp_path / "a.csv", "scene,one,two\ngrass,red,green\n")
    for form in (None, 1):
        ((_, rows),) = read_prediction_rows(path, task, form).forms
        assert isinstance(rows, ChoiceRows)
        assert (rows.contexts, rows.choices) == (["grass"], [("red", "green")])
    assert '["scene", "question", "one", "two"]' in refused(path, task, 2)


def test_unknown_columns_are_refused_with_the_existing_columns(tmp_path: Path) -> None:
    message = refused(write(tmp_path / "a.csv", "comment,stars\nx,1\n"), REVIEWS, 1)
    for fact in (f"{tmp_path / 'a.csv'}:2", "comment, stars", '["review"]', '["text"]'):
        assert fact in message
    # The task has pairs, so a row with a single text is refused.
    assert '"text_b"' in refused(write(tmp_path / "a.csv", "text\nx\n"), TaskConfig(name="t"), 2)


def test_kept_columns_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"review": "x", "stars": 1}\n{"review": "y", "star": [2]}\n')
    assert read_prediction_rows(path, REVIEWS, keep={"review": "text"}).kept == [{"text": "x"}, {"text": "y"}]
    message = refused(path, REVIEWS, keep={"stars": "stars"})
    for fact in (f"{path}:2", '"stars"', "review, star", 'Did you mean "star"?'):
        assert fact in message
    path = write(tmp_path / "a.jsonl", '{"review": "x", "score": NaN}\n')
    assert "nan" in refused(path, REVIEWS, keep={"score": "score"})


def test_keep_flag_is_parsed() -> None:
    assert parse_keep("", OUTPUTS) == {}
    assert parse_keep("text,label:gold", OUTPUTS) == {"text": "text", "label": "gold"}
    assert parse_keep("raw:text:text", OUTPUTS) == {"raw:text": "text"}
    assert parse_keep('id,"a, b":b,"c ""d"""', OUTPUTS) == {"id": "id", "a, b": "b", 'c "d"': 'c "d"'}


@pytest.mark.parametrize("text", ["label", "text:label", "text,", ":x", "x:", "text,text", "a:x,b:x", "a\rb"])
def test_invalid_keep_flags_are_refused(text: str) -> None:
    with pytest.raises(UserError) as raised:
        parse_keep(text, OUTPUTS)
    assert f"--keep={repr(text) if chr(13) in text else text} " in str(raised.value)
