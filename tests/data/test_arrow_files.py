"""Parquet and Arrow files yield Python values and label names, and errors name the file and the row."""

import importlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from facts import has_facts

from afjax.config.tasks import TaskConfig
from afjax.data.sources.formats import read_rows, rows_of_stream
from afjax.data.splits import ChoiceRows, Rows, SpanRows
from afjax.errors import UserError
from afjax.tasks.by_name import find_task
from afjax.tasks.load import load_split, load_task
from afjax.tasks.prediction_rows import read_prediction_rows

pyarrow = pytest.importorskip("pyarrow")
parquet = importlib.import_module("pyarrow.parquet")

TABLE = {
    "text": ["é one", "two", "three"],
    "label": ["x", "y", "x"],
    "tags": [[0, 1], [], None],
    "answers": [{"text": ["one"], "answer_start": [2]}] * 3,
    "score": [0.5, 1.0, 2.0],
}


def write_parquet(path: Path, table: Any) -> None:
    parquet.write_table(table, path, row_group_size=2)


def write_stream(path: Path, table: Any) -> None:
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


def write_arrow(path: Path, table: Any) -> None:
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


WRITERS = {"parquet": write_parquet, "stream": write_stream, "arrow": write_arrow}


@pytest.fixture(params=WRITERS)
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Returns a function that writes columns to a file. Tests that use it run once per format."""

    def to_file(columns: Any, stem: str = "a", folder: Path = tmp_path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{stem}{'.parquet' if request.param == 'parquet' else '.arrow'}"
        WRITERS[request.param](path, columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns))
        return path

    return to_file


def with_class_names(columns: dict[str, list[Any]], **names: list[str]) -> Any:
    """Builds a table with the metadata that Hugging Face's ``datasets`` writes for ``ClassLabel`` columns."""
    features: dict[str, Any] = {column: {"names": names[column], "_type": "ClassLabel"} for column in names}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pyarrow.table(columns).replace_schema_metadata(metadata)


def refused(make: Callable[..., Any], *args: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        list(make(*args, **settings))
    return str(caught.value)


def test_rows_have_python_types_and_row_numbers(write: Any) -> None:
    path = write(TABLE)
    rows = list(read_rows(path))
    assert [place for place, _ in rows] == [f"{path}:1", f"{path}:2", f"{path}:3"]
    assert [row for _, row in rows] == [{name: values[row] for name, values in TABLE.items()} for row in range(3)]
    assert type(rows[0][1]["tags"]) is list
    assert type(rows[0][1]["tags"][0]) is int
    # Rows can also be read from a pipe, which cannot seek.
    pipe = io.BufferedReader(Pipe(path.read_bytes()))
    assert [row for _, row in rows_of_stream(pipe, "stdin", path.suffix)] == [row for _, row in rows]


class Pipe(io.RawIOBase):
    """A readable stream that cannot seek, like a pipe."""

    def __init__(self, content: bytes) -> None:
        self.content = io.BytesIO(content)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self.content.readinto(buffer)


def test_dev_split_and_digests_equal_those_from_csv(write: Any, tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(60)]
    path = write({"id": range(60), "text": texts, "label": [number % 2 for number in range(60)]})
    csv = tmp_path / "a.csv"
    csv.write_text("id,text,label\n" + "".join(f"{n},{text},{n % 2}\n" for n, text in enumerate(texts)))
    found, expected = (load_task(TaskConfig(name="t", source=str(source))) for source in (path, csv))
    assert {split: rows.digest() for split, rows in found.items()} == {
        split: rows.digest() for split, rows in expected.items()
    }


def test_split_files_in_a_folder(write: Any, tmp_path: Path) -> None:
    folder = tmp_path / "DATA" / "reviews"
    for split, label in (("train", ["x", "y"]), ("dev", ["y", "x"]), ("test", [None, None])):
        write({"text": ["one", "two"], "label": label}, split, folder)
    splits = load_task(find_task("reviews", tmp_path / "DATA"))
    assert list(splits) == ["train", "dev", "test"]
    assert splits["dev"].label_names == ("x", "y")
    assert splits["test"].labels is None
    (folder / "train.csv").write_text("text,label\n")
    assert has_facts(refused(load_task, TaskConfig(name="t", source=str(folder))), str(folder), "train.csv", "train.")


def test_files_named_as_on_the_hub(write: Any, tmp_path: Path) -> None:
    folder = tmp_path / "DATA" / "reviews"
    for number in range(2):
        table = with_class_names({"text": [f"a {number}", f"b {number}"], "label": [1, 0]}, label=["no", "yes"])
        write(table, f"train-0000{number}-of-00002", folder)
    dev = write({"text": ["one", None], "label": ["yes", "no"]}, "validation-00000-of-00001", folder)
    task = find_task("reviews", tmp_path / "DATA")
    rows = load_split(task, "train")
    assert isinstance(rows, Rows)
    assert rows.text_a == ["a 0", "b 0", "a 1", "b 1"]
    assert rows.label_names == ("no", "yes")
    assert has_facts(refused(load_split, task, "dev"), f"{dev}:2 ", '"text"')


def test_other_kinds_of_tasks(write: Any) -> None:
    path = write({"context": ["x", "y"], "choices": [["a", "b"], ["c", "d", "e"]], "label": [0, 2]})
    choices = load_split(TaskConfig(name="t", source=str(path), kind="multiple_choice", dev_share=0), "train")
    assert isinstance(choices, ChoiceRows)
    assert choices.choices == [("a", "b"), ("c", "d", "e")]
    answers = {"text": ["two"], "answer_start": [4]}
    path = write({"question": ["how many"], "context": ["the two"], "answers": [answers]}, "b")
    spans = load_split(TaskConfig(name="t", source=str(path), kind="span", dev_share=0), "train")
    assert isinstance(spans, SpanRows)
    assert spans.labels == [(("two", 4),)]


# Label names.


def labels_of(task: TaskConfig) -> tuple[tuple[str, ...], list[int]]:
    rows = load_split(task, "train")
    assert isinstance(rows, Rows)
    assert rows.labels is not None
    return rows.label_names, rows.labels.tolist()


def test_class_label_names_in_the_metadata(write: Any, tmp_path: Path) -> None:
    columns = {"text": ["one", "two", "three"], "stars": [1, 0, 1]}
    path = write(with_class_names(columns, stars=["2", "1"]), "train")
    assert labels_of(TaskConfig(name="t", source=str(path), label="stars")) == (("2", "1"), [1, 0, 1])
    # labels.json replaces the names.
    (tmp_path / "labels.json").write_text('["poor", "fine"]')
    assert labels_of(TaskConfig(name="t", source=str(tmp_path), label="stars")) == (("poor", "fine"), [1, 0, 1])
    # Without metadata, the labels are their own names.
    assert labels_of(TaskConfig(name="t", source=str(write(columns)), label="stars")) == (("0", "1"), [1, 0, 1])


@pytest.mark.parametrize("text", ["", "[]", '{"info": null}', '{"info": {"features": {"label": {"names": 3}}}}', "{"])
def test_other_metadata_is_ignored(text: str, write: Any) -> None:
    table = pyarrow.table({"text": ["one", "two"], "label": ["x", "y"]}).replace_schema_metadata({"huggingface": text})
    assert labels_of(TaskConfig(name="t", source=str(write(table))))[0] == ("x", "y")


def test_missing_label_is_refused_with_its_row(write: Any) -> None:
    path = write(with_class_names({"text": ["one", "two", "three"], "label": [1, 0, -1]}, label=["no", "yes"]))
    assert has_facts(refused(load_split, TaskConfig(name="t", source=str(path)), "train"), f"{path}:3 ", "no label")


# Files that are refused.


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({}, ("text_a and text_b", "text", "review, stars")),
        ({"text_a": "reviews"}, ('"reviews"', "review, stars", 'Did you mean "review"?')),
        ({"text_a": "review"}, ('"label"', "review, stars")),
        ({"text_a": "review", "label": "star"}, ('"star"', "review, stars", 'Did you mean "stars"?')),
    ],
    ids=["default texts", "text", "default label", "label"],
)
def test_missing_columns_are_refused_with_file_and_row(
    settings: dict[str, str], facts: tuple[str, ...], write: Any
) -> None:
    path = write({"review": ["one", "two"], "stars": [1, 2]})
    message = refused(load_split, TaskConfig(name="t", source=str(path), **settings), "train")
    assert has_facts(message, f"{path}:1 ", *facts)


@pytest.mark.parametrize("value", [None, "bytes"])
def test_non_string_text_is_refused_with_its_row(value: Any, write: Any) -> None:
    texts = [b"one", b"two", b"three"] if value else ["one", "two", None]
    path = write({"text": texts, "label": ["x", "y", "x"]})
    message = refused(load_split, TaskConfig(name="t", source=str(path)), "train")
    assert has_facts(message, f"{path}:{1 if value else 3} ", '"text"')


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "end", "overwritten"])
def test_damaged_files_are_refused(damage: str, write: Any) -> None:
    path = write({"text": [f"text {number}" for number in range(500)], "label": [0, 1] * 250})
    raw = path.read_bytes()
    half = len(raw) // 2
    path.write_bytes(
        {
            "empty": b"",
            "text": b"text,label\none,x\n",
            "cut": raw[:half],
            # This truncates the end marker of an Arrow stream or the last bytes of a footer.
            "end": raw[:-8],
            "overwritten": raw[: half - 60] + b"\xff" * 120 + raw[half + 60 :],
        }[damage]
    )
    for task in (TaskConfig(name="t", source=str(path)), TaskConfig(name="t", train=str(path))):
        assert str(path) in refused(load_split, task, "train")


def test_missing_file_and_file_without_rows_are_refused(write: Any, tmp_path: Path) -> None:
    path = write({"text": ["one"], "label": ["x"]})
    other = path.with_stem("b")
    assert has_facts(refused(read_rows, other), str(other), f'Did you mean "{path.name}"?')
    other.mkdir()
    assert has_facts(refused(read_rows, other), str(other), "folder")
    empty = write(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), "c")
    assert has_facts(refused(read_rows, empty), str(empty), "no rows")
    assert has_facts(refused(read_rows, path.rename(tmp_path / "d.feather")), "d.feather", ".parquet", ".arrow")


def test_duplicate_column_names_are_refused(write: Any) -> None:
    path = write(pyarrow.table([["one"], ["two"]], names=["text", "text"]))
    assert has_facts(refused(read_rows, path), str(path), '"text"')


def test_missing_package_is_named(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(TABLE)
    for module in ("pyarrow", "pyarrow.parquet", "pyarrow.ipc"):
        monkeypatch.setitem(sys.modules, module, None)
    for make in (lambda: read_rows(path), lambda: load_task(TaskConfig(name="t", source=str(path)))):
        assert has_facts(refused(make), str(path), "pyarrow", 'pip install "afjax[datasets]"')


# Predictions.


def test_rows_to_predict_on(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(TABLE)
    task = TaskConfig(name="t")
    kept = {"tags": "tags", "score": "score"}
    from_file = read_prediction_rows(path, task, 1, keep=kept)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(path.read_bytes())))
    piped = read_prediction_rows("-", task, 1, keep=kept, file_format=path.suffix[1:])
    for found in (from_file, piped):
        ((_, rows),) = found.forms
        assert isinstance(rows, Rows)
        assert rows.text_a == TABLE["text"]
        assert [row["tags"] for row in found.kept] == TABLE["tags"]


def test_kept_values_that_json_cannot_express_are_refused(write: Any) -> None:
    path = write({"text": ["one"], "raw": [b"x"], "day": pyarrow.array([1], pyarrow.date32())})
    for column in ("raw", "day"):
        message = refused(lambda name: read_prediction_rows(path, TaskConfig(name="t"), keep={name: name}), column)
        assert has_facts(message, f"{path}:1 ", f'"{column}"', "--keep")
