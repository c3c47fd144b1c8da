"""Scores equal values computed by hand, including degenerate cases."""

import re
import string
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.tasks.kinds import check_metric
from afjax.tasks.metrics import normalize_answer, span_scores
from afjax.tasks.predictions import Predictions
from afjax.tasks.scores import prediction_scores
from afjax.tasks.weighted_scores import unweighted, value_scores


def classification_scores(predictions: list[int], labels: list[int], num_labels: int) -> dict[str, float]:
    logits = np.eye(num_labels, dtype=np.float32)[predictions]
    task = TaskConfig(name="t", kind="classification")
    return prediction_scores(Predictions(logits, logits, list(map(str, predictions))), np.array(labels), task)


def regression_scores(predictions: list[float], labels: list[float]) -> dict[str, float]:
    return unweighted(value_scores(np.array(predictions, np.float32), np.array(labels, np.float32)), len(labels))


def test_scores_for_two_labels() -> None:
    # There are 2 true positives, 1 false positive, 1 false negative and 1 true negative.
    found = classification_scores([1, 1, 1, 0, 0], [1, 1, 0, 1, 0], 2)
    assert found.keys() == {"accuracy", "f1", "macro_f1", "matthews"}
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["f1"] == pytest.approx(2 / 3)
    assert found["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["matthews"] == pytest.approx((2 * 1 - 1 * 1) / 6)
    assert all(type(value) is float for value in found.values())


def test_three_labels_have_no_f1() -> None:
    found = classification_scores([0, 1, 2, 2], [0, 1, 2, 1], 3)
    assert found.keys() == {"accuracy", "macro_f1", "matthews"}
    assert found["accuracy"] == pytest.approx(3 / 4)
    assert found["macro_f1"] == pytest.approx((1 + 2 / 3 + 2 / 3) / 3)


@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("prediction", [0, 1])
def test_scores_of_constant_predictions_and_labels(label: int, prediction: int) -> None:
    found = classification_scores([prediction] * 3, [label] * 3, 2)
    assert found["accuracy"] == float(label == prediction)
    assert found["f1"] == float(label == prediction == 1)
    assert found["matthews"] == 0.0


def test_accuracy_for_a_single_label() -> None:
    assert classification_scores([0, 0], [0, 0], 1)["accuracy"] == 1.0


def test_regression_scores_equal_hand_computed_values() -> None:
    predictions = [1.0, 2.0, 3.0, 10.0]
    found = regression_scores(predictions, [0.0, 1.0, 2.0, 3.0])
    assert found["spearman"] == pytest.approx(1.0)
    assert found["pearson"] == pytest.approx(np.corrcoef(predictions, [0, 1, 2, 3])[0, 1])
    assert found["mse"] == pytest.approx((1 + 1 + 1 + 49) / 4)


@pytest.mark.parametrize(
    ("predictions", "labels"),
    [
        ([1, 1, 1], [1, 2, 3]),
        ([1, 2, 3], [1, 1, 1]),
        ([2], [1]),
        ([float("nan")] * 2, [1, 2]),
        ([1, 1 + 1e-12], [1, 2]),
    ],
)
def test_correlations_of_degenerate_input_are_zero(predictions: list[float], labels: list[float]) -> None:
    found = regression_scores(predictions, labels)
    assert found["pearson"] == found["spearman"] == 0.0


@pytest.mark.parametrize(
    ("metric", "kind", "num_labels"),
    [
        ("accuracy", "classification", 3),
        ("macro_f1", "classification", 3),
        ("f1", "classification", 2),
        ("matthews", "classification", 2),
        ("pearson", "regression", 0),
        ("spearman", "regression", 0),
    ],
)
def test_supported_metrics_are_accepted(metric: str, kind: str, num_labels: int) -> None:
    check_metric(metric, kind, num_labels)


@pytest.mark.parametrize(
    ("metric", "kind", "num_labels", "facts"),
    [
        ("f1", "classification", 3, "3 labels;.* accuracy, macro_f1, matthews"),
        ("pearson", "classification", 2, '"pearson".*classification.*2 labels'),
        ("accuracy", "regression", 0, '"accuracy".*regression.*pearson, spearman'),
        ("mse", "regression", 0, "pearson, spearman"),
        ("acuracy", "classification", 2, 'Did you mean "accuracy"'),
    ],
)
def test_unsupported_metrics_are_refused(metric: str, kind: str, num_labels: int, facts: str) -> None:
    with pytest.raises(UserError, match=facts):
        check_metric(metric, kind, num_labels)


def test_multiple_choice_accuracy() -> None:
    logits = np.array([[0.5, 0.1, -3e38], [0.2, 0.9, 0.3], [1.0, 2.0, 3.0]], np.float32)
    predictions = Predictions(logits, logits, ["0", "1", "2"])
    found = prediction_scores(predictions, np.array([0, 1, 0]), TaskConfig(name="t", kind="multiple_choice"))
    assert found == {"accuracy": pytest.approx(2 / 3)}


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("the Denver Broncos", ["Denver Broncos"], 1, 1),  # Articles are removed.
        ("Denver Broncos!", ["a Denver, Broncos"], 1, 1),  # Punctuation is removed.
        ("  denver\tBRONCOS ", ["Denver Broncos"], 1, 1),  # Case and white space do not matter.
        ("Beyoncé", ["Beyonce"], 0, 0),  # Accents are not removed.
        ("Beyoncé", ["beyoncé"], 1, 1),
        ("20–30", ["20-30"], 0, 0),  # Only ASCII punctuation is removed, and this dash is not ASCII.
        ("theatre", ["a theatre"], 1, 1),  # "the" is an article only as a word.
        ("Broncos", ["Denver Broncos"], 0, 2 / 3),
        ("the the Broncos Broncos", ["Broncos"], 0, 2 / 3),  # Repeated words are counted.
        ("Broncos", ["Carolina", "Denver Broncos", "Broncos"], 1, 1),  # The best of several answers counts.
        ("red blue", ["blue red"], 0, 1),  # For F1, the order of words does not matter.
        ("Paris", ["London"], 0, 0),
        ("", ["London"], 0, 0),
        ("the", ["the"], 1, 0),  # Without the article, both are empty. SQuAD 1.1 then finds no common word.
    ],
)
def test_squad_scores_of_hand_computed_cases(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert span_scores([prediction], [answers]) == {"exact_match": exact, "f1": pytest.approx(f1)}


@pytest.mark.parametrize(
    ("prediction", "answers", "exact", "f1"),
    [
        ("", [], 1, 1),
        ("Paris", [], 0, 0),
        ("the", [], 1, 1),
        ("", ["Paris"], 0, 0),
        ("", ["the"], 1, 1),  # An answer that is empty after normalization counts as no answer.
        ("Paris", ["the", "Paris"], 1, 1),
        ("", ["the", "Paris"], 0, 0),
    ],
)
def test_squad_scores_of_unanswerable_questions(prediction: str, answers: list[str], exact: float, f1: float) -> None:
    assert span_scores([prediction], [answers], no_answer=True) == {"exact_match": exact, "f1": f1}


def test_squad_scores_of_several_questions() -> None:
    found = span_scores(["Paris", "Rome", "of"], [["Paris"], ["London"], ["capital of"]])
    assert {name: values.tolist() for name, values in found.items()} == {
        "exact_match": [1, 0, 0],
        "f1": pytest.approx([1, 0, 2 / 3]),
    }


def test_squad_scores_are_means_over_questions() -> None:
    logits = np.zeros((2, 4, 2), np.float32)
    predictions = Predictions(logits, logits, ["Paris", "Rome"])
    answers = [[("Paris", 0)], [("in Rome", 3)]]
    found = prediction_scores(predictions, answers, TaskConfig(name="t", kind="span"))
    assert found == {"exact_match": 0.5, "f1": pytest.approx((1 + 2 / 3) / 2)}


def official_f1(prediction: str, answer: str) -> float:
    """Computes SQuAD 1.1's F1 with an independent implementation."""

    def words(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
        return re.sub(r"\b(a|an|the)\b", " ", kept).split()

    same = sum((Counter(words(prediction)) & Counter(words(answer))).values())
    if same == 0:
        return 0
    precision, recall = same / len(words(prediction)), same / len(words(answer))
    return 2 * precision * recall / (precision + recall)


@settings(deadline=None)
@given(st.text("aAn theé,.-–1 ", max_size=20), st.lists(st.text("aAn theé,.-–1 ", max_size=20), min_size=1, max_size=3))
def test_squad_f1_equals_the_definition(prediction: str, answers: list[str]) -> None:
    found = span_scores([prediction], [answers])
    assert found["f1"] == pytest.approx(max(official_f1(prediction, answer) for answer in answers))
    assert found["exact_match"] == any(normalize_answer(prediction) == normalize_answer(answer) for answer in answers)


def test_correlation_of_copies_of_one_row_is_zero() -> None:
    labels, predicted = np.array([0.1, 2.3, 0.7]), np.array([1.7, 0.3, 0.9])
    scores = value_scores(predicted, labels)(np.array([[3.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))
    assert scores["pearson"][0] == scores["spearman"][0] == 0.0
    assert scores["pearson"][1] == pytest.approx(np.corrcoef(predicted, labels)[0, 1])
