"""Several tasks in one program: a step trains the drawn task as if it were alone, and touches no other's leaves."""

import dataclasses
import functools
import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from afjax import partition
from afjax.architecture import AdapterConfig, HeadConfig, PalConfig
from afjax.config import SamplingConfig, TaskConfig, TrainConfig
from afjax.data.rows import Rows, rows_from_lists
from afjax.errors import UserError
from afjax.model.adapters import init_adapter
from afjax.model.heads import init_head
from afjax.model.model import Model
from afjax.sharding import local_mesh
from afjax.task_model import load_task_model
from afjax.train.multitask import train_multitask
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
from afjax.train.sequential import train_sequential
from afjax.train.step import init_state, jit_step, make_optimizer, make_train_step, place_state, run_step
from afjax.trees import Tree, flatten, named_key, tree_digest
from afjax.trunk import Trunk

pytestmark = pytest.mark.usefixtures("training")

PAL = PalConfig(size=8, num_heads=2, init_scale=0.3)
TASKS = (
    TaskConfig(name="quantity"),
    TaskConfig(name="number", metric="macro_f1"),
    TaskConfig(name="value", kind="regression", scale=5.0),
)
SAMPLING = SamplingConfig(sampler="round_robin", steps_per_epoch=6)
CONFIG = TrainConfig(learning_rate=1e-2, epochs=2, batch_size=8, max_length=8, buckets=(8,), dropout=False)


@pytest.fixture(scope="module")
def data(rows: Mapping[str, Rows]) -> dict[str, Mapping[str, Rows]]:
    """The task of two labels, one of three labels, and a regression."""
    tasks: dict[str, dict[str, Rows]] = {"quantity": dict(rows), "number": {}, "value": {}}
    for split, of_split in rows.items():
        texts = list(of_split.text_a)
        numbers = [
            ("two", "three", "four", "five", "six", "seven", "eight", "nine").index(t.split()[-1]) for t in texts
        ]
        labels = [("low", "middle", "high")[number % 3] for number in numbers]
        tasks["number"][split] = rows_from_lists(texts, labels, label_names=("low", "middle", "high"))
        tasks["value"][split] = rows_from_lists(texts, [number / 1.6 for number in numbers], kind="regression")
    return tasks


# One step


KINDS = ("classification", "classification", "regression")
NUM_OUTPUTS = (2, 3, 1)


def own_tree(trunk: Trunk, name: str, num_outputs: int) -> Tree:
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
def test_a_step_is_that_of_the_drawn_task_alone(tiny_trunk: Trunk, model: Model, name: str) -> None:
    # A bound at which clipping acts, and an epsilon at which Adam's step is smooth in the gradient.
    config = TrainConfig(learning_rate=0.1, clip_norm=0.05, adam_epsilon=1.0, dropout=False)
    own = [own_tree(tiny_trunk, task.name, num) for task, num in zip(TASKS, NUM_OUTPUTS, strict=True)]
    rules, key, rate = partition.preset(name, model.head), jax.random.key(0), jnp.float32(0.1)
    whole = {"trunk": tiny_trunk.params, "fusion": {}, **stack_tasks(own)}
    trained, frozen = partition.split(whole, partition.label(whole, rules))
    shared = {"trunk": trained.pop("trunk")} if "trunk" in trained else {}
    state = init_multitask_state(jax.tree.map(jnp.asarray, {"shared": shared, "own": trained}), config)
    step = jax.jit(make_multitask_step(model, config, TaskTable(KINDS, NUM_OUTPUTS), state))
    for task in (1, 2, 0):
        before = state
        alone = {"trunk": before["trained"]["shared"].get("trunk", tiny_trunk.params)}
        mine = take_task(before["trained"]["own"], task)
        output = jax.tree.map(lambda leaf, n=NUM_OUTPUTS[task]: leaf[..., :n], mine["heads"]["drawn"]["output"])
        alone |= {"adapters": mine["adapters"], "heads": {"drawn": {**mine["heads"]["drawn"], "output": output}}}
        alone_trained, alone_frozen = partition.split(alone, partition.label(alone, rules))
        state, scalars = step(before, frozen, make_batch(task), key, rate)

        optimizer = make_optimizer(config, alone_trained)
        alone_state = init_state(jax.tree.map(jnp.asarray, alone_trained), optimizer)
        # Adam's moments of what is shared come from the steps before.
        single = jax.jit(make_train_step(model, optimizer, KINDS[task], dropout=False))
        batch = make_batch(task)
        labels = batch["labels"].astype(np.int32) if KINDS[task] == "classification" else batch["labels"]
        after, expected = single(alone_state, alone_frozen, {**batch, "labels": labels}, key, rate)
        assert float(scalars["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)
        assert float(scalars["gradient_norm"]) == pytest.approx(float(expected["gradient_norm"]), rel=1e-4)
        assert float(expected["gradient_norm"]) > config.clip_norm
        now, moved = flatten(take_task(state["trained"]["own"], task)), False
        for path, leaf in flatten(after["trained"]).items():
            if not path.startswith("trunk/"):
                part = now[path][..., : leaf.shape[-1]] if "/output/" in path and "heads" in path else now[path]
                np.testing.assert_allclose(part, leaf, atol=1e-6, err_msg=path)
                moved |= not np.allclose(part, flatten(mine)[path][..., : leaf.shape[-1]], atol=1e-5)
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
    # Outputs that a task's head does not have stay zero.
    kernel = state["trained"]["own"]["heads"]["drawn"]["output"]["kernel"]
    assert not np.any(kernel[0][:, 2:])
    assert not np.any(kernel[2][:, 1:])


def test_a_step_that_is_not_finite_leaves_the_state_as_it_was(tiny_trunk: Trunk, model: Model) -> None:
    own = [own_tree(tiny_trunk, task.name, num) for task, num in zip(TASKS, NUM_OUTPUTS, strict=True)]
    whole = {"trunk": tiny_trunk.params, "fusion": {}, **stack_tasks(own)}
    trained, frozen = partition.split(whole, partition.label(whole, partition.preset("adapter", model.head)))
    state = init_multitask_state({"shared": {}, "own": jax.tree.map(jnp.asarray, trained)}, CONFIG)
    step = jax.jit(make_multitask_step(model, CONFIG, TaskTable(KINDS, NUM_OUTPUTS), state))
    bad = {**make_batch(1), "weights": np.full(6, np.inf, np.float32)}
    after, scalars = step(state, frozen, bad, jax.random.key(0), jnp.float32(0.1))
    assert scalars["failed"]
    assert after["failed"]
    for old, new in zip(jax.tree.leaves(state["trained"]), jax.tree.leaves(after["trained"]), strict=True):
        assert np.array_equal(old, new)
    assert int(after["step"]) == 0


def test_losses_of_all_kinds() -> None:
    logits = jnp.log(jnp.array([[0.25, 0.75, 9.0], [0.5, 0.5, 9.0]]))
    table = TaskTable(("classification", "regression"), (2, 1))
    batch = {"labels": jnp.array([1.0, 0.0]), "weights": jnp.ones(2), "mask": jnp.ones((2, 4), bool)}
    classified = multitask_loss(logits, {**batch, "task": jnp.asarray(0)}, table)
    assert float(classified) == pytest.approx(-(np.log(0.75) + np.log(0.5)) / 2, rel=1e-6)
    squared = multitask_loss(logits, {**batch, "task": jnp.asarray(1)}, table)
    assert float(squared) == pytest.approx(((np.log(0.25) - 1) ** 2 + np.log(0.5) ** 2) / 2, rel=1e-6)
    # Multiple choice has as many logits as choices, whatever heads have.
    chosen = multitask_loss(logits[:, :2], {**batch, "mask": jnp.ones((2, 2, 4), bool), "task": jnp.asarray(0)}, table)
    assert float(chosen) == pytest.approx(float(classified), rel=1e-6)
    # Span: two outputs a token, of which those at padding do not count.
    tokens = jnp.log(jnp.array([[[0.25, 0.1, 9.0], [0.75, 0.9, 9.0], [5.0, 5.0, 9.0]]]))
    of_span = {"labels": jnp.array([[0, 1]]), "weights": jnp.ones(1), "mask": jnp.array([[True, True, False]])}
    spanned = multitask_loss(tokens, {**of_span, "task": jnp.asarray(0)}, table)
    assert float(spanned) == pytest.approx(-(np.log(0.25) + np.log(0.9)) / 2, rel=1e-6)


def test_stacking_fills_up_and_slices_come_back() -> None:
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
def test_a_compiled_step_may_have_its_state(tiny_trunk: Trunk, model: Model, corrected: bool) -> None:
    # It donates the state, all of whose buffers must be its own.
    config = dataclasses.replace(CONFIG, adam_bias_correction=corrected)
    own = [own_tree(tiny_trunk, task.name, num) for task, num in zip(TASKS, NUM_OUTPUTS, strict=True)]
    whole = {"trunk": tiny_trunk.params, "fusion": {}, **stack_tasks(own)}
    trained, frozen = partition.split(whole, partition.label(whole, partition.preset("adapter", model.head)))
    mesh = local_mesh()
    init = functools.partial(init_multitask_state, config=config)
    state = place_state(init, {"shared": {}, "own": trained}, mesh)
    step = jit_step(make_multitask_step(model, config, TaskTable(KINDS, NUM_OUTPUTS), state), state, mesh)
    for task in (0, 1):
        inputs = (frozen, make_batch(task), jax.random.key(0), np.float32(0.1))
        state, scalars = run_step(step, mesh, state, *inputs)
        assert not scalars["failed"]
    assert int(state["step"]) == 2


# The recipe


def run(trunk: Trunk, data: Any, workdir: Path, tasks: tuple[TaskConfig, ...] = TASKS, **changes: Any) -> Any:
    settings = {"adapter": PAL, "head": HeadConfig(pooler="trunk"), "config": CONFIG, "sampling": SAMPLING, **changes}
    return train_multitask(trunk, tasks, data, workdir=workdir, **settings)


def test_trunk_modules_and_heads_are_trained_stored_and_score_as_they_did(
    tiny_trunk: Trunk, data: Any, tmp_path: Path
) -> None:
    models = run(tiny_trunk, data, tmp_path / "run")
    assert list(models) == ["quantity", "number", "value"]
    trunks = {model.trunk.sha256 for model in models.values()}
    assert len(trunks) == 1
    assert trunks != {tiny_trunk.sha256}
    assert models["value"].num_outputs == 1
    kernels = [model.params["adapters"][name]["shared"]["encode"]["kernel"] for name, model in models.items()]
    assert not any(np.array_equal(*pair) for pair in itertools.combinations(kernels, 2))
    for name, model in models.items():
        model.save(tmp_path / "store")
        scores = model.evaluate(data[name]["dev"])
        for metric, value in scores.items():
            assert model.metrics[metric] == pytest.approx(value, abs=1e-5), (name, metric)
        again = load_task_model(tmp_path / "store", model.trunk, head=name, adapter=name)
        assert again.evaluate(data[name]["dev"]) == scores
    with pytest.raises(UserError, match="was trained on the trunk"):
        load_task_model(tmp_path / "store", tiny_trunk, head="number", adapter="number")


def test_predictions_of_a_scaled_task_are_values(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    train = data["value"]["train"]
    alone, config = {"value": {"train": train, "dev": train}}, dataclasses.replace(CONFIG, epochs=15)
    model = run(tiny_trunk, alone, tmp_path, TASKS[2:], config=config)["value"]
    predictions, values = model.predict_rows(train), train.labels
    assert np.corrcoef(predictions.logits[:, 0], values)[0, 1] > 0.8
    assert np.abs(predictions.logits[:, 0] - values).mean() < 1.0
    assert predictions.labels == predictions.logits[:, 0].tolist()


@pytest.mark.parametrize(
    ("name", "changes"),
    [("adapter", {}), ("head", {}), ("full", {}), ("layernorm", {}), ("top_k", {"top_k": 1})],
)
def test_every_partition_trains_what_it_says(
    tiny_trunk: Trunk, data: Any, tmp_path: Path, name: Any, changes: Any
) -> None:
    config = dataclasses.replace(CONFIG, max_steps=3)
    models = run(tiny_trunk, data, tmp_path, partition_name=name, config=config, adapter=AdapterConfig(), **changes)
    trunk = models["number"].trunk
    if name in ("adapter", "head"):
        assert trunk is tiny_trunk
    else:
        before, after = flatten(tiny_trunk.params), flatten(trunk.params)
        changed = {path for path in before if not np.array_equal(before[path], after[path])}
        assert list(before) == list(after)
        if name == "layernorm":
            assert changed == {path for path in before if "norm/" in path}
        elif name == "top_k":
            for path in changed - {"pooler/kernel", "pooler/bias"}:
                assert np.array_equal(before[path][0], after[path][0])
                assert not np.array_equal(before[path][1], after[path][1])
        else:
            assert "embeddings/word" in changed
    assert bool(models["number"].params["adapters"]) == (name == "adapter")


def test_another_task_changes_no_start(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    still = dataclasses.replace(CONFIG, learning_rate=0.0, max_steps=1)
    three = run(tiny_trunk, data, tmp_path / "three", config=still)
    two = run(tiny_trunk, data, tmp_path / "two", TASKS[1:], config=still)
    for name in ("number", "value"):
        assert tree_digest(three[name].params) == tree_digest(two[name].params)


def test_a_run_that_was_interrupted_ends_with_the_same_bits(
    tiny_trunk: Trunk, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(CONFIG, dropout=True, eval_every=6, checkpoint_every=1, learning_rate=1e-3)
    sampling = SamplingConfig(sampler="annealed", steps_per_epoch=6)
    whole = run(tiny_trunk, data, tmp_path / "whole", config=config, sampling=sampling)
    from afjax.train import logs

    for after in (3, 7):
        seen = itertools.count(1)
        write = logs.RunLog.write

        def stop(
            self: Any, step: int, scalars: Any, *, seen: Any = seen, after: int = after, write: Any = write
        ) -> None:
            if next(seen) > after:
                raise KeyboardInterrupt
            write(self, step, scalars)

        with monkeypatch.context() as patch:
            patch.setattr(logs.RunLog, "write", stop)
            with pytest.raises(KeyboardInterrupt):
                run(tiny_trunk, data, tmp_path / "stopped", config=config, sampling=sampling)
    again = run(tiny_trunk, data, tmp_path / "stopped", config=config, sampling=sampling)
    for name, model in whole.items():
        assert tree_digest(again[name].params) == tree_digest(model.params)
        assert again[name].trunk.sha256 == model.trunk.sha256
        assert again[name].metrics == model.metrics


def test_eight_tasks_and_four_lengths_compile_four_programs(
    tiny_trunk: Trunk, rows: Mapping[str, Rows], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"task{number}" for number in range(8)]
    kinds = itertools.cycle(("classification", "regression"))
    tasks = tuple(TaskConfig(name=name, kind=next(kinds)) for name in names)
    words = {"train": 24, "dev": 16}
    data = {}
    for number, task in enumerate(tasks):
        splits = {}
        for split, num in words.items():
            # Rows of 4 to 34 tokens, so that every task has batches of every length.
            texts = [" ".join(["all"] * (2 + 4 * (row % 8))) for row in range(num)]
            labels: list[Any] = [row % (2 + number // 2) for row in range(num)]
            if task.kind == "regression":
                splits[split] = rows_from_lists(texts, [float(label) for label in labels], kind="regression")
            else:
                splits[split] = rows_from_lists(texts, labels, label_names=[str(n) for n in range(2 + number // 2)])
        data[task.name] = splits
    config = dataclasses.replace(
        CONFIG, max_length=34, buckets=(8, 16, 24), batch_size=4, max_steps=8 * 6, eval_every=24
    )
    with caplog.at_level(logging.WARNING), jax.log_compiles(True):
        run(tiny_trunk, data, tmp_path, tasks, config=config, scan_layers=True)
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
    assert sum("train_step" in message for message in compiled) == 4
    # The look at the dev split has a program a length as well.
    assert sum("jit(step)" in message for message in compiled) == 4


# One after the other


def test_tasks_one_after_the_other_and_what_is_left_of_the_first(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, max_steps=12)
    given = {"head": HeadConfig(pooler="trunk"), "config": config, "workdir": tmp_path}
    result = train_sequential(tiny_trunk, TASKS, data, **given)
    assert [len(row) for row in result.scores] == [1, 2, 3]
    assert list(result.models) == ["quantity", "number", "value"]
    assert len({model.trunk.sha256 for model in result.models.values()}) == 1
    for task, last in zip(TASKS, result.scores[-1], strict=True):
        model = result.models[task.name]
        assert model.evaluate(data[task.name]["dev"], batch_size=8) == last
        assert model.metrics == last
    # Training number moved the trunk under quantity's head.
    assert result.scores[1][0] != {}
    again = train_sequential(tiny_trunk, TASKS, data, **given)
    assert again.scores == result.scores
    assert [model.trunk.sha256 for model in again.models.values()] == [
        model.trunk.sha256 for model in result.models.values()
    ]


# What is refused


@pytest.mark.parametrize(
    ("tasks", "changes", "message"),
    [
        ((), {}, "The tasks are (none); give at least one"),
        ((TASKS[0], TASKS[0]), {}, "The tasks are quantity, quantity; give at least one, each with its own name"),
        (TASKS, {"partition_name": "fusion"}, "A fusion is trained by the fusion recipe"),
        (TASKS, {"adapter": AdapterConfig(layer_norms=True)}, "set adapter.layer_norms=False"),
        (TASKS, {"partition_name": "top_k", "top_k": 3}, "top_k is 3, but the trunk has 2 layers"),
        (TASKS, {"adapter": PalConfig(layers=(0, 2))}, "adapter.layers names layer 2"),
        ((dataclasses.replace(TASKS[1], metric="f1"),), {}, 'The metric "f1" does not fit'),
        (TASKS, {"config": dataclasses.replace(CONFIG, max_length=1000)}, "max_length is 1000"),
    ],
)
def test_what_is_refused(
    tiny_trunk: Trunk, data: Any, tmp_path: Path, tasks: Any, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as raised:
        run(tiny_trunk, data, tmp_path / "refused", tasks, **changes)
    assert message in str(raised.value)
    assert not (tmp_path / "refused").exists()


def test_a_trunk_that_computes_in_bfloat16_is_trained_in_float32(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    narrow = dataclasses.replace(tiny_trunk, dtype="bfloat16")
    trained = run(narrow, data, tmp_path / "narrow")["value"].trunk.params
    assert {leaf.dtype.name for leaf in flatten(trained).values()} == {"float32"}
