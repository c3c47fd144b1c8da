"""Multi-label rows are read, predicted and scored, and thresholds are tuned."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn import metrics

from afjax.analysis.paired import resample_weights
from afjax.config.tasks import MultiLabelConfig, TaskConfig
from afjax.data.splits import MultiLabelRows
from afjax.data.tokenization import TokenizedRows
from afjax.errors import UserError
from afjax.tasks import multi_label
from afjax.tasks.kinds import initial_output_bias
from afjax.tasks.load import load_task, rows_from_lists, rows_from_table
from afjax.tasks.predictions import Predictions
from afjax.tasks.weighted_scores import label_set_scores, unweighted

TASK = TaskConfig(name="topics", kind="multi_label")
NO_DATA = TokenizedRows(np.zeros(0, np.int32), np.zeros(0, np.int8), np.zeros(1, np.int64), None, 0)


def table(*labels: Any, **config: Any) -> MultiLabelRows:
    task = dataclasses.replace(TASK, **config)
    rows = rows_from_table({"text": [f"row {number}" for number in range(len(labels))], "label": list(labels)}, task)
    assert isinstance(rows, MultiLabelRows)
    return rows


def test_labels_can_be_lists_or_separated_texts() -> None:
    rows = table("sports|health", "", "health ", ["sports"], ["health", "sports"])
    assert rows.label_names == ("health", "sports")
    assert rows.labels is not None
    assert rows.labels.dtype == np.float32
    assert rows.labels.tolist() == [[1, 1], [0, 0], [1, 0], [0, 1], [1, 1]]
    assert [rows.label_of(row) for row in range(3)] == ["health, sports", "(none)", "health"]
    assert rows.label_counts() == {"health": 3, "sports": 3}
    assert has_facts(repr(rows), "MultiLabelRows", "5 texts", "health (3)", "sports (3)")
    assert rows[[0, 4]].digest() != rows[[1, 4]].digest()


def test_separator_can_be_set() -> None:
    rows = table("a|b; c", "c", multi_label=MultiLabelConfig(separator=";"))
    assert rows.label_names == ("a|b", "c")


def test_integer_labels_are_indices_if_label_names_are_given() -> None:
    assert np.array_equal(np.asarray(table([0, 1], 1, labels=("no", "yes")).labels), [[1, 1], [0, 1]])
    assert table([0, 1], 1).label_names == ("0", "1")


@pytest.mark.parametrize(
    ("labels", "config", "facts"),
    [
        (("a", None), {}, ("table:1", "None", "list of labels")),
        (("a", 1.5), {}, ("table:1", "1.5", "list of labels")),
        (("a", True), {}, ("table:1", "True")),
        (("a|b", "a|c"), {"labels": ("a", "b")}, ("table:1", "'c'", "a, b")),
        (("a", ["b", ""]), {}, ("table:1", "no label")),
        (("a|b", "b|"), {}, ("table:1", "empty label", "'b|'", '"|"')),
        (("a|b", "A"), {}, ("table:1", "'A'", "table:0", "'a'")),
        (("", ""), {}, ("No row", "table", "label names")),
        (([2], [0, 1, 1]), {"labels": ("a", "b", "c")}, ("table:1", "[0, 1, 1]", "1 more than once")),
        ((np.array([0, 1, 0]), [2]), {}, ("table:0", "0 more than once")),
        (([True, False], [True]), {}, ("table:0", "truth value True")),
        ((np.array([False, True]), []), {}, ("table:0", "truth value False")),
        (([1, 0], [0, 1]), {"labels": ("a", "b")}, ("table", "0 and 1", "different orders")),
        (("0|0|1", "2"), {"labels": ("a", "b", "c")}, ("table:0", "0|0|1", "0 more than once")),
        (("['a', 'b']", "['b']"), {}, ("table", "['a', 'b']")),
        (("[1, 2]", "[]"), {}, ("table", "[1, 2]")),
    ],
)
def test_bad_labels_are_refused_with_their_row(labels: tuple[Any, ...], config: Any, facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        table(*labels, **config)
    assert has_facts(str(error.value), *facts)


def test_rows_with_nan_as_labels_are_unlabeled() -> None:
    rows = rows_from_table({"text": ["one", "two"], "label": [np.nan, None]}, TASK, labeled=None)
    assert rows.labels is None


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"separator": ""}, ("separator",)),
        ({"threshold": 0.0}, ("threshold", "0.0", "above 0 and below 1")),
        ({"threshold": 1.0}, ("threshold", "1.0")),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as error:
        MultiLabelConfig(**settings)
    assert has_facts(str(error.value), *facts)


def test_multi_label_settings_are_refused_for_other_kinds() -> None:
    with pytest.raises(UserError) as error:
        TaskConfig(name="t", multi_label=MultiLabelConfig(threshold=0.3))
    assert has_facts(str(error.value), "multi_label", '"classification"')


def test_splits_of_files_share_label_names(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\none,a|b\ntwo,c\nthree,\n")
    (tmp_path / "dev.jsonl").write_text(json.dumps({"text": "four", "label": ["c", "a"]}) + "\n")
    (tmp_path / "test.jsonl").write_text(json.dumps({"text": "five", "label": []}) + "\n")
    splits = load_task(dataclasses.replace(TASK, source=str(tmp_path)))
    assert splits["dev"].label_names == ("a", "b", "c")
    assert np.array_equal(np.asarray(splits["dev"].labels), [[1, 0, 1]])
    # The test split counts as unlabeled, because none of its rows has a label.
    assert splits["test"].labels is None


def test_optional_labels_can_be_arrays() -> None:
    rows = {"text": ["one", "two"], "label": [np.array(["a", "b"]), np.array([])]}
    labeled = rows_from_table(rows, TASK, labeled=None)
    assert np.array_equal(np.asarray(labeled.labels), [[1, 1], [0, 0]])
    assert rows_from_table({**rows, "label": [[], None]}, TASK, labeled=None).labels is None


def test_rows_are_made_from_lists() -> None:
    rows = rows_from_lists(["one", ("two")], [["x"], []], label_names=("w", "x"), kind="multi_label")
    assert np.array_equal(np.asarray(rows.labels), [[0, 1], [0, 0]])
    assert rows_from_lists(["one"], kind="multi_label").labels is None


def test_loss_is_the_mean_binary_cross_entropy() -> None:
    logits, labels = jnp.array([[0.0, 2.0], [-1.0, 3.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0]])
    probabilities = 1 / (1 + np.exp(-np.asarray(logits, np.float64)))
    true_probabilities = np.where(labels > 0, probabilities, 1 - probabilities)
    np.testing.assert_allclose(
        multi_label.losses(logits, {"labels": labels}), -np.log(true_probabilities).mean(-1), rtol=1e-6
    )


def test_initial_bias_is_the_log_odds_of_the_labels() -> None:
    rows = rows_from_lists(["1", "2", "3"], [["a"], ["a", "b"], ["a"]], label_names=("a", "b", "c"), kind="multi_label")
    bias = initial_output_bias("multi_label", rows)
    assert bias is not None
    assert bias.dtype == np.float32
    # One row with each label and one row without it are added, so that every bias is finite.
    shares = np.array([4 / 5, 2 / 5, 1 / 5])
    np.testing.assert_allclose(multi_label.sigmoid(bias[None])[0], shares, rtol=1e-6)
    assert initial_output_bias("classification", rows_from_lists(["1", "2"], [0, 1])) is None


def test_initial_bias_needs_labels_and_a_known_kind() -> None:
    rows = rows_from_lists(["1"], kind="multi_label")
    with pytest.raises(UserError) as refused:
        initial_output_bias("multi_label", rows)
    assert has_facts(str(refused.value), "no labels", "train rows")
    with pytest.raises(UserError) as refused:
        initial_output_bias("multilabel", rows)  # type: ignore[arg-type]
    assert has_facts(str(refused.value), '"multilabel"', 'Did you mean "multi_label"')


def test_labels_above_the_threshold_are_predicted() -> None:
    logits = np.array([[2.0, -2.0, 0.0], [-3.0, -3.0, -3.0]], np.float32)
    predictions = multi_label.predict(logits, NO_DATA, TASK, ("a", "b", "c"))
    assert predictions.labels == [["a", "c"], []]
    np.testing.assert_allclose(predictions.probabilities[0], [0.880797, 0.119203, 0.5], rtol=1e-5)
    assert predictions.confidences is not None
    np.testing.assert_allclose(predictions.confidences, [0.880797**2 * 0.5, 0.952574**3], rtol=1e-5)
    assert [predictions.text_of(row) for row in range(2)] == ["a, c", "(none)"]
    lower = dataclasses.replace(TASK, multi_label=MultiLabelConfig(threshold=0.1))
    assert multi_label.predict(logits, NO_DATA, lower, ("a", "b", "c")).labels == [["a", "b", "c"], []]


LOGITS = arrays.arrays(np.float32, (12, 3), elements=st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0]))
LABELS = arrays.arrays(np.float32, (12, 3), elements=st.sampled_from([0.0, 1.0]))


@settings(max_examples=30, deadline=None)
@given(logits=LOGITS, labels=LABELS)
def test_scores_equal_scikit_learn_and_weighted_scores_equal_repeated_rows(
    logits: np.ndarray, labels: np.ndarray
) -> None:
    predicted = logits >= 0
    scores = unweighted(label_set_scores(logits, predicted, labels), 12)
    assert scores["micro_f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="micro", zero_division=0))
    chosen = labels.any(0) | predicted.any(0)
    f1 = metrics.f1_score(labels, predicted, average=None, zero_division=0)[chosen]
    assert scores["macro_f1"] == pytest.approx(f1.mean() if chosen.any() else 0.0)
    occurs = [label for label in range(3) if labels[:, label].any()]
    expected = [metrics.average_precision_score(labels[:, label], logits[:, label]) for label in occurs]
    assert scores["average_precision"] == pytest.approx(np.mean(expected) if occurs else 0.0)
    (weights,) = resample_weights(12, 5, seed=0)
    weighted = label_set_scores(logits, predicted, labels)(weights)
    for number, row_weights in enumerate(weights.astype(int)):
        rows = np.repeat(np.arange(12), row_weights)
        repeated = unweighted(label_set_scores(logits[rows], predicted[rows], labels[rows]), 12)
        for name, score in repeated.items():
            assert weighted[name][number] == pytest.approx(score, abs=1e-9), name


def test_row_with_any_wrong_label_is_an_error() -> None:
    logits = np.array([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]], np.float32)
    predictions = multi_label.predict(logits, NO_DATA, TASK, ("a", "b"))
    labels = np.array([[1, 0], [1, 0], [0, 0]], np.float32)
    assert multi_label.errors(predictions, labels, TASK).tolist() == [0, 1, 0]


def test_best_threshold_maximizes_the_metric() -> None:
    random = np.random.default_rng(0)
    labels = (random.random((200, 4)) < 0.2).astype(np.float32)
    logits = (random.normal(size=(200, 4)) + 2 * labels - 3).astype(np.float32)
    for metric in ("micro_f1", "macro_f1"):
        best = multi_label.best_threshold(logits, labels, metric)
        probabilities = multi_label.sigmoid(logits)
        scores = [
            unweighted(label_set_scores(logits, probabilities >= np.float32(threshold), labels), 200)[metric]
            for threshold in multi_label.THRESHOLDS
        ]
        found = label_set_scores(logits, probabilities >= np.float32(best), labels)
        assert unweighted(found, 200)[metric] == max(scores)
        assert best < 0.5
    # All thresholds between the two probabilities are equally good. The threshold closest to 0.5 is chosen.
    assert multi_label.best_threshold(np.array([[-4.0], [4.0]]), np.array([[0.0], [1.0]]), "micro_f1") == 0.5


def test_repr_of_predictions_counts_labels() -> None:
    predictions = Predictions(np.zeros((2, 2)), np.zeros((2, 2)), [["a", "b"], ["a"]])
    assert has_facts(repr(predictions), "a (2)", "b (1)")
