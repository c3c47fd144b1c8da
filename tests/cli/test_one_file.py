"""A single CSV file serves for training, evaluation and prediction."""

import dataclasses
import importlib
import io
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from afjax.cli.evaluation_rows import rows_of
from afjax.cli.main import main
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.tasks.load import load_split

Refused = Callable[..., str]
Lines = Callable[..., list[str]]

NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
REVIEWS = [
    (f"{word} of the {number}", "many" if word in ("all", "most") else "few")
    for number in NUMBERS
    for word in ("all", "most", "some", "none")
]
CONFIG = """
def get_config(data=""):
    train = {{"max_steps": 2, "batch_size": 8, "max_length": 8, "buckets": (8,), "learning_rate": 1e-3}}
    task = {{"name": "reviews", "source": data, "text_a": "review", "label": "stars"}}
    return {{"recipe": "single", "trunk": {trunk!r}, "task": task, "train": train}}
"""


@pytest.fixture(scope="module")
def home(tiny_trunk_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains on ``reviews.csv``, and returns the folder with that file, ``config.py`` and the workdir ``run``."""
    folder = tmp_path_factory.mktemp("one_file")
    lines = [f"{number},{review},{stars}" for number, (review, stars) in enumerate(REVIEWS)]
    (folder / "reviews.csv").write_text("\ufeff" + "\n".join(["id,review,stars", *lines]) + "\n")
    (folder / "config.py").write_text(CONFIG.format(trunk=str(tiny_trunk_folder)))
    config = f"--config={folder / 'config.py'}:data={folder / 'reviews.csv'}"
    assert main(["train", config, f"--workdir={folder / 'run'}"]) == 0
    return folder


@pytest.fixture
def model(home: Path, tiny_trunk_folder: Path) -> list[str]:
    return [f"--store={home / 'run' / 'store'}", f"--trunk={tiny_trunk_folder}", "--adapter=reviews", "--head=reviews"]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    """Returns a function that runs a command and returns its stdout lines."""

    def run(*words: str) -> list[str]:
        capsys.readouterr()
        assert main(words) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_data_show_describes_the_file(home: Path, tiny_trunk_folder: Path, lines: Lines) -> None:
    plain = home / "reviews.csv"
    flags = ["--text_a=review", "--label=stars", f"--trunk={tiny_trunk_folder}", "--json"]
    for words in ([str(plain)], ["anything", f"--source={plain}"]):
        found = json.loads(lines("data", "show", *words, *flags)[-1])
        splits = found["splits"]
        assert splits.keys() == {"train", "dev"}
        assert sum(split["rows"] for split in splits.values()) == len(REVIEWS)
        assert {name: split["files"] for name, split in splits.items()} == {"train": [str(plain)], "dev": [str(plain)]}
    assert found["task"]["name"] == "anything"


def test_eval_scores_the_dev_rows_of_the_training_run(
    home: Path, model: list[str], lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = json.loads((home / "run" / "target" / "result.json").read_text())[0]["metrics"]
    monkeypatch.chdir(home)
    # The head's training file is recognized by its absolute or relative path, so only its dev rows are scored.
    for source in (home / "reviews.csv", "reviews.csv"):
        scores = json.loads(lines("eval", *model, f"--source={source}")[-1])
        assert 0 < scores["rows"] < len(REVIEWS) / 2
        assert scores["accuracy"] == result["accuracy"]
    other = shutil.copy(home / "reviews.csv", tmp_path / "other.csv")
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in (other, "~/other.csv"):
        assert json.loads(lines("eval", *model, f"--source={source}")[-1])["rows"] == len(REVIEWS)


def test_predict_reads_the_file_and_keeps_columns(
    home: Path, model: list[str], lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = f"--input={home / 'reviews.csv'}"
    printed = lines("predict", *model, source, "--keep=id,review:text,stars:gold")
    rows = [json.loads(line) for line in printed]
    assert [list(row) for row in rows] == [["id", "text", "gold", "logits", "label", "probabilities"]] * len(REVIEWS)
    assert [(row["text"], row["gold"]) for row in rows] == REVIEWS
    assert [row["id"] for row in rows] == [str(number) for number in range(len(REVIEWS))]
    # Without --keep, rows have only these fields, whether they come from a file or from standard input.
    bare = lines("predict", *model, source, "--output=-")
    assert [json.loads(line) for line in bare] == [
        {name: row[name] for name in ("logits", "label", "probabilities")} for row in rows
    ]
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO((home / "reviews.csv").read_bytes())))
    assert lines("predict", *model, "--input=-", "--input_format=csv") == bare
    assert lines("predict", *model, source, f"--output={tmp_path / 'out.jsonl'}") == []
    assert (tmp_path / "out.jsonl").read_text().splitlines() == bare
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copy(home / "reviews.csv", tmp_path / "reviews.csv")
    assert lines("predict", *model, "--input=~/reviews.csv", "--output=~/home.jsonl") == []
    assert (tmp_path / "home.jsonl").read_text().splitlines() == bare


def test_parquet_files_are_scored_like_csv(home: Path, model: list[str], lines: Lines, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / "reviews.parquet"
    reviews, stars = zip(*REVIEWS, strict=True)
    parquet = importlib.import_module("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"review": reviews, "stars": stars}), path)
    assert lines("predict", *model, f"--input={path}") == lines("predict", *model, f"--input={home / 'reviews.csv'}")
    assert json.loads(lines("eval", *model, f"--source={path}")[-1])["rows"] == len(REVIEWS)


def test_predict_truncates_rows_as_in_training(home: Path, model: list[str], lines: Lines, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"review": "all of the two " * 4}) + "\n")
    (default,), (same,), (longer,) = (
        lines("predict", *model, f"--input={rows}", *more) for more in ((), ("--max_length=8",), ("--max_length=32",))
    )
    assert default == same != longer


def test_unknown_columns_to_keep_are_refused(home: Path, model: list[str], refused: Refused) -> None:
    source = f"--input={home / 'reviews.csv'}"
    sentence = refused("predict", *model, source, "--keep=id,reviews")
    for fact in ("reviews.csv:2", '"reviews"', "id, review, stars", 'Did you mean "review"?'):
        assert fact in sentence
    assert '"label"' in refused("predict", *model, source, "--keep=label")


# Files that cannot be used for training.


@pytest.mark.parametrize(
    ("contents", "facts"),
    [
        ("comment,stars\nfine,5\n", (":2 ", '"review"', "comment, stars")),
        ("review\nfine\npoor\n", (":2 ", '"stars"', "columns are review")),
        ("review;stars\nfine;5\n", (":1 ", "semicolons", "review;stars")),
        ("review,stars\nfine,5\npoor\n", (":3 ", "1 column, ", "review, stars")),
        ("fine\n" * 3, (":2 ", '"review"', "columns are fine")),
    ],
    ids=["other columns", "one column", "semicolons", "a column too few", "no names"],
)
def test_malformed_csv_files_are_refused(
    contents: str, facts: tuple[str, ...], home: Path, tmp_path: Path, refused: Refused
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(contents)
    sentence = refused("train", f"--config={home / 'config.py'}:data={path}", f"--workdir={tmp_path / 'run'}")
    for fact in (str(path), *facts):
        assert fact in sentence


def test_rows_of_mixed_types_are_refused(home: Path, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "bad.jsonl"
    good = json.dumps({"review": "fine", "stars": "5"}) + "\n"
    for row, facts in (
        ({"review": 3, "stars": "5"}, (" 3 ", '"review"', "review, stars")),
        ({"review": "fine", "stars": 0.5}, ("0.5",)),
        ({"review": "fine", "stars": ["5"]}, ("['5']",)),
    ):
        path.write_text(good + json.dumps(row) + "\n")
        sentence = refused("train", f"--config={home / 'config.py'}:data={path}", f"--workdir={tmp_path / 'run'}")
        for fact in (f"{path}:2 ", *facts):
            assert fact in sentence


def test_dev_share_that_leaves_no_dev_row_is_refused(home: Path, tmp_path: Path, refused: Refused) -> None:
    config = f"--config={home / 'config.py'}:data={home / 'reviews.csv'}"
    sentence = refused("train", config, f"--workdir={tmp_path / 'run'}", "--config.task.dev_share=1e-9")
    for fact in ("0 of the 32 rows", "dev_share=1e-09", "32 into train"):
        assert fact in sentence


def test_rows_held_out_from_a_recorded_train_file_are_found(tmp_path: Path) -> None:
    lines = [f"text {row},{'ab'[row % 2]}" for row in range(40)]
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    task = TaskConfig(name="reviews", train=str(tmp_path / "reviews.csv"))
    model = SimpleNamespace(task=task, labels=("a", "b"), model=SimpleNamespace(head_name="reviews"))
    assert rows_of(model, "dev").digest() == load_split(task, "dev").digest()
    model.task = TaskConfig(name="reviews")
    with pytest.raises(UserError, match=r'"reviews".*--source'):
        rows_of(model, "dev")


def test_dev_file_of_the_training_run_is_found_by_any_path_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data" / "reviews"
    folder.mkdir(parents=True)
    for name, count in (("train", 40), ("heldout", 6)):
        lines = [f"{name} {row},{'ab'[row % 2]}" for row in range(count)]
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    task = TaskConfig(name="reviews", source=str(folder), dev="heldout.csv")
    model = SimpleNamespace(task=task, labels=("a", "b"), model=SimpleNamespace(head_name="reviews"))
    monkeypatch.chdir(tmp_path)
    expected = load_split(task, "dev").digest()
    for source in (str(folder), f"{folder}/", "data/reviews", "./data/../data/reviews"):
        assert rows_of(model, "dev", source=source).digest() == expected
    assert rows_of(model, "dev", data_dir="data").digest() == expected


def test_integer_labels_of_a_folder_with_another_order_are_refused(tmp_path: Path) -> None:
    task = TaskConfig(name="cola", labels=("unacceptable", "acceptable"))
    model = SimpleNamespace(task=task, labels=task.labels, model=SimpleNamespace(head_name="cola"))
    folder = tmp_path / "cola"
    folder.mkdir()
    (folder / "labels.json").write_text('["acceptable", "unacceptable"]')
    (folder / "dev.csv").write_text("text,label\nFine.,acceptable\nBad the.,unacceptable\n")
    assert rows_of(model, "dev", source=str(folder)).labels.tolist() == [1, 0]
    (folder / "dev.csv").write_text("text,label\nFine.,0\nBad the.,1\n")
    for place in ({"source": str(folder)}, {"data_dir": str(tmp_path)}):
        with pytest.raises(UserError, match=r"dev\.csv:2 "):
            rows_of(model, "dev", **place)
    (folder / "labels.json").write_text('["unacceptable", "acceptable"]')
    assert rows_of(model, "dev", source=str(folder)).labels.tolist() == [0, 1]


def test_split_that_an_earlier_version_ignored_is_ignored_again() -> None:
    task = TaskConfig(name="entail", source="builtin:entail")
    rows = load_split(task, "dev")
    model = SimpleNamespace(task=dataclasses.replace(task, dev="mine.csv"), labels=rows.label_names)
    assert rows_of(model, "dev").digest() == rows.digest()
