"""Padding a head's outputs does not change a run's loss, gradients or result."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from afjax.config.tasks import TaskConfig, TaskKind
from afjax.config.training import TrainConfig
from afjax.data.splits import AnyRows
from afjax.model.task_model import TaskModel
from afjax.tasks.class_loss import ClassLoss
from afjax.tasks.load import rows_from_lists
from afjax.train import single_run, together
from afjax.train.loss import task_loss
from afjax.train.many import PlannedRun, train_many
from afjax.train.options import RunOptions
from afjax.train.padded_heads import pad_labels, padded_outputs, with_outputs
from afjax.trees import flatten, tree_digest
from afjax.trunk.pretrained import Trunk

TINY = TrainConfig(max_steps=8, batch_size=8, max_length=8, buckets=(8,), learning_rate=1e-2, adam_epsilon=1e-3)
LABELS = ("none", "some", "most", "all")


def rows_of(num_labels: int, kind: TaskKind) -> dict[str, AnyRows]:
    """Makes rows whose label depends on their first word."""
    names = LABELS[:num_labels]
    texts = [f"{name} of the {number}" for number in ("two", "three", "four", "five", "six", "seven") for name in names]
    if kind == "tagging":
        words = [text.split() for text in texts]
        tags = dict(zip(LABELS, ("O", "B-some", "B-most", "B-all"), strict=True))
        row_tags = [[tags[row[0]], "O", "O", "O"] for row in words]
        names = tuple(tags[name] for name in names)
        split = rows_from_lists(words, row_tags, kind=kind, label_names=names)
    else:
        labels: list[Any] = [text.split()[0] for text in texts]
        if kind == "multi_label":
            labels = [[label, names[0]] if label != names[0] else [] for label in labels]
        split = rows_from_lists(texts, labels, kind=kind, label_names=names)
    return {"train": split, "dev": split}


def planned(num_labels: int, folder: Path, kind: TaskKind = "classification", **changes: Any) -> PlannedRun:
    return PlannedRun(
        task=TaskConfig(name=f"labels{num_labels}", kind=kind),
        data=rows_of(num_labels, kind),
        workdir=folder / str(num_labels),
        config=dataclasses.replace(TINY, **changes),
        options=RunOptions(seed=num_labels),
    )


def trained(trunk: Trunk, runs: list[PlannedRun], *, slots: int = 1) -> list[TaskModel]:
    outcomes = train_many(trunk, runs, slots=slots)
    assert all(isinstance(outcome, TaskModel) for outcome in outcomes), outcomes
    return [outcome for outcome in outcomes if isinstance(outcome, TaskModel)]


def assert_close(model: TaskModel, other: TaskModel) -> None:
    leaves, others = flatten(model.params), flatten(other.params)
    assert {path: leaf.shape for path, leaf in leaves.items()} == {path: leaf.shape for path, leaf in others.items()}
    for path, leaf in leaves.items():
        np.testing.assert_allclose(leaf, others[path], atol=2e-4, rtol=2e-3, err_msg=path)
    assert model.metrics == other.metrics


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("classification", {1: 4, 2: 4, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 150: 256}),
        ("multi_label", {2: 4, 27: 32}),
        ("tagging", {3: 4, 9: 16}),
        ("regression", {1: 1}),
        ("multiple_choice", {1: 1}),
        ("span", {2: 2}),
    ],
)
def test_number_of_outputs_is_padded_to_a_power_of_two(kind: TaskKind, expected: dict[int, int]) -> None:
    assert {number: padded_outputs(kind, number) for number in expected} == expected


def test_only_output_layers_of_heads_are_padded_and_trimmed() -> None:
    pooler = {"kernel": np.ones((2, 2), np.float32), "bias": np.ones(2, np.float32)}
    output = {"kernel": np.ones((2, 3), np.float32), "bias": np.ones(3, np.float32)}
    params = {
        "trunk": {"x": np.ones(3)},
        # The path of this adapter's leaf contains "heads" and "output", like the path of a head's output layer.
        "adapters": {"heads": {"ffn": {"output": {"scale": np.ones((2, 3))}}}},
        "heads": {"task": {"pooler": pooler, "output": output}},
    }
    padded = with_outputs(params, 4)
    assert {path: leaf.shape for path, leaf in flatten(padded).items()} == {
        "trunk/x": (3,),
        "adapters/heads/ffn/output/scale": (2, 3),
        "heads/task/pooler/kernel": (2, 2),
        "heads/task/pooler/bias": (2,),
        "heads/task/output/kernel": (2, 4),
        "heads/task/output/bias": (4,),
    }
    assert padded["heads"]["task"]["output"]["kernel"].tolist() == [[1, 1, 1, 0]] * 2
    assert padded["heads"]["task"]["output"]["bias"].dtype == np.float32
    jax.tree.map(np.testing.assert_array_equal, with_outputs(padded, 3), params)
    # Adam's state contains trees of parameters.
    state = {"optimizer": optax.ScaleByAdamState(count=np.zeros(()), mu=params, nu={"heads": {}})}
    assert with_outputs(state, 4)["optimizer"].mu["heads"]["task"]["output"]["kernel"].shape == (2, 4)


# They are padded to 4, 4, 4, 8 and 16 outputs.
NUM_OUTPUTS = (1, 3, 4, 5, 9)


@pytest.mark.slow
@pytest.mark.parametrize("num_outputs", NUM_OUTPUTS)
@pytest.mark.parametrize(
    ("kind", "weighted", "smoothing"),
    [
        ("classification", False, 0.0),
        ("classification", True, 0.0),
        ("classification", True, 0.1),
        ("multi_label", False, 0.0),
        ("tagging", False, 0.0),
    ],
)
def test_padding_changes_neither_the_loss_nor_its_gradients(
    kind: TaskKind, weighted: bool, smoothing: float, num_outputs: int
) -> None:
    padded, random = padded_outputs(kind, num_outputs), np.random.default_rng(num_outputs)
    rows, length = 3, 2
    shape = (rows, length) if kind == "tagging" else (rows,)
    # Rows with the weight 0 fill up a batch. A batch on one of several devices may have no other rows.
    for weights in ((1.0, 1.0, 1.0), (1.0, 0.0, 1.0), (0.0, 0.0, 0.0)):
        own = random.normal(size=(*shape, num_outputs))
        # The outputs of the padding may have any finite value.
        logits = np.concatenate([own, random.normal(scale=30, size=(*shape, padded - num_outputs))], -1)
        labels: Any = random.integers(-1 if kind == "tagging" else 0, num_outputs, shape).astype(np.int32)
        if kind == "multi_label":
            labels = random.integers(0, 2, (rows, num_outputs)).astype(np.float64)
        batch = {"labels": labels, "weights": np.array(weights)}
        class_weights = random.uniform(0.1, 3, num_outputs)
        losses = ClassLoss(class_weights, smoothing) if weighted else None
        padded_losses = ClassLoss(np.pad(class_weights, (0, padded - num_outputs)), smoothing) if weighted else None
        padded_batch = {**batch, "labels": pad_labels(kind, labels, padded)}

        def loss(given: Any, batch: Any = batch, losses: Any = losses) -> Any:
            return task_loss(given, batch, kind, losses)

        def padded_loss(given: Any, batch: Any = padded_batch, losses: Any = padded_losses) -> Any:
            return task_loss(given, batch, kind, losses, num_outputs)

        with jax.enable_x64():
            value, gradient = jax.value_and_grad(loss)(jnp.asarray(own))
            found, found_gradient = jax.value_and_grad(padded_loss)(jnp.asarray(logits))
            np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-14)
            np.testing.assert_allclose(found_gradient[..., :num_outputs], gradient, rtol=1e-10, atol=1e-14)
            assert not found_gradient[..., num_outputs:].any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("classification", {"weight_decay_on": "weights"}),
        ("classification", {"class_weights": "balanced", "label_smoothing": 0.1, "clip_by": "tensor"}),
        ("multi_label", {}),
        ("tagging", {"adam_bias_correction": False}),
    ],
)
def test_runs_with_padded_and_unpadded_heads_give_the_same_model(
    tiny_trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TaskKind, changes: Mapping[str, Any]
) -> None:
    padding: list[np.ndarray] = []
    own_step = single_run.SingleRun.step

    def checked(run: Any, state: Any, *given: Any) -> Any:
        new, scalars = own_step(run, state, *given)
        paths, _ = jax.tree_util.tree_flatten_with_path(new)
        padding.extend(np.asarray(leaf)[..., 3:] for path, leaf in paths if "'output'" in jax.tree_util.keystr(path))
        return new, scalars

    with monkeypatch.context() as patch:
        patch.setattr(single_run.SingleRun, "step", checked)
        [padded] = trained(tiny_trunk, [planned(3, tmp_path / "padded", kind, **changes)])
    # After each of the 8 steps, the kernel, the bias, and both Adam moments of each are checked.
    assert len(padding) == 8 * 6
    assert all(leaf.size and not leaf.any() for leaf in padding)
    monkeypatch.setattr(single_run, "padded_outputs", lambda kind, num_outputs: num_outputs)
    [unpadded] = trained(tiny_trunk, [planned(3, tmp_path / "unpadded", kind, **changes)])
    assert padded.params["heads"]["labels3"]["output"]["kernel"].shape == (32, 3)
    assert_close(padded, unpadded)


@pytest.mark.slow
def test_runs_of_versions_without_padded_heads_are_resumed(
    tiny_trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"eval_every": 4, "checkpoint_every": 2}
    own_step = single_run.SingleRun.step

    def interrupted(run: Any, state: Any, *given: Any) -> Any:
        if int(state["step"]) == 5:
            raise RuntimeError("interrupted")
        return own_step(run, state, *given)

    with monkeypatch.context() as patch:
        patch.setattr(single_run, "padded_outputs", lambda kind, num_outputs: num_outputs)
        [finished] = trained(tiny_trunk, [planned(3, tmp_path / "finished", **settings)])
        patch.setattr(single_run.SingleRun, "step", interrupted)
        [error] = train_many(tiny_trunk, [planned(3, tmp_path / "interrupted", **settings)])
    assert isinstance(error, RuntimeError)
    [again] = trained(tiny_trunk, [planned(3, tmp_path / "finished", **settings)])
    assert tree_digest(again.params) == tree_digest(finished.params)
    [resumed] = trained(tiny_trunk, [planned(3, tmp_path / "interrupted", **settings)])
    assert_close(resumed, finished)
    lines = (tmp_path / "interrupted" / "3" / "metrics.jsonl").read_text().splitlines()
    assert [line["step"] for line in map(json.loads, lines) if "loss" in line] == list(range(1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "multi_label", "tagging"])
def test_tasks_with_two_to_four_labels_share_programs_and_steps(
    tiny_trunk: Trunk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: TaskKind
) -> None:
    sizes, compiled = [], []
    step_together, compile_programs = together._step_together, single_run._compile

    def counted_step(requests: Any, *given: Any) -> Any:
        sizes.append(len(requests))
        return step_together(requests, *given)

    def counted_programs(*given: Any) -> Any:
        compiled.append(given)
        return compile_programs(*given)

    monkeypatch.setattr(together, "_step_together", counted_step)
    monkeypatch.setattr(single_run, "_compile", counted_programs)
    runs = [planned(num_labels, tmp_path / "together", kind) for num_labels in (2, 3, 4)]
    models = trained(tiny_trunk, runs, slots=3)
    assert sizes == [3] * 8
    assert len(compiled) == 1
    for num_labels, model in zip((2, 3, 4), models, strict=True):
        [own] = trained(tiny_trunk, [planned(num_labels, tmp_path / "separate", kind)])
        assert_close(model, own)
