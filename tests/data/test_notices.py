"""Notices report suspicious data and results, with counts."""

import time

import pytest
from facts import has_facts

from afjax.config.tasks import TaskConfig
from afjax.data.notices import (
    blank_texts,
    data_notices,
    many_labels,
    misspelled_label,
    no_better_than_majority,
    null_label,
    rows_in_both,
)
from afjax.data.splits import AnyRows
from afjax.tasks.load import rows_from_lists

TASK = TaskConfig(name="t")


def rows(*texts: object, labels: object = None, kind: str = "classification") -> AnyRows:
    return rows_from_lists(list(texts), labels, kind=kind)  # type: ignore[arg-type]


@pytest.mark.parametrize("blank", ["", "  ", "\n\t", "\u200b", "\u00a0\ufeff"])
def test_blank_texts_are_counted(blank: str) -> None:
    told = blank_texts("dev", rows("a", blank, "b", blank))
    for words in ("2 rows", "4 rows of dev", "row 2"):
        assert words in told
    assert "1 row has" in blank_texts("dev", rows(("a", "b"), ("c", blank)))
    assert "1 row has" in blank_texts("dev", rows((blank, ["b", "c"]), kind="multiple_choice"))
    assert "1 row has" in blank_texts("dev", rows(("q", blank), kind="span"))
    assert blank_texts("dev", rows("a", ".", "0", "一")) == ""


def test_all_distinct_labels_are_counted() -> None:
    texts = [str(row) for row in range(40)]
    told = many_labels("train", rows(*texts, labels=[f"id{row}" for row in range(40)]))
    assert "40 rows of train" in told
    assert "40 different" in told
    assert "35 different" in many_labels("train", rows(*texts, labels=[f"id{min(row, 34)}" for row in range(40)]))
    assert many_labels("train", rows(*texts, labels=[f"id{row // 2}" for row in range(40)])) == ""
    assert "3 different" in many_labels("train", rows(*"abc", labels=["x", "y", "z"]))
    assert "regression" not in many_labels("train", rows(*"abc", labels=["1", "2", "z"]))
    assert '"regression"' in many_labels("train", rows(*"abc", labels=["0.5", "2", "-1e3"]))
    assert many_labels("train", rows(*"ab", labels=["x", "y"])) == ""
    assert many_labels("train", rows(*texts, labels=[row / 7 for row in range(40)], kind="regression")) == ""
    assert many_labels("train", rows(*texts)) == ""


def test_rare_label_similar_to_a_frequent_one_is_reported() -> None:
    texts = [str(row) for row in range(50)]

    def told(*rare: str) -> str:
        labels = [*rare, *["positive", "negative"] * 25]
        return misspelled_label("train", rows(*texts, labels=labels[:50]))

    for words in ('"positve"', "1 row of train has", "row 1", '"positive"'):
        assert words in told("positve")
    assert "2 rows of train have" in told("negatve", "negatve")
    for rare in ("not_positive", "unpositive"):
        assert told(rare) == ""
    numbered = ["class_12", *["class_1", "class_2"] * 25]
    assert misspelled_label("train", rows(*texts, labels=numbered[:50])) == ""
    # There is no notice if three rows share the spelling or if the label is a different word.
    assert told("positve", "positve", "positve") == ""
    assert told("neutral") == ""
    # With thousands of label names, the comparison would take minutes.
    names = [f"frequent_{chr(97 + number % 26)}{number}" for number in range(300)]
    labels = ["positve", *(f"rare {number}" for number in range(300)), *names * 20]
    assert misspelled_label("train", rows(*map(str, range(len(labels))), labels=labels)) == ""
    assert told() == ""
    assert misspelled_label("train", rows(*"abc", labels=["x", "y", "z"])) == ""
    assert misspelled_label("train", rows(*texts, labels=[row / 7 for row in range(50)], kind="regression")) == ""
    many = rows(*texts, labels=[["positve"], *[["positive"]] * 49], kind="multi_label")
    assert misspelled_label("train", many) == ""
    train = rows(*texts, labels=["positve", *["positive", "negative"] * 24, "positive"])
    assert any("misspelled" in notice for notice in data_notices(TASK, {"train": train}))


def test_label_that_may_stand_for_a_missing_one_is_reported() -> None:
    told = null_label("train", rows(*"abc", labels=["x", "NaN", "NaN"]))
    assert has_facts(told, "2 rows of train have", '"NaN"')
    assert null_label("train", rows(*"abc", labels=["x", "none", "nano"])) == ""
    assert null_label("train", rows(*"abc", labels=[0.5, 1.5, 2.5], kind="regression")) == ""
    assert any('"NA"' in notice for notice in data_notices(TASK, {"train": rows(*"ab", labels=["x", "NA"])}))


def test_train_rows_that_also_occur_in_dev_are_counted() -> None:
    train = rows("a", "b", "a", "c", labels=["x", "y", "x", "y"])
    dev = rows("a", "d", "b", "a", labels=["x", "y", "x", "x"])
    told = rows_in_both("t", train, dev)
    assert has_facts(told, "3 of t's 4 train rows", "3 of the 4 ", "2 of them", "same label")
    assert rows_in_both("t", train, rows("d", "e", labels=["x", "y"])) == ""
    pairs = rows(("a", "b"), ("c", "d")), rows(("a", "d"), ("c", "b"))
    assert rows_in_both("t", *pairs) == ""
    choices = rows(("a", ["b", "c"]), kind="multiple_choice"), rows(("a", ["b", "d"]), kind="multiple_choice")
    assert rows_in_both("t", *choices) == ""
    assert "1 of t's 1 train rows" in rows_in_both("t", choices[0], choices[0])
    answer = {"text": ["b"], "answer_start": [0]}
    spans = rows(("a", "b"), labels=[answer], kind="span")
    assert has_facts(rows_in_both("t", spans, spans), "1 of them", "same label")


def test_accuracy_no_better_than_the_majority_class() -> None:
    labels = ["x"] * 17 + ["y"] * 2
    dev = rows(*map(str, range(19)), labels=labels)
    for correct in (17, 16, 0):
        told = no_better_than_majority("head", dev, {"accuracy": correct / 19})
        for words in ("head", f"{correct / 19:.4f}", "0.8947", "17 of 19", '"x"'):
            assert words in told
    assert no_better_than_majority("head", dev, {"accuracy": 18 / 19}) == ""
    assert no_better_than_majority("head", dev, {"f1": 0.0}) == ""
    choices = rows(*[("a", ["b", "c"])] * 4, labels=[0, 0, 0, 1], kind="multiple_choice")
    assert "3 of 4" in no_better_than_majority("head", choices, {"accuracy": 0.75})
    values = rows("a", "b", labels=[1.0, 2.0], kind="regression")
    assert no_better_than_majority("head", values, {"pearson": 0.0}) == ""


def test_valid_data_gives_no_notice() -> None:
    train = rows("a", "b", "c", "d", labels=["x", "y", "x", "y"])
    assert data_notices(TASK, {"train": train, "dev": rows("e", "f", labels=["x", "y"])}) == []


def test_another_metric_than_the_benchmarks_is_reported() -> None:
    splits = {"train": rows("a", "b", labels=["x", "y"]), "dev": rows("e", "f", labels=["x", "y"])}
    (notice,) = data_notices(TaskConfig(name="cola"), splits)
    assert has_facts(notice, "cola ", "matthews", "accuracy")
    for task in (TaskConfig(name="cola", metric="matthews"), TaskConfig(name="rte"), TaskConfig(name="mine")):
        assert data_notices(task, splits) == []


@pytest.mark.slow
def test_many_rows_are_checked_quickly() -> None:
    texts = [(f"text number {row}", f"another text {row}") for row in range(200_000)]
    split = rows_from_lists(texts, ["x", "y"] * 100_000)
    begin = time.perf_counter()
    (told,) = data_notices(TASK, {"train": split, "dev": split})
    assert time.perf_counter() - begin < 20
    assert "200000 of t's 200000 train rows" in told
