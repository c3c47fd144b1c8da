"""Class weights and label smoothing change the loss as documented."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.config.from_dict import from_dict, to_dict
from afjax.config.methods import Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.tasks.class_loss import ClassLoss, check_class_settings, make_class_loss
from afjax.tasks.load import rows_from_lists
from afjax.train.loss import task_loss
from afjax.train.multitask import train_multitask
from afjax.train.multitask_step import TaskTable, multitask_loss
from afjax.train.record import setting_differences
from afjax.train.sequential import train_sequential
from afjax.train.single import train_single
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

NAMES = ("neutral", "negative", "positive")
WEIGHTS = np.array([0.25, 1.0, 4.0])
LABELS = np.array([0, 2, 1, 0, 2], np.int32)
# The last row pads the batch.
ROW_WEIGHTS = np.array([1.0, 1, 1, 1, 0])
LOGITS = np.random.default_rng(0).normal(size=(5, 3)) * 2


def numpy_loss(logits: np.ndarray, weights: np.ndarray, smoothing: float) -> float:
    """Computes ``weighted_cross_entropy`` with a plain loop over the rows."""
    total, divisor = 0.0, 0.0
    for row, label, row_weight in zip(logits, LABELS, ROW_WEIGHTS, strict=True):
        log_p = row - np.log(np.exp(row).sum())
        targets = np.full(len(row), smoothing / len(row))
        targets[label] += 1 - smoothing
        total -= row_weight * (targets * weights * log_p).sum()
        divisor += row_weight * weights[label]
    return total / divisor


def numpy_gradient(logits: np.ndarray, weights: np.ndarray, smoothing: float) -> np.ndarray:
    gradient, step = np.zeros_like(logits), 1e-6
    for index in np.ndindex(*logits.shape):
        shifted = [logits.copy(), logits.copy()]
        shifted[0][index] += step
        shifted[1][index] -= step
        gradient[index] = (numpy_loss(shifted[0], weights, smoothing) - numpy_loss(shifted[1], weights, smoothing)) / (
            2 * step
        )
    return gradient


@pytest.mark.parametrize(
    ("weights", "smoothing"), [(WEIGHTS, 0.0), (np.ones(3), 0.2), (WEIGHTS, 0.2), (1e-3 * WEIGHTS, 0.2)]
)
def test_loss_and_gradient_equal_the_formula(weights: np.ndarray, smoothing: float) -> None:
    batch = {"labels": LABELS, "weights": ROW_WEIGHTS, "mask": np.ones((5, 4), bool)}
    expected = numpy_loss(LOGITS, weights, smoothing), numpy_gradient(LOGITS, weights, smoothing)
    with jax.enable_x64(True):

        def single(logits: Any) -> Any:
            return task_loss(logits, batch, "classification", ClassLoss(weights, smoothing))

        loss, gradient = jax.value_and_grad(single)(jnp.asarray(LOGITS))
        assert loss.dtype == np.float64
        np.testing.assert_allclose(loss, expected[0], rtol=1e-12)
        np.testing.assert_allclose(gradient, expected[1], atol=1e-8)

        # Compute the same loss in a multitask step that draws the second of two tasks. The first task's head has more
        # outputs.
        table = TaskTable(
            ("classification",) * 2, (4, 3), (ClassLoss(np.full(4, 7.0), smoothing), ClassLoss(weights, smoothing))
        )
        drawn = {**batch, "labels": LABELS.astype(np.float32), "task": np.asarray(1, np.int32)}

        def multitask(logits: Any) -> Any:
            return multitask_loss(
                jnp.pad(logits, ((0, 0), (0, 1)), constant_values=5.0), drawn, table, ("classification",)
            )

        loss, gradient = jax.value_and_grad(multitask)(jnp.asarray(LOGITS))
        np.testing.assert_allclose(loss, expected[0], rtol=1e-12)
        np.testing.assert_allclose(gradient, expected[1], atol=1e-8)


def test_equal_weights_give_the_plain_loss() -> None:
    batch = {"labels": LABELS, "weights": ROW_WEIGHTS.astype(np.float32), "mask": np.ones((5, 4), bool)}
    logits = jnp.asarray(LOGITS, jnp.float32)
    plain = task_loss(logits, batch, "classification")
    weighted = task_loss(logits, batch, "classification", ClassLoss(np.full(3, 0.1), 0.0))
    assert float(weighted) == pytest.approx(float(plain), rel=1e-6)


def test_balanced_weights_equal_scikit_learn() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    labels = np.array([0] * 7 + [1] * 2 + [2], np.int32)
    config = TrainConfig(class_weights="balanced")
    found = make_class_loss(config, NAMES, labels)
    assert found is not None
    np.testing.assert_allclose(found.weights, compute_class_weight("balanced", classes=np.arange(3), y=labels))
    # Adding a label without train rows does not change the other weights.
    more = make_class_loss(config, (*NAMES, "mixed"), labels)
    assert more is not None
    np.testing.assert_allclose(more.weights, [*found.weights, 1.0])


def test_labels_missing_from_the_mapping_have_weight_one() -> None:
    found = make_class_loss(TrainConfig(class_weights={"positive": 3}), NAMES, None)
    assert found is not None
    assert found.weights.tolist() == [1.0, 1.0, 3.0]
    assert make_class_loss(TrainConfig(), NAMES, None) is None


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"label_smoothing": 1.0}, ("label_smoothing", "1.0")),
        ({"label_smoothing": -0.1}, ("label_smoothing", "-0.1")),
        ({"label_smoothing": float("nan")}, ("label_smoothing", "nan")),
        ({"class_weights": {"positive": 0.0}}, ("class_weights", "positive", "0.0")),
        ({"class_weights": {"positive": -1.0}}, ("positive", "-1.0")),
        ({"class_weights": {"positive": float("inf")}}, ("positive", "inf")),
        ({"class_weights": {"positive": float("nan")}}, ("positive", "nan")),
        ({"class_weights": {"positive": "much"}}, ("positive", "much")),
        ({"class_weights": "balance"}, ("class_weights", "balance", '"balanced"')),
        ({"class_weights": 3}, ("class_weights", "3", "mapping")),
        ({"class_weights": {1: 2.0, "1": 3.0}}, ("class_weights", "same")),
        ({"class_weights": {("a",): 2.0}}, ("class_weights", "('a',)")),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as caught:
        TrainConfig(**settings)
    for fact in facts:
        assert fact in str(caught.value)


def test_settings_round_trip_through_json() -> None:
    config = TrainConfig(class_weights={"a/b.c": 2, 1: 0.5}, label_smoothing=0.1)  # type: ignore[dict-item]
    assert config.class_weights == {"a/b.c": 2.0, "1": 0.5}
    again = from_dict(TrainConfig, json.loads(json.dumps(to_dict(config))), "train")
    assert again == config
    assert hash(again) == hash(config)
    assert TrainConfig(class_weights={}) == TrainConfig()


def test_settings_missing_from_an_earlier_record_are_off() -> None:
    given = {"train": to_dict(TrainConfig())}
    earlier = {
        "train": {
            key: value for key, value in given["train"].items() if key not in ("class_weights", "label_smoothing")
        }
    }
    assert setting_differences(earlier, given) == []
    for changed in (
        TrainConfig(class_weights={"a": 2.0}),
        TrainConfig(class_weights="balanced"),
        TrainConfig(label_smoothing=0.1),
    ):
        assert len(setting_differences(earlier, {"train": to_dict(changed)})) == 1
        assert setting_differences({"train": to_dict(changed)}, given)


def test_weights_of_labels_with_slashes_and_dots_differ() -> None:
    slash, dot = ({"train": to_dict(TrainConfig(class_weights={label: 2.0}))} for label in ("n/a", "n.a"))
    assert setting_differences(slash, dot)


SETTINGS = TrainConfig(class_weights={"positive": 2.0})
SENTIMENT = TaskConfig(name="sentiment")


def test_weight_for_an_unknown_label_is_refused() -> None:
    check_class_settings(SETTINGS, {SENTIMENT: NAMES})
    wrong = dataclasses.replace(SETTINGS, class_weights={"positiv": 2.0})
    with pytest.raises(UserError) as caught:
        check_class_settings(wrong, {SENTIMENT: NAMES})
    for fact in ("positiv", "sentiment", "neutral, negative, positive", 'Did you mean "positive"?'):
        assert fact in str(caught.value)
    # With several tasks, only one of them must have the label.
    check_class_settings(SETTINGS, {SENTIMENT: NAMES, TaskConfig(name="other"): ("no", "yes")})


@pytest.mark.parametrize("kind", ["regression", "multiple_choice", "span"])
@pytest.mark.parametrize("config", [TrainConfig(class_weights="balanced"), TrainConfig(label_smoothing=0.1)])
def test_class_settings_are_refused_for_other_kinds_of_tasks(kind: Any, config: TrainConfig) -> None:
    with pytest.raises(UserError) as caught:
        check_class_settings(config, {SENTIMENT: NAMES, TaskConfig(name="other", kind=kind): ()})
    setting = "class_weights" if config.class_weights else "label_smoothing"
    for fact in (setting, "other", kind.replace("_", "-")):
        assert fact in str(caught.value)


def test_weights_change_the_result_and_are_recorded(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tiny: TrainConfig, tmp_path: Path
) -> None:
    shared = {"trunk": tiny_trunk, "task": task, "data": rows, "method": Method(partition="head")}
    often = dataclasses.replace(tiny, class_weights={"many": 1000.0}, label_smoothing=0.05)
    models = {
        name: train_single(workdir=tmp_path / name, config=config, **shared)  # type: ignore[arg-type]
        for name, config in (("plain", tiny), ("often", often))
    }
    shares = {
        name: np.mean([label == "many" for label in model.predict_rows(rows["dev"]).labels])
        for name, model in models.items()
    }
    assert shares["often"] == 1.0
    assert shares["plain"] < 1.0
    recorded = json.loads((tmp_path / "often" / "run.json").read_text())["settings"]["train"]
    assert recorded["class_weights"] == {"many": 1000.0}
    assert recorded["label_smoothing"] == 0.05
    with pytest.raises(UserError, match=r"class_weights\.many"):
        train_single(workdir=tmp_path / "often", config=tiny, **shared)  # type: ignore[arg-type]


def test_multitask_and_sequential_recipes_use_class_weights(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tiny: TrainConfig, tmp_path: Path
) -> None:
    other = TaskConfig(name="other")
    texts = ["all of the two", "none of the two", "some of the six"]
    split = rows_from_lists(texts * 4, ["x", "y", "z"] * 4, label_names=("x", "y", "z"))
    data = {"quantity": rows, "other": {"train": split, "dev": split}}
    config = dataclasses.replace(tiny, max_steps=2, eval_every=2, class_weights={"many": 3.0, "z": 2.0})
    shared: dict[str, Any] = {"trunk": tiny_trunk, "tasks": (task, other), "data": data}
    head = {"method": MultitaskMethod(partition="head")}
    multitask = train_multitask(workdir=tmp_path / "multitask", config=config, **shared, **head)
    assert set(multitask) == {"quantity", "other"}
    sequence = train_sequential(workdir=tmp_path / "sequence", config=config, **shared, **head)
    assert set(sequence.models) == {"quantity", "other"}
    wrong = dataclasses.replace(config, class_weights={"none": 3.0})
    for recipe in (train_multitask, train_sequential):
        with pytest.raises(UserError, match='"none"'):
            recipe(workdir=tmp_path / "refused", config=wrong, **shared, **head)
    assert not (tmp_path / "refused").exists()
