"""Layouts find benchmark files, read their rows, and refuse damaged files."""

import gzip
import json
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

from afjax.data.sources.layouts import Files, Folders, JsonLines, Layout, Split, Squad, Table
from afjax.data.sources.official_rows import (
    by_column,
    by_hash,
    csqa_row,
    fields,
    hashed_split,
    hellaswag_row,
    winogrande_row,
)
from afjax.errors import UserError

TEXT_ROW = fields(text="sentence", label="label", id="index")


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def read(layout: Layout, folder: Path, split: Split = "train") -> list[Any]:
    return list(layout.read(split, layout.find(folder, split)))


def refused(layout: Layout, folder: Path, *words: str, split: Split = "train") -> None:
    with pytest.raises(UserError) as caught:
        read(layout, folder, split)
    for word in (str(folder), *words):
        assert word in str(caught.value)


# Finding files.


def test_first_existing_file_is_used(tmp_path: Path) -> None:
    files = Files(train=("a.tsv", ("b.txt", "b.ids"), "c.tsv"), test=("d.tsv",))
    assert files.find(tmp_path, "train") == ()
    write(tmp_path / "c.tsv", "")
    write(tmp_path / "b.txt", "")
    assert files.find(tmp_path, "train") == (tmp_path / "c.tsv",)
    write(tmp_path / "b.ids.gz", "")
    assert files.find(tmp_path, "train") == (tmp_path / "b.txt", tmp_path / "b.ids.gz")
    write(tmp_path / "a.tsv.gz", "")
    assert files.find(tmp_path, "train") == (tmp_path / "a.tsv.gz",)
    assert files.find(tmp_path, "dev") == files.find(tmp_path / "none", "train") == ()
    assert files.describe("train") == ["a.tsv", "b.txt with b.ids", "c.tsv"]


def test_files_that_identify_the_benchmark_are_required(tmp_path: Path) -> None:
    files = Files(dev=("dev.jsonl",), needs=("train_*.jsonl", "dev-labels.lst"))
    write(tmp_path / "dev.jsonl", "")
    assert files.find(tmp_path, "dev") == ()
    write(tmp_path / "train_xs.jsonl.gz", "")
    assert files.find(tmp_path, "dev") == (tmp_path / "dev.jsonl",)


# Tables.


def test_only_the_test_split_can_lack_labels(tmp_path: Path) -> None:
    layout = Table(train=("train.tsv",), test=("test.tsv",), row=TEXT_ROW)
    content = "index\tsentence\n7\tone\n"
    path = write(tmp_path / "test.tsv", content)
    assert read(layout, tmp_path, "test") == [(f"{path}:2", {"id": "7", "text": "one"})]
    write(tmp_path / "train.tsv", content)
    refused(layout, tmp_path, "train.tsv:2 ", 'no "label"', "index, sentence")


def test_missing_column_is_reported_with_the_existing_columns(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "text\tlabel\none\t1\n")
    refused(Table(train=("train.tsv",), row=TEXT_ROW), tmp_path, "train.tsv:2 ", 'no "sentence"', "text, label")


def test_alternative_numbered_and_renamed_columns(tmp_path: Path) -> None:
    row = fields(text=("Sentence", "sentence"), label=("gold", "label"), rename={"Yes": "Y"}, strip=True)
    write(tmp_path / "train.tsv", "sentence\tlabel\n one \tYes\ntwo\tN\n")
    rows = [row for _, row in read(Table(train=("train.tsv",), row=row, number=True), tmp_path)]
    assert rows == [{"text": "one", "label": "Y", "id": "0"}, {"text": "two", "label": "N", "id": "1"}]


def test_skipped_rows(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "sentence\tlabel\none\tx\n\ty\nthree\t-\n \tx\nfive\t\nsix\nseven\ty\n")
    layout = Table(train=("train.tsv",), row=TEXT_ROW, skip_short=True, drop_empty=True, drop_labels=("-",))
    with pytest.warns(UserWarning, match="Left out") as caught:
        rows = read(layout, tmp_path)
    assert [row["text"] for _, row in rows] == ["one", "seven"]
    short, empty = (str(warning.message) for warning in caught)
    assert has_facts(short, "1 of 7 rows", "too few columns", f"{tmp_path}/train.tsv:7.")
    assert has_facts(empty, "3 of 6 rows", "no label", f"{tmp_path}/train.tsv:3.")


def test_split_is_read_from_the_rows(tmp_path: Path) -> None:
    splits: dict[str, Split] = {"TRAIN": "train", "TRIAL": "dev"}
    layout = Table(every=("all.tsv",), row=TEXT_ROW, choose=by_column("set", splits))
    write(tmp_path / "all.tsv", "sentence\tlabel\tset\none\tx\tTRAIN\ntwo\ty\tTRIAL\nthree\tx\tTRAIN\n")
    assert [row["text"] for _, row in read(layout, tmp_path)] == ["one", "three"]
    assert [row["text"] for _, row in read(layout, tmp_path, "dev")] == ["two"]
    write(tmp_path / "all.tsv", "sentence\tlabel\tset\none\tx\tTRAINING\n")
    refused(layout, tmp_path, "all.tsv:2 ", "'TRAINING'", "TRAIN, TRIAL")


def test_hashed_splits_do_not_depend_on_row_order(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(1000)]
    layout = Table(every=("all.tsv",), row=TEXT_ROW, choose=by_hash)
    found = []
    for order in (texts, texts[::-1]):
        write(tmp_path / "all.tsv", "sentence\tlabel\n" + "".join(f"{text}\tx\n" for text in order))
        splits: tuple[Split, ...] = ("train", "dev", "test")
        found.append([{row["text"] for _, row in read(layout, tmp_path, split)} for split in splits])
    assert found[0] == found[1]
    assert [len(part) for part in found[0]] == [832, 87, 81]
    assert set.union(*found[0]) == set(texts)


def test_hashed_split_is_fixed() -> None:
    assert [hashed_split(text, test=True) for text in ("text 6", "text 12", "é")] == ["test", "dev", "train"]
    shares = Counter(hashed_split(f"{number}", test=False) for number in range(1000))
    assert set(shares) == {"train", "dev"}
    assert 80 < shares["dev"] < 120


# JSON lines, with or without a separate label file.

WINOGRANDE = JsonLines(
    train=(("train.jsonl", "train.lst"), "train.jsonl"), row=winogrande_row, label_lines={"1": 0, "2": 1}
)
SENTENCE = {"sentence": "Ann thanked _ .", "option1": "Bob", "option2": "Cy"}


def write_jsonl(path: Path, *rows: Any) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_labels_in_a_separate_file(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "train.jsonl", SENTENCE, SENTENCE | {"answer": "2"})
    write(tmp_path / "train.lst", "1\r\n2")
    row = {"context": "Ann thanked", "choices": ["Bob .", "Cy ."]}
    assert read(WINOGRANDE, tmp_path) == [(f"{path}:1", row | {"label": 0}), (f"{path}:2", row | {"label": 1})]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("1\n", ("1 label, ", "2 rows")),
        ("1\n2\n1\n", ("3 labels", "2 rows")),
        ("1\n3\n", ("train.lst:2 ", "'3'", "1, 2")),
        ("1\n1\n", ("train.jsonl:2 ", "different labels", "train.lst:2")),
    ],
)
def test_mismatched_labels_are_refused(tmp_path: Path, lines: str, words: tuple[str, ...]) -> None:
    write_jsonl(tmp_path / "train.jsonl", SENTENCE, SENTENCE | {"answer": "2"})
    write(tmp_path / "train.lst", lines)
    refused(WINOGRANDE, tmp_path, *words)


def test_rows_need_labels_without_a_label_file(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", SENTENCE | {"answer": "2"}, SENTENCE)
    refused(WINOGRANDE, tmp_path, "train.jsonl:2 ", 'no "answer"', "sentence, option1, option2")


CHOICES = [{"label": "A", "text": "one"}, {"label": "B", "text": "two"}]


@pytest.mark.parametrize(
    ("question", "answer", "words"),
    [
        ({"stem": "Why?", "choices": []}, "A", ("0 choices; ", "at least two")),
        ({"stem": "Why?", "choices": CHOICES[:1]}, "A", ("1 choice; ", "at least two")),
        ({"stem": "Why?", "choices": CHOICES}, "C", ("'C'", "A, B")),
        ({"stem": "Why?", "choices": "AB"}, "A", ('"choices"', "list of objects")),
        ({"choices": CHOICES}, "A", ('no "stem"', "choices")),
        ({"stem": 3, "choices": CHOICES}, "A", ('3 as "stem"', "must be a string")),
        ("Why?", "A", ('"question"', "object")),
        ({"stem": "Why?", "choices": [{"label": "A"}, {"label": "B"}]}, "A", ('no "text"', "label")),
    ],
)
def test_malformed_questions_are_refused(tmp_path: Path, question: Any, answer: str, words: tuple[str, ...]) -> None:
    write_jsonl(tmp_path / "train.jsonl", {"question": question, "answerKey": answer})
    refused(JsonLines(train=("train.jsonl",), row=csqa_row), tmp_path, "train.jsonl:1 ", *words)


def test_other_malformed_rows_are_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "train.jsonl", SENTENCE | {"sentence": "Ann thanked Bob.", "answer": "1"})
    refused(JsonLines(train=("train.jsonl",), row=winogrande_row), tmp_path, "train.jsonl:1 ", 'without the blank "_"')
    write_jsonl(tmp_path / "train.jsonl", {"ctx_a": "a", "ctx_b": "", "endings": "one", "label": 0})
    refused(JsonLines(train=("train.jsonl",), row=hellaswag_row), tmp_path, "train.jsonl:1 ", "list of strings")
    write_jsonl(tmp_path / "train.jsonl", {"index": [1], "sentence": "one", "label": 0})
    refused(JsonLines(train=("train.jsonl",), row=TEXT_ROW), tmp_path, "train.jsonl:1 ", '[1] as "index"')


# Folders of text files, and archives that contain such folders.

REVIEWS = Folders(
    roots={"train": "train", "test": "test"},
    archives=("reviews",),
    classes={"neg": "negative", "pos": "positive"},
    choose=lambda split, text, number: number < 2,
)


def write_reviews(folder: Path) -> Path:
    for name in (
        "neg/1_2.txt",
        "neg/10_1.txt",
        "neg/2_1.txt",
        "pos/0_9.txt",
        "pos/.hidden",
        "unsup/0_0.txt",
        "urls.txt",
    ):
        write(folder / "train" / name, f"{name} é\n")
    return folder


def test_texts_in_folders(tmp_path: Path) -> None:
    write_reviews(tmp_path)
    assert REVIEWS.find(tmp_path, "train") == (tmp_path / "train",)
    assert REVIEWS.find(tmp_path, "test") == REVIEWS.find(tmp_path, "dev") == ()
    assert read(REVIEWS, tmp_path) == [
        (f"{tmp_path}/train/neg/10_1.txt", {"text": "neg/10_1.txt é", "label": "negative"}),
        (f"{tmp_path}/train/neg/1_2.txt", {"text": "neg/1_2.txt é", "label": "negative"}),
        (f"{tmp_path}/train/pos/0_9.txt", {"text": "pos/0_9.txt é", "label": "positive"}),
    ]


@pytest.mark.parametrize("ending", [".tar.gz", ".tgz"])
def test_texts_in_an_archive(tmp_path: Path, ending: str) -> None:
    archive = tmp_path / f"reviews{ending}"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(write_reviews(tmp_path / "unpacked"), "reviews")
    assert REVIEWS.find(tmp_path, "train") == (archive,)
    unpacked = read(REVIEWS, tmp_path / "unpacked")
    expected = [(place.replace(f"{tmp_path}/unpacked", f"{archive}:reviews"), row) for place, row in unpacked]
    assert read(REVIEWS, tmp_path) == expected


def test_texts_in_a_different_encoding(tmp_path: Path) -> None:
    write_reviews(tmp_path)
    write(tmp_path / "train/pos/0_9.txt", b"fine\ncaf\xe9")
    refused(REVIEWS, tmp_path, "train/pos/0_9.txt:2 ", "UTF-8", "0xe9")
    folders = Folders(roots={"train": "train"}, encoding="latin-1", choose=lambda split, text, number: True)
    rows = read(folders, tmp_path)
    assert [row["label"] for _, row in rows] == ["neg", "neg", "neg", "pos", "unsup"]
    assert rows[3][1]["text"] == "fine\ncafé"


def test_folder_without_all_classes_is_not_found(tmp_path: Path) -> None:
    write(tmp_path / "train/neg/0.txt", "one")
    assert REVIEWS.find(tmp_path, "train") == ()


# SQuAD's files.


def write_squad(path: Path, *questions: Any, context: str = "Ann met Bob in Böblingen.") -> Path:
    paragraph = {"context": context, "qas": list(questions)}
    return write(path, json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]}))


def question(*answers: tuple[str, int], **more: Any) -> dict[str, Any]:
    return {"id": "q1", "question": "Who?", "answers": [{"text": t, "answer_start": s} for t, s in answers]} | more


V1 = Squad(train=("train.json",))
V2 = Squad(train=("train.json",), no_answer=True)


def test_questions(tmp_path: Path) -> None:
    unlabeled = {"id": "q2", "question": "Where?"}
    path = write_squad(tmp_path / "train.json.gz", question(("Bob", 8), ("Böblingen", 15)), unlabeled)
    first, second = read(V1, tmp_path)
    context = "Ann met Bob in Böblingen."
    answers = {"text": ["Bob", "Böblingen"], "answer_start": [8, 15]}
    assert first == (f"{path}:q1", {"id": "q1", "question": "Who?", "context": context, "answers": answers})
    assert second == (f"{path}:q2", {"id": "q2", "question": "Where?", "context": context})


def test_questions_without_an_answer(tmp_path: Path) -> None:
    write_squad(tmp_path / "train.json", question(is_impossible=True, plausible_answers=[{"text": "Bob"}]))
    assert read(V2, tmp_path)[0][1]["answers"] == {"text": [], "answer_start": []}
    refused(V1, tmp_path, "train.json:q1 ", "squad_v2")


@pytest.mark.parametrize(("text", "start", "found"), [("Bob", 7, "' Bo'"), ("Bob", 24, "'.'"), ("Bob", -17, "'Ann'")])
def test_answers_missing_from_the_context(tmp_path: Path, text: str, start: int, found: str) -> None:
    write_squad(tmp_path / "train.json", question((text, start)))
    refused(V1, tmp_path, "train.json:q1 ", f"'Bob' at {start}", found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", ("train.json ", "not JSON")),
        ("[]", ('no list "data"',)),
        ('{"data": {}}', ('no list "data"',)),
        ('{"data": [{"title": "t"}]}', ("data[0] ", 'no list "paragraphs"')),
        ('{"data": [{"paragraphs": ["text"]}]}', ("data[0].paragraphs[0] ", 'no string "context"')),
        ('{"data": [{"paragraphs": [{"context": "c", "qas": [{}]}]}]}', ('no string "id"',)),
        ('{"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "q"}]}]}]}', (":q ", 'no string "question"')),
    ],
)
def test_malformed_squad_is_refused(tmp_path: Path, content: str, words: tuple[str, ...]) -> None:
    write(tmp_path / "train.json", content)
    refused(V1, tmp_path, *words)


@pytest.mark.parametrize(
    ("answers", "word"),
    [("Bob", "list"), ([{"text": "Bob"}], "integer"), ([{"text": "Bob", "answer_start": "8"}], "integer")],
)
def test_malformed_answers_are_refused(tmp_path: Path, answers: Any, word: str) -> None:
    write_squad(tmp_path / "train.json", {"id": "q1", "question": "Who?", "answers": answers})
    refused(V1, tmp_path, "train.json:q1 ", f"no {word}")
