"""A multitask step trains the drawn task like a single-task step.

The step does not change the leaves of other tasks.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import PalConfig
from afjax.config.heads import HeadConfig
from afjax.config.training import TrainConfig
from afjax.distributed.sharding import local_mesh
from afjax.model import partition
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.train.loss import task_loss
from afjax.train.multitask_step import (
    TaskTable,
    init_multitask_state,
    make_multitask_step,
    multitask_loss,
    put_task,
    stack_tasks,
    take_task,
    trim_task,
)
from afjax.train.optimizer import make_optimizer, step_settings
from afjax.train.step import init_state, jit_init, jit_step, make_train_step, run_step
from afjax.trees import Tree, flatten, named_key
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

PAL = PalConfig(size=8, num_heads=2, init_scale=0.3)
CONFIG = TrainConfig(learning_rate=1e-2, dropout=False)
TASKS = ("quantity", "number", "value")
KINDS = ("classification", "classification", "regression")
NUM_OUTPUTS = (2, 3, 1)


def task_params(trunk: Trunk, name: str, num_outputs: int) -> Tree:
    key = jax.random.key(5)
    return {
        "adapters": {"drawn": init_adapter(named_key(key, name), PAL, trunk.config)},
        "heads": {
            "drawn": init_head(named_key(key, name), HeadConfig(pooler="trunk"), num_outputs, trunk=trunk.params)
        },
    }


def make_batch(task: int, length: int = 8) -> dict[str, Any]:
    draw = np.random.default_rng(task)
    labels = draw.integers(0, NUM_OUTPUTS[task], 6) if KINDS[task] == "classification" else draw.normal(size=6)
    return {
        "tokens": draw.integers(5, 300, (6, length), dtype=np.int32),
        "types": np.zeros((6, length), np.int32),
        "mask": np.ones((6, length), bool),
        "labels": labels.astype(np.float32),
        "weights": np.array([1, 1, 1, 1, 1, 0], np.float32),
        "task": np.asarray(task, np.int32),
    }


@pytest.fixture(scope="module")
def model(tiny_trunk: Trunk) -> Model:
    head = HeadConfig(pooler="trunk")
    return Model(trunk=tiny_trunk.config, head_name="drawn", head=head, adapters=(("drawn", PAL),), scan_layers=True)


@pytest.mark.parametrize("name", ["adapter+trunk", "adapter"])
def test_step_equals_a_single_task_step_of_the_drawn_task(tiny_trunk: Trunk, model: Model, name: str) -> None:
    # The gradients are larger than clip_norm, so they are clipped. With this large epsilon, rounding errors of the
    # gradients hardly change Adam's step.
    config = TrainConfig(learning_rate=0.1, clip_norm=0.05, adam_epsilon=1.0, dropout=False)
    own = [task_params(tiny_trunk, task, num) for task, num in zip(TASKS, NUM_OUTPUTS, strict=True)]
    rules, key, rate = partition.preset(name, model.head), jax.random.key(0), jnp.float32(0.1)
    whole = {"trunk": tiny_trunk.params, "fusion": {}, **stack_tasks(own)}
    trained, frozen = partition.split(whole, partition.label(whole, rules))
    shared = {"trunk": trained.pop("trunk")} if "trunk" in trained else {}
    state = init_multitask_state(jax.tree.map(jnp.asarray, {"shared": shared, "own": trained}), config)
    step = jax.jit(
        make_multitask_step(model, config, TaskTable(KINDS, NUM_OUTPUTS), state, ("classification", "regression"))
    )
    for task in (1, 2, 0):
        before = state
        single_params = {"trunk": before["trained"]["shared"].get("trunk", tiny_trunk.params)}
        drawn_params = take_task(before["trained"]["own"], task)
        output = jax.tree.map(lambda leaf, n=NUM_OUTPUTS[task]: leaf[..., :n], drawn_params["heads"]["drawn"]["output"])
        head = {**drawn_params["heads"]["drawn"], "output": output}
        single_params |= {"adapters": drawn_params["adapters"], "heads": {"drawn": head}}
        single_trained, single_frozen = partition.split(single_params, partition.label(single_params, rules))
        state, scalars = step(before, frozen, make_batch(task), key, rate)

        optimizer = make_optimizer(config, single_trained)
        single_state = init_state(jax.tree.map(jnp.asarray, single_trained), optimizer)
        # Only the leaves of the drawn task are compared. The Adam moments of shared parameters also depend on earlier
        # steps.
        single_step = jax.jit(make_train_step(model, optimizer, KINDS[task], dropout=False))
        batch, settings = make_batch(task), step_settings(config, float(rate))
        labels = batch["labels"].astype(np.int32) if KINDS[task] == "classification" else batch["labels"]
        after, expected = single_step(single_state, single_frozen, {**batch, "labels": labels}, key, settings)
        assert float(scalars["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)
        assert float(scalars["gradient_norm"]) == pytest.approx(float(expected["gradient_norm"]), rel=1e-4)
        assert float(expected["gradient_norm"]) > config.clip_norm
        now, moved = flatten(take_task(state["trained"]["own"], task)), False
        for path, leaf in flatten(after["trained"]).items():
            if not path.startswith("trunk/"):
                part = now[path][..., : leaf.shape[-1]] if "/output/" in path and "heads" in path else now[path]
                np.testing.assert_allclose(part, leaf, atol=1e-6, err_msg=path)
                moved |= not np.allclose(part, flatten(drawn_params)[path][..., : leaf.shape[-1]], atol=1e-5)
        assert moved
        for other in {0, 1, 2} - {task}:
            for part in ("trained", "optimizer"):
                untouched = take_task(before[part]["own"], other), take_task(state[part]["own"], other)
                for old, new in zip(*map(jax.tree.leaves, untouched), strict=True):
                    assert np.array_equal(old, new)
        counts = [leaf for leaf in jax.tree.leaves(take_task(state["optimizer"]["own"], task)) if leaf.ndim == 0]
        assert {int(count) for count in counts} == {1}
    if name == "adapter+trunk":
        shared_counts = [leaf for leaf in jax.tree.leaves(state["optimizer"]["shared"]) if leaf.ndim == 0]
        assert {int(count) for count in shared_counts} == {3}
    else:
        assert state["trained"]["shared"] == {}
    # Stacked heads are padded to the largest number of outputs. The padding stays zero.
    kernel = state["trained"]["own"]["heads"]["drawn"]["output"]["kernel"]
    assert not np.any(kernel[0][:, 2:])
    assert not np.any(kernel[2][:, 1:])


def test_non_finite_step_keeps_the_state(tiny_trunk: Trunk, model: Model) -> None:
    own = [task_params(tiny_trunk, task, num) for task, num in zip(TASKS, NUM_OUTPUTS, strict=True)]
    whole = {"trunk": tiny_trunk.params, "fusion": {}, **stack_tasks(own)}
    trained, frozen = partition.split(whole, partition.label(whole, partition.preset("adapter", model.head)))
    state = init_multitask_state({"shared": {}, "own": jax.tree.map(jnp.asarray, trained)}, CONFIG)
    step = jax.jit(
        make_multitask_step(model, CONFIG, TaskTable(KINDS, NUM_OUTPUTS), state, ("classification", "regression"))
    )
    bad = {**make_batch(1), "weights": np.full(6, np.inf, np.float32)}
    after, scalars = step(state, frozen, bad, jax.random.key(0), jnp.float32(0.1))
    assert scalars["failed"]
    assert after["failed"]
    for old, new in zip(jax.tree.leaves(state["trained"]), jax.tree.leaves(after["trained"]), strict=True):
        assert np.array_equal(old, new)
    assert int(after["step"]) == 0


def test_losses_of_all_kinds_of_tasks() -> None:
    logits = jnp.log(jnp.array([[0.25, 0.75, 9.0], [0.5, 0.5, 9.0]]))
    table = TaskTable(("classification", "regression"), (2, 1))
    batch = {"labels": jnp.array([1.0, 0.0]), "weights": jnp.ones(2), "mask": jnp.ones((2, 4), bool)}
    rows = ("classification", "regression")
    classified = multitask_loss(logits, {**batch, "task": jnp.asarray(0)}, table, rows)
    assert float(classified) == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2, rel=1e-6)
    squared = multitask_loss(logits, {**batch, "task": jnp.asarray(1)}, table, rows)
    assert float(squared) == pytest.approx(((np.log(0.25) - 1) ** 2 + np.log(0.5) ** 2) / 2, rel=1e-6)
    # In a multiple-choice task, a row has one logit per choice, although the head has only one output.
    choice_batch = {**batch, "mask": jnp.ones((2, 2, 4), bool), "task": jnp.asarray(0)}
    choices = TaskTable(("multiple_choice",), (1,))
    chosen = multitask_loss(logits[:, :2], choice_batch, choices, ("multiple_choice",))
    assert float(chosen) == pytest.approx(float(classified), rel=1e-6)
    # In a span task, the head has two outputs per token. Padding tokens are ignored.
    tokens = jnp.log(jnp.array([[[0.25, 0.1, 9.0], [0.75, 0.9, 9.0], [5.0, 5.0, 9.0]]]))
    span_batch = {"labels": jnp.array([[0, 1]]), "weights": jnp.ones(1), "mask": jnp.array([[True, True, False]])}
    spanned = multitask_loss(tokens, {**span_batch, "task": jnp.asarray(0)}, TaskTable(("span",), (2,)), ("span",))
    assert float(spanned) == pytest.approx(-(np.log(0.25) + np.log(0.9)) / 2, rel=1e-6)


def test_padded_labels_of_a_smaller_head_have_no_loss_and_no_gradient() -> None:
    table = TaskTable(("multi_label", "multi_label"), (2, 3))
    logits = jnp.array([[0.5, -1.0, 9.0], [2.0, 0.0, 9.0]])
    batch = {"labels": jnp.array([[1.0, 0, 0], [0, 1, 0]]), "weights": jnp.ones(2), "task": jnp.asarray(0)}

    def narrow(logits: jax.Array) -> jax.Array:
        return multitask_loss(logits, batch, table, ("multi_label",))

    def plain(logits: jax.Array) -> jax.Array:
        return task_loss(logits[:, :2], {**batch, "labels": batch["labels"][:, :2]}, "multi_label")

    assert float(narrow(logits)) == pytest.approx(float(plain(logits)), rel=1e-6)
    np.testing.assert_allclose(jax.grad(narrow)(logits), jax.grad(plain)(logits), rtol=1e-6)


def test_stacked_trees_are_padded_and_can_be_sliced() -> None:
    trees = [{"a": jnp.ones((2, 1))}, {"a": jnp.full((2, 3), 2.0)}]
    stacked = stack_tasks(trees)
    assert stacked["a"].shape == (2, 2, 3)
    assert np.array_equal(stacked["a"][0], [[1, 0, 0], [1, 0, 0]])
    missing = stack_tasks([{"a": jnp.ones(2)}, {"a": jnp.ones(2), "b": jnp.full(3, 5.0)}])
    assert np.array_equal(missing["b"], [[0, 0, 0], [5, 5, 5]])
    assert trim_task(take_task(missing, 0), {"a": jnp.ones(2)}).keys() == {"a"}
    again = put_task(stacked, jnp.asarray(0), take_task(stacked, 1))
    assert np.array_equal(again["a"][0], stacked["a"][1])


@pytest.mark.parametrize("corrected", [True, False])
def test_compiled_step_can_donate_its_state(tiny_trunk: Trunk, model: Model, corrected: bool) -> None:
    # The state is donated, so all of its buffers must be distinct.
    config = dataclasses.replace(CONFIG, adam_bias_correction=corrected)
    own = [task_params(tiny_trunk, task, num) for task, num in zip(TASKS, NUM_OUTPUTS, strict=True)]
    whole = {"trunk": tiny_trunk.params, "fusion": {}, **stack_tasks(own)}
    trained, frozen = partition.split(whole, partition.label(whole, partition.preset("adapter", model.head)))
    mesh = local_mesh()
    init = functools.partial(init_multitask_state, config=config)
    tree = {"shared": {}, "own": trained}
    state = jit_init(init, tree, mesh)(tree)
    step = jit_step(
        make_multitask_step(model, config, TaskTable(KINDS, NUM_OUTPUTS), state, ("classification", "regression")),
        state,
        mesh,
    )
    for task in (0, 1):
        inputs = (frozen, make_batch(task), jax.random.key(0), np.float32(0.1))
        state, scalars = run_step(step, mesh, state, *inputs)
        assert not scalars["failed"]
    assert int(state["step"]) == 2
