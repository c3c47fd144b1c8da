"""A task without a dev split holds out some train rows as dev rows, and invalid fractions are refused."""

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

from afjax.config.tasks import TaskConfig
from afjax.data.dev_split import divide, row_hashes
from afjax.data.sources.kinds import has_split, open_source
from afjax.data.splits import AnyRows, Rows
from afjax.errors import UserError
from afjax.tasks.load import load_split, load_task, rows_from_lists

TEXTS = [f"text {number}" for number in range(400)]


def write_table(path: Path, texts: list[str]) -> Path:
    """Writes a CSV file whose labels are determined by the texts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("text,label\n" + "".join(f"{text},{'ab'[len(text) % 2]}\n" for text in texts))
    return path


def dev_texts(source: Path, **settings: Any) -> set[str]:
    splits = load_task(TaskConfig(name="t", source=str(source), **settings))
    assert isinstance(splits["dev"], Rows)
    assert isinstance(splits["train"], Rows)
    train, dev = set(splits["train"].text_a), set(splits["dev"].text_a)
    assert not train & dev
    return dev


def test_one_file_is_split_into_train_and_dev_and_counts_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_table(tmp_path / "reviews.csv", TEXTS)
    splits = load_task(TaskConfig(name="reviews", source=str(path)))
    train, dev = len(splits["train"]), len(splits["dev"])
    assert list(splits) == ["train", "dev"]
    assert train + dev == 400
    assert 20 <= dev <= 60
    (line,) = capsys.readouterr().err.splitlines()
    for fact in ("reviews: ", "400 rows", f"{train} train rows", f"{dev} dev rows", str(path), "dev_share=0.1"):
        assert fact in line


@pytest.mark.parametrize(("num_rows", "few"), [(60, True), (400, False)])
def test_few_dev_rows_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str], num_rows: int, few: bool) -> None:
    path = write_table(tmp_path / "reviews.csv", TEXTS[:num_rows])
    num_dev = len(load_task(TaskConfig(name="reviews", source=str(path)))["dev"])
    assert (num_dev < 20) == few
    notes = capsys.readouterr().err.splitlines()[1:]
    assert len(notes) == few
    if few:
        assert has_facts(notes[0], "reviews", f"{num_dev} dev row", "task.dev_share")


def test_new_or_reordered_rows_do_not_change_the_split(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    before = dev_texts(write_table(path, TEXTS))
    more = [*TEXTS, *(f"more {number}" for number in range(200))]
    random.Random(0).shuffle(more)
    after = dev_texts(write_table(path, more))
    assert before == {text for text in after if text.startswith("text")}
    # A larger fraction adds dev rows and removes none.
    assert before < dev_texts(write_table(path, TEXTS), dev_share=0.3)


def test_split_does_not_depend_on_format_columns_or_labels(tmp_path: Path) -> None:
    expected = dev_texts(write_table(tmp_path / "reviews.csv", TEXTS))
    rows = [{"id": number, "stars": number % 5, "review": text} for number, text in enumerate(TEXTS)]
    path = tmp_path / "reviews.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert dev_texts(path, text_a="review", label="stars") == expected


def test_equal_rows_share_a_split(tmp_path: Path) -> None:
    splits = load_task(TaskConfig(name="t", source=str(write_table(tmp_path / "a.tsv.csv", TEXTS * 3))))
    for rows in splits.values():
        assert isinstance(rows, Rows)
        assert {rows.text_a.count(text) for text in rows.text_a} == {3}


def test_folder_with_only_a_train_file_and_explicit_train_file(tmp_path: Path) -> None:
    folder = write_table(tmp_path / "folder" / "train.csv", TEXTS).parent
    expected = dev_texts(folder)
    assert len(expected) > 1
    assert dev_texts(folder.parent / "folder", train="train.csv") == expected
    task = TaskConfig(name="t", train=str(folder / "train.csv"))
    assert len(load_split(task, "dev")) == len(expected)
    assert len(load_split(task, "train")) == 400 - len(expected)
    # If the folder has a dev file or the task names one, that file is the dev split and train is not split.
    write_table(folder / "dev.csv", ["one", "four"])
    assert dev_texts(folder) == {"one", "four"}
    assert dev_texts(folder / "train.csv", dev="dev.csv") == {"one", "four"}
    assert not has_split(TaskConfig(name="t", source=str(folder / "train.csv")), "test")


def test_labels_json_next_to_a_single_file_is_ignored(tmp_path: Path) -> None:
    write_table(tmp_path / "reviews.csv", TEXTS)
    (tmp_path / "labels.json").write_text('["x", "y"]')
    assert load_task(TaskConfig(name="t", source=str(tmp_path / "reviews.csv")))["dev"].label_names == ("a", "b")


def test_label_names_come_from_all_rows(tmp_path: Path) -> None:
    path = write_table(tmp_path / "reviews.csv", TEXTS)
    (dev_text, *_) = dev_texts(path)
    path.write_text(path.read_text().replace(f"{dev_text},", f"{dev_text},rare"))
    task = TaskConfig(name="t", source=str(path))
    names = {load_split(task, split).label_names for split in ("train", "dev")}  # type: ignore[arg-type]
    assert len(names) == 1
    assert any(name.startswith("rare") for name in names.pop())


def test_train_rows_are_limited_after_the_split(tmp_path: Path) -> None:
    path = write_table(tmp_path / "reviews.csv", TEXTS)
    task = TaskConfig(name="t", source=str(path), train_rows=50)
    splits = load_task(task)
    assert len(splits["train"]) == 50
    assert load_split(task, "train").digest() == splits["train"].digest()
    assert len(splits["dev"]) == len(dev_texts(path))


def test_every_task_kind_is_split() -> None:
    task = TaskConfig(name="t", dev_share=0.5)
    numbers = range(60)
    kinds: list[AnyRows] = [
        rows_from_lists([(f"a {n}", "b") for n in numbers], [0.5] * 60, kind="regression"),
        rows_from_lists([("context", [f"a {n}", "b"]) for n in numbers], [0] * 60, kind="multiple_choice"),
        rows_from_lists([(f"what {n}", "context") for n in numbers], kind="span"),
    ]
    for rows in kinds:
        assert {len(part) for part in divide(task, rows, "rows")} != {60, 0}
        assert ((row_hashes(rows) >= 0) & (row_hashes(rows) < 1)).all()
        assert len(set(row_hashes(rows))) == 60


@pytest.mark.parametrize(("share", "numbers"), [(1e-6, ("0", "400")), (1 - 1e-9, ("400", "0"))])
def test_share_that_leaves_a_split_empty_is_refused_with_counts(
    share: float, numbers: tuple[str, str], tmp_path: Path
) -> None:
    task = TaskConfig(name="t", source=str(write_table(tmp_path / "reviews.csv", TEXTS)), dev_share=share)
    with pytest.raises(UserError) as caught:
        load_task(task)
    for fact in (f"dev_share={share:g}", f"{numbers[0]} of the 400 rows", f"{numbers[1]} into train"):
        assert fact in str(caught.value)


def test_suggested_share_works(tmp_path: Path) -> None:
    path = write_table(tmp_path / "reviews.csv", ["one", "four", "seven", "five"])
    with pytest.raises(UserError) as caught:
        load_task(TaskConfig(name="t", source=str(path), dev_share=0.001))
    share = float(re.findall(r"task\.dev_share [a-z ]*([\d.e-]+)", str(caught.value))[-1])
    assert len(load_task(TaskConfig(name="t", source=str(path), dev_share=share))["dev"]) >= 1


def test_share_that_leaves_no_train_row_is_lowered(tmp_path: Path) -> None:
    path = write_table(tmp_path / "reviews.csv", ["a", "bc", "d"])
    with pytest.raises(UserError) as caught:
        load_task(TaskConfig(name="t", source=str(path), dev_share=0.6))
    share = float(re.findall(r"task\.dev_share to at most ([\d.]+)", str(caught.value))[-1])
    splits = load_task(TaskConfig(name="t", source=str(path), dev_share=share))
    assert share < 0.6
    assert min(len(splits["train"]), len(splits["dev"])) >= 1
    same = rows_from_lists(["one", "one"], ["a", "b"])
    with pytest.raises(UserError, match="dev split"):
        divide(TaskConfig(name="t"), same, "rows")


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan"), "half"])
def test_invalid_shares_are_refused(share: Any) -> None:
    with pytest.raises(UserError, match="dev_share"):
        TaskConfig(name="t", dev_share=share)


# Files that are read or suggested.


def refused(split: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        open_source(TaskConfig(name="t", **settings), split)
    return str(caught.value)


def test_zero_share_requires_a_dev_file(tmp_path: Path) -> None:
    path = write_table(tmp_path / "reviews.csv", TEXTS)
    message = refused("dev", source=str(path), dev_share=0)
    assert str(path) in message
    assert "dev_share" in message
    assert "Did you mean" not in message
    assert "Did you mean" not in refused("test", source=str(path))


def test_dev_split_under_another_name_is_suggested(tmp_path: Path) -> None:
    write_table(tmp_path / "train.csv", TEXTS)
    for name in ("validation.csv", "val.jsonl", "dev_matched.tsv.gz", "Valid.csv"):
        other = write_table(tmp_path / name, TEXTS)
        assert f'Did you mean "{name}"?' in refused("dev", source=str(tmp_path))
        other.unlink()
    write_table(tmp_path / "devices.csv", TEXTS)
    assert len(dev_texts(tmp_path)) > 1


def test_unrelated_files_are_not_suggested_for_a_split(tmp_path: Path) -> None:
    for name in ("train.jsonl", "reviews.jsonl", "labels.json"):
        (tmp_path / name).write_text("{}")
    for split in ("dev", "test"):
        assert "Did you mean" not in refused(split, source=str(tmp_path), dev_share=0)


def test_given_file_is_not_suggested(tmp_path: Path) -> None:
    for name in ("reviews.txt", "reviews"):
        path = write_table(tmp_path / name, TEXTS)
        with pytest.raises(UserError) as caught:
            load_task(TaskConfig(name="t", source=str(path)))
        assert str(path) in str(caught.value)
        assert ".csv" in str(caught.value)
        assert "Did you mean" not in str(caught.value)
    message = refused("train", source=str(tmp_path / "folder"))
    assert ".csv" in message
    (tmp_path / "reviews.csv").mkdir()
    assert "Did you mean" not in refused("train", source=str(tmp_path / "reviews.csv"), train="")


def test_missing_file_is_reported_as_a_file(tmp_path: Path) -> None:
    write_table(tmp_path / "reviews.csv", TEXTS)
    with pytest.raises(UserError, match=r'review\.csv .*not exist.*Did you mean "reviews\.csv"'):
        load_task(TaskConfig(name="t", source=str(tmp_path / "review.csv")))


def test_single_file_with_a_train_file_is_refused(tmp_path: Path) -> None:
    path = write_table(tmp_path / "reviews.csv", TEXTS)
    assert "other.csv" in refused("train", source=str(path), train="other.csv")
