"""Class labels are never reinterpreted, and two spellings of a label never become two classes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts

from afjax.config.tasks import TaskConfig
from afjax.data.labels import indices_are_clear, name_classes, spelling
from afjax.errors import UserError
from afjax.tasks.load import load_split, load_task, rows_from_lists

# Two spellings of the same label.
ALIKE = {
    "a blank at the end": ("few", "few "),
    "a blank in front": ("few", "\tfew"),
    "two blanks inside": ("very few", "very  few"),
    "a no-break space": ("very few", "very\u00a0few"),
    "composed and decomposed": ("caf\u00e9", "cafe\u0301"),
    "a zero-width space": ("few", "fe\u200bw"),
    "a zero-width joiner": ("few", "few\u200d"),
    "a byte order mark": ("few", "\ufefffew"),
    "a soft hyphen": ("few", "fe\u00adw"),
    "a variation selector": ("\u2764", "\u2764\ufe0f"),
    "full-width letters": ("few", "\uff46\uff45\uff57"),
    "upper case": ("few", "Few"),
    "a decimal point": ("1", "1.0"),
    "a leading zero": ("1", "01"),
    "a plus sign": ("1", "+1"),
    "an exponent": ("100", "1e2"),
    "zeros": ("0", "-0"),
    "a blank and a zero": ("1", " 1.00 "),
    "digits of another script": ("12", "\u0661\u0662"),
    "a long number": ("9" * 5000, "0" + "9" * 5000),
}


def write_split(folder: Path, split: str, *labels: Any) -> None:
    rows = [{"text": f"{split} {number}", "label": label} for number, label in enumerate(labels)]
    (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def task(folder: Path, **settings: Any) -> TaskConfig:
    return TaskConfig(name="t", source=str(folder), **settings)


def message(make: Any, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UserError) as raised:
        make(*args, **kwargs)
    return str(raised.value)


@pytest.mark.parametrize("case", ALIKE)
def test_two_spellings_of_a_label_are_refused(case: str, tmp_path: Path) -> None:
    first, second = ALIKE[case]
    write_split(tmp_path, "train", first, "other", first, second, first)
    told = message(load_split, task(tmp_path), "train")
    for words in ("train.jsonl:1 ", "train.jsonl:4 ", "1 row)", "3 rows)", ascii(first)[:20], ascii(second)[:20]):
        assert words in told
    assert "texts:3" in message(rows_from_lists, list("abcde"), [first, "other", first, second, first])


@pytest.mark.parametrize("case", ALIKE)
def test_listed_spellings_are_separate_labels(case: str, tmp_path: Path) -> None:
    names = ALIKE[case]
    for split in ("train", "dev"):
        write_split(tmp_path, split, *names)
    from_lists = rows_from_lists(["a", "b"], names, label_names=names)
    for listed in (load_split(task(tmp_path, labels=names), "train"), from_lists):
        assert listed.labels is not None
        assert listed.labels.tolist() == [0, 1]
    (tmp_path / "labels.json").write_text(json.dumps(names))
    assert load_split(task(tmp_path), "train").label_names == names


@pytest.mark.parametrize("case", ALIKE)
def test_different_spelling_in_dev_is_refused(case: str, tmp_path: Path) -> None:
    first, second = ALIKE[case]
    write_split(tmp_path, "train", first, "other")
    write_split(tmp_path, "dev", "other", second)
    told = message(load_task, task(tmp_path))
    for words in ("dev.jsonl:2 ", ascii(first)[:20], ascii(second)[:20]):
        assert words in told


@pytest.mark.parametrize(
    "names",
    [("few", "many"), ("1", "2"), ("1", "1.5"), ("a1", "a01"), ("x", "1x"), ("1e5", "1e6"), ("é", "e"), ("一", "二")],
)
def test_distinct_labels_are_separate_classes(names: tuple[str, str], tmp_path: Path) -> None:
    write_split(tmp_path, "train", *names, *names)
    assert set(load_split(task(tmp_path), "train").label_names) == set(names)


# Labels that are indices instead of names.


def test_numbers_that_spell_labels_differently_are_not_indices(tmp_path: Path) -> None:
    write_split(tmp_path, "train", "1.0", "2.0", "3.0")
    write_split(tmp_path, "dev", "3.0", "1", "2")
    told = message(load_task, task(tmp_path))
    assert "dev.jsonl:2 " in told
    assert "'1'" in told
    assert "'1.0'" in told
    for names in (("1.0", "2.0", "3.0"), ("1 star", "2 stars", "3 stars"), ("class_1", "class_2", "class_3")):
        write_split(tmp_path, "train", *names)
        for label in ("1", 1):
            write_split(tmp_path, "dev", label)
            for listed in ({}, {"labels": names}):
                assert "dev.jsonl:1 " in message(load_task, task(tmp_path, **listed))


@pytest.mark.parametrize("label", [1, "1"])
def test_index_requires_listed_names(label: Any, tmp_path: Path) -> None:
    write_split(tmp_path, "train", "bad", "good")
    write_split(tmp_path, "dev", label, 0)
    told = message(load_task, task(tmp_path))
    assert "dev.jsonl:1 " in told
    assert "labels.json" in told
    for listed in ({"labels": ("good", "bad")}, {}):
        if not listed:
            (tmp_path / "labels.json").write_text('["good", "bad"]')
        dev = load_task(task(tmp_path, **listed))["dev"]
        assert dev.labels is not None
        assert (dev.label_names[dev.labels[0]], dev.labels.tolist()) == ("bad", [1, 0])


@pytest.mark.parametrize("names", [("false", "true"), ("True", "False")])
def test_booleans_match_names_in_any_spelling(names: tuple[str, str], tmp_path: Path) -> None:
    write_split(tmp_path, "dev", True, False, "True", "false", "TRUE")
    dev = load_split(task(tmp_path, labels=names), "dev")
    assert [dev.label_names[label].lower() for label in dev.labels] == ["true", "false", "true", "false", "true"]


@pytest.mark.parametrize("label", [1, "1"])
def test_indices_into_the_labels_of_a_head_are_noted(
    label: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The user may not know the order of labels that were collected from the train split."""
    write_split(tmp_path, "dev", label, 0)
    names = ("bad", "good")
    rows = load_split(task(tmp_path), "dev", label_names=names, listed=True)
    assert rows.labels.tolist() == [1, 0]
    assert has_facts(capsys.readouterr().err, "Note", "dev", "0 = bad, 1 = good")
    load_split(task(tmp_path, labels=names), "dev", label_names=names, listed=True)
    write_split(tmp_path, "dev", "good", "bad")
    load_split(task(tmp_path), "dev", label_names=names, listed=True)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("no", "yes"), True),
        (("LABEL_0", "LABEL_1"), True),
        (("covid-19", "flu"), True),
        (("sports", "sci.med", "h1n1"), True),
        (("0", "1"), False),  # The integer 0 is parsed as the name "0", whose index is 0.
        (("1.0", "2.0"), False),
        (("no", " 1 "), False),
        (("no", "1e0"), False),
        (("LABEL_1", "LABEL_2"), False),
        (("1 star", "2 stars"), False),
        (("1,0", "2,0"), False),
        (("no", "0-5"), False),
        (("Q1", "Q2", "Q3"), False),
        (("1st", "2nd"), False),
        (("class_01", "class_02"), False),
        (("Q0", "Q1", "Q2"), True),
        (("mp3", "wav"), True),
    ],
)
def test_integer_is_an_index_only_if_unambiguous(names: tuple[str, ...], expected: bool) -> None:
    assert indices_are_clear(names) == expected


# Label order.


@pytest.mark.slow
def test_label_order_does_not_depend_on_hashes() -> None:
    labels = ["b", "10", "a", "9", "é", "-1", "x y", "2.5", "ß", "٣"]
    code = f"""
from afjax.tasks.load import rows_from_lists
labels = {labels!r}
print(ascii(rows_from_lists([str(row) for row in range(len(labels))], labels).label_names))
print(rows_from_lists(["a", "b", "c"], [10, 9, -1]).label_names)
try:
    rows_from_lists(list("abcd"), ["1", "01", "0", "00"])
except ValueError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2", "3")
    }
    (told,) = found
    names, numbers, refusal = told.splitlines()
    assert names == ascii(tuple(sorted(labels)))
    assert numbers == "('-1', '9', '10')"
    assert has_facts(refusal, "texts:1 ", "label '01'")


def test_label_with_many_digits(tmp_path: Path) -> None:
    digits = "9" * 5000
    write_split(tmp_path, "train", digits, "1")
    assert load_split(task(tmp_path), "train").label_names == ("1", digits)
    assert "train.jsonl:1 " in message(load_split, task(tmp_path, labels=("a", "b")), "train")
    assert "train.jsonl:1 " in message(load_split, task(tmp_path, kind="regression"), "train")
    assert "texts:0 " in message(rows_from_lists, ["a", "b"], [10**5000, 1])
    assert "texts:0 " in message(rows_from_lists, ["a", "b"], [10**5000, 1], kind="regression")
    choices = [("context", ["a", "b"])]
    for label in (digits, 10**5000):
        assert "texts:0 " in message(rows_from_lists, choices, [label], kind="multiple_choice")


@pytest.mark.parametrize("label", ["", " ", "\t", "\u200b", "\u00a0 \ufeff", None])
def test_label_without_a_visible_character_is_missing(label: Any, tmp_path: Path) -> None:
    write_split(tmp_path, "train", "a", "b", label)
    for listed in ({}, {"labels": ("a", "b")}):
        told = message(load_split, task(tmp_path, **listed), "train")
        assert "train.jsonl:3 " in told
        assert "no label" in told
    if label is not None:
        with pytest.raises(UserError, match="label names"):
            load_split(task(tmp_path, labels=("a", label)), "train")


@pytest.mark.parametrize("names", [(0, 1), ("a", None), ("a", "a"), ("a",), ("a", "")])
def test_label_names_must_be_distinct_strings(names: Any) -> None:
    assert "label names" in message(rows_from_lists, ["a", "b"], [0, 1], label_names=names)


def test_numpy_labels_equal_python_labels() -> None:
    rows = rows_from_lists(["a", "b", "c"], np.array([2, 0, 1]), label_names=("x", "y", "z"))
    assert rows.labels is not None
    assert rows.labels.tolist() == [2, 0, 1]
    assert rows_from_lists(["a", "b"], np.array(["few", "many"])).label_names == ("few", "many")


@pytest.mark.parametrize("depth", [65, 900, 100_000])
def test_deeply_nested_label_names_are_refused(depth: int, tmp_path: Path) -> None:
    write_split(tmp_path, "train", "a", "b")
    (tmp_path / "labels.json").write_text("[" * depth + '"a"' + "]" * depth)
    assert "labels.json" in message(load_split, task(tmp_path), "train")


@pytest.mark.parametrize("contents", ["null", '"ab"', '{"a": 0}', "[1, 2]", '["a", NaN]', "[" + "9" * 5000 + ', "a"]'])
def test_label_names_of_the_wrong_type_are_refused(contents: str, tmp_path: Path) -> None:
    write_split(tmp_path, "train", "a", "b")
    (tmp_path / "labels.json").write_text(contents)
    assert "labels.json" in message(load_split, task(tmp_path), "train")


@pytest.mark.parametrize("target", ["labels.json", "nothing.json", "."])
def test_unreadable_symlink_for_label_names_is_refused(target: str, tmp_path: Path) -> None:
    write_split(tmp_path, "train", "a", "b")
    (tmp_path / "labels.json").symlink_to(target)
    assert "labels.json" in message(load_split, task(tmp_path), "train")


def test_number_with_an_out_of_range_exponent_is_a_string() -> None:
    assert spelling("1e" + "9" * 30) == "1e" + "9" * 30


# Datasets that store label indices.


def named(label: Any, names: tuple[str, ...], **settings: Any) -> Any:
    ((_, row),) = name_classes(TaskConfig(name="t", **settings), [("a:1", {"text": "x", "label": label})], names)
    return row["label"]


def test_stored_class_indices_become_names() -> None:
    assert [named(index, ("2", "1")) for index in (0, 1, -1)] == ["2", "1", None]
    assert named([[1, 0], [-1]], ("O", "B")) == [["B", "O"], [None]]
    # Other values, and datasets without label names, are unchanged.
    assert [named(value, ("no", "yes")) for value in ("yes", 1.0, True, None)] == ["yes", 1.0, True, None]
    assert named(1, ()) == 1
    assert named(1, ("no", "yes"), kind="regression") == 1
    assert named(-1, ("no", "yes"), kind="regression") is None


def test_task_label_names_replace_or_reorder_the_datasets_names() -> None:
    assert named(1, ("False", "True"), labels=("false", "true")) == "true"
    # The order of names that differ only in spelling does not matter.
    assert named(1, ("False", "True"), labels=("true", "false")) == "true"
    assert named(1, ("0", "1"), labels=("no", "yes")) == "yes"
    assert named(2, ("neg", "NEUTRAL", "pos"), labels=("negative", "neutral", "positive")) == "positive"
    assert has_facts(message(named, 1, ("no", "yes"), labels=("maybe", "No")), "no, yes", "maybe, No")
    assert named(1, ("no", "yes"), labels=("yes", "no")) == "yes"
    assert named(1, ("no", "yes"), labels=("no", "maybe")) == "yes"


def test_class_index_out_of_range_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        named(2, ("no", "yes"))
    assert has_facts(str(caught.value), "a:1", "2", "no, yes")
