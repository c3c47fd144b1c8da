"""Comparisons score models for every task kind, and the names of A and B are parsed."""

import dataclasses
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facts import has_facts

from afjax.analysis import compare
from afjax.analysis.paired import Paired
from afjax.analysis.sides import split_words
from afjax.config.tasks import TaskConfig
from afjax.tasks.load import rows_from_lists
from tests.reference_scores import regression_scores


def model(kind: str, labels: tuple[str, ...] = ()) -> Any:
    return types.SimpleNamespace(task=TaskConfig(name="made", source="made", kind=kind), labels=labels)


def given(logits: list, labels: list[str] | None = None) -> Any:
    return types.SimpleNamespace(logits=np.array(logits, np.float32), labels=labels)


def test_values() -> None:
    rows = rows_from_lists(["a", "b", "c"], [1.0, 2.0, 4.0], kind="regression")
    logits = [[1.5], [2.0], [3.0]]
    weighted, errors = compare.row_scores(model("regression"), rows, given(logits))
    np.testing.assert_allclose(errors, [0.5, 0, 1])
    expected = regression_scores(np.array(logits)[:, 0], np.array([1.0, 2.0, 4.0]))
    found = weighted(np.ones((1, 3)))
    assert found["pearson"][0] == pytest.approx(expected["pearson"])
    assert found["spearman"][0] == pytest.approx(expected["spearman"])
    counts = compare._row_counts(errors, np.array([0.25, 0.0, 2.0]), numbers=True)
    assert counts == {"nearer_a": 1, "nearer_b": 1, "equal": 1}


def test_choices() -> None:
    rows = rows_from_lists([("x", ["a", "b"]), ("y", ["a", "b", "c"])], [0, 2], kind="multiple_choice")
    lowest = np.finfo(np.float32).min
    weighted, errors = compare.row_scores(model("multiple_choice"), rows, given([[0, 1, lowest], [0, 1, 2]]))
    assert errors.tolist() == [1, 0]
    np.testing.assert_allclose(weighted(np.array([[2.0, 0.0], [1.0, 1.0]]))["accuracy"], [0, 0.5])


def test_spans() -> None:
    texts = [("who", "the black cat sat"), ("what", "a dog ran")]
    answers = [{"text": ["black cat"], "answer_start": [4]}, {"text": ["dog"], "answer_start": [2]}]
    rows = rows_from_lists(texts, answers, kind="span")
    predictions = given([[0], [0]], ["cat", "a dog"])
    weighted, errors = compare.row_scores(model("span"), rows, predictions)
    assert errors.tolist() == [1, 0]
    found = weighted(np.array([[1.0, 1.0], [0.0, 2.0]]))
    np.testing.assert_allclose(found["f1"], [(2 / 3 + 1) / 2, 1])
    np.testing.assert_allclose(found["exact_match"], [0.5, 1])


def test_folder_names_may_have_commas(tmp_path: Path) -> None:
    """Run folders can be compared even if their names contain commas, as in a sweep."""
    first, second = (tmp_path / f"rate=0.1,seed={seed}" for seed in (0, 1))
    for folder in (first, second):
        folder.mkdir()
    assert split_words(f"{first}, {second},adapter:a") == [str(first), str(second), "adapter:a"]
    assert split_words("adapter:a,no/such") == ["adapter:a", "no/such"]


@pytest.mark.parametrize(
    ("low", "high", "p_value", "words"),
    [
        (0.1, 0.3, 0.04, "B is better by 0.2000 f1"),
        (-0.1, 0.5, 0.2, "No significant difference in f1: the interval contains zero"),
        # With few resamples, the interval excludes zero although p is large.
        (0.1, 0.3, 0.4, "No significant difference in f1: p is at least 0.05"),
    ],
)
def test_lines(low: float, high: float, p_value: float, words: str) -> None:
    paired = Paired(0.5, 0.7, 0.2, low, high, p_value, 0.01)
    rows = {"both_right": 1.5, "only_a": 0.0, "only_b": 2.0, "both_wrong": 0.5}
    found = compare.Comparison(
        (("x", "y"), ("u", "v")), "made", "f1", 4, 99, {"accuracy": paired, "f1": paired}, rows, {"seed": ("0", "1")}
    )
    lines = compare.to_lines(found)
    assert lines[:2] == ["A  x, y", "B  u, v"]
    assert has_facts("\n".join(lines), "4 rows", "made", "2 pairs")
    assert [line.split()[0] for line in lines[4:7]] == ["metric", "f1", "accuracy"]
    assert any(line.startswith(words) for line in lines)
    assert has_facts("\n".join(lines), "both correct 1.5", "A correct 0", "B correct 2", "both wrong 0.5")
    assert compare.to_json(found)["models"] == {"a": ["x", "y"], "b": ["u", "v"]}
    assert "99 resamples" in "\n".join(lines)
    assert "1 resample)" in "\n".join(compare.to_lines(dataclasses.replace(found, num_resamples=1)))
