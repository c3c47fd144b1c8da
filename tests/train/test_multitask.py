"""Several tasks are trained jointly or sequentially, stored, and resumed."""

import dataclasses
import itertools
import json
import logging
import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from facts import has_facts
from recipe_arguments import recipe_arguments

from afjax.config.adapters import AdapterConfig, PalConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import SamplingConfig, TrainConfig
from afjax.config.values import Partition
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.tasks.load import rows_from_lists
from afjax.train.multitask import train_multitask
from afjax.train.options import RunOptions
from afjax.train.record import has_run
from afjax.train.sequential import train_sequential
from afjax.train.shared import Shared
from afjax.trees import flatten, tree_digest
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

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
    """Makes a task with two labels, a task with three labels, and a regression task."""
    tasks: dict[str, dict[str, Rows]] = {"quantity": dict(rows), "number": {}, "value": {}}
    for split, split_rows in rows.items():
        texts = list(split_rows.text_a)
        numbers = [
            ("two", "three", "four", "five", "six", "seven", "eight", "nine").index(t.split()[-1]) for t in texts
        ]
        labels = [("low", "middle", "high")[number % 3] for number in numbers]
        tasks["number"][split] = rows_from_lists(texts, labels, label_names=("low", "middle", "high"))
        tasks["value"][split] = rows_from_lists(texts, [number / 1.6 for number in numbers], kind="regression")
    return tasks


def run(trunk: Trunk, data: Any, workdir: Path, tasks: tuple[TaskConfig, ...] = TASKS, **changes: Any) -> Any:
    settings = {"adapter": PAL, "head": HeadConfig(pooler="trunk"), "config": CONFIG, "sampling": SAMPLING, **changes}
    return train_multitask(trunk, tasks, data, workdir=workdir, **recipe_arguments(MultitaskMethod, **settings))


def test_trunk_adapters_and_heads_are_trained_and_stored(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match=r'"number".*trunk.*differs'):
        load_task_model(tmp_path / "store", tiny_trunk, head="number", adapter="number")


def test_predictions_of_a_scaled_task_are_in_the_original_units(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    train = data["value"]["train"]
    one_task, config = {"value": {"train": train, "dev": train}}, dataclasses.replace(CONFIG, epochs=15)
    model = run(tiny_trunk, one_task, tmp_path, TASKS[2:], config=config)["value"]
    predictions, values = model.predict_rows(train), train.labels
    assert np.corrcoef(predictions.logits[:, 0], values)[0, 1] > 0.8
    assert np.abs(predictions.logits[:, 0] - values).mean() < 1.0
    assert predictions.labels == predictions.logits[:, 0].tolist()


@pytest.mark.parametrize(
    ("name", "changes"), [("adapter", {}), ("head", {}), ("full", {}), ("layernorm", {}), ("top_k", {"top_k": 1})]
)
def test_every_partition_trains_only_its_parameters(
    tiny_trunk: Trunk, data: Any, tmp_path: Path, name: Any, changes: Any
) -> None:
    config = dataclasses.replace(CONFIG, max_steps=3)
    models = run(tiny_trunk, data, tmp_path, partition=name, config=config, adapter=AdapterConfig(), **changes)
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


def test_initial_values_do_not_depend_on_other_tasks(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    no_updates = dataclasses.replace(CONFIG, learning_rate=0.0, max_steps=1)
    three = run(tiny_trunk, data, tmp_path / "three", config=no_updates)
    two = run(tiny_trunk, data, tmp_path / "two", TASKS[1:], config=no_updates)
    for name in ("number", "value"):
        assert tree_digest(three[name].params) == tree_digest(two[name].params)


def test_interrupted_run_resumes_bit_identically(
    tiny_trunk: Trunk, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(CONFIG, dropout=True, eval_every=6, checkpoint_every=1, learning_rate=1e-3)
    sampling = SamplingConfig(sampler="annealed", steps_per_epoch=6)
    without_checkpoints = dataclasses.replace(config, checkpoint_every=0)
    uninterrupted = run(tiny_trunk, data, tmp_path / "uninterrupted", config=without_checkpoints, sampling=sampling)
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
    for name, model in uninterrupted.items():
        assert tree_digest(again[name].params) == tree_digest(model.params)
        assert again[name].trunk.sha256 == model.trunk.sha256
        assert again[name].metrics == model.metrics


def test_eight_tasks_and_four_lengths_compile_four_programs(
    tiny_trunk: Trunk, rows: Mapping[str, Rows], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"task{number}" for number in range(8)]
    kinds = itertools.cycle(("classification", "regression"))
    tasks = tuple(TaskConfig(name=name, kind=next(kinds)) for name in names)
    num_rows = {"train": 24, "dev": 16}
    data = {}
    for number, task in enumerate(tasks):
        splits = {}
        for split, num in num_rows.items():
            # The rows have 4 to 32 tokens, so that every task has batches of every padded length.
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
    # Evaluation also compiles one program per length.
    assert sum("jit(step)" in message for message in compiled) == 4


@pytest.mark.parametrize("partition", ["adapter", "adapter+trunk"])
def test_runs_with_different_seeds_share_programs_and_the_frozen_trunk(
    partition: Partition, tiny_trunk: Trunk, data: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shared, config = Shared(), dataclasses.replace(CONFIG, max_steps=6, dropout=True)

    def models(seed: int, shared: Shared | None, learning_rate: float = 1e-2) -> Any:
        return run(
            tiny_trunk,
            data,
            tmp_path / f"{seed} {learning_rate} {shared}",
            config=dataclasses.replace(config, learning_rate=learning_rate),
            partition=partition,
            seed=seed,
            shared=shared,
        )

    models(0, shared)
    trunks = {id(tree) for _, tree in shared._values.get("frozen trunk", {}).values()}
    with caplog.at_level(logging.WARNING), jax.log_compiles(True):
        found = models(1, shared, learning_rate=1e-3)
    compiled = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
    assert not [message for message in compiled if "train_step" in message or "jit(step)" in message]
    # Both runs use the same copy. If the trunk is trained, there is none.
    assert {id(tree) for _, tree in shared._values.get("frozen trunk", {}).values()} == trunks
    assert len(trunks) == (partition == "adapter")
    expected = models(1, None, learning_rate=1e-3)
    for name, model in expected.items():
        assert tree_digest(found[name].params) == tree_digest(model.params)
    # The weight decay is part of the program.
    config = dataclasses.replace(config, weight_decay=0.5)
    found, expected = models(2, shared), models(2, None)
    assert [tree_digest(found[name].params) for name in found] == [
        tree_digest(model.params) for model in expected.values()
    ]


# Tests of sequential training.


def test_sequential_training_evaluates_earlier_tasks_again(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, max_steps=12)
    given = {"method": Method(partition="full", head=HeadConfig(pooler="trunk")), "config": config, "workdir": tmp_path}
    result = train_sequential(tiny_trunk, TASKS, data, **given)
    # The evaluations left no copy of the trunk on the devices.
    assert "_device_params" not in vars(result.models["quantity"].trunk)
    assert [len(row) for row in result.scores] == [1, 2, 3]
    assert list(result.models) == ["quantity", "number", "value"]
    assert len({model.trunk.sha256 for model in result.models.values()}) == 1
    for task, last in zip(TASKS, result.scores[-1], strict=True):
        model = result.models[task.name]
        assert model.evaluate(data[task.name]["dev"], batch_size=8) == last
        assert model.metrics == last
    # Training on "number" changed the trunk, so "quantity" was evaluated again on the new trunk.
    assert result.scores[1][0].keys() == result.scores[0][0].keys()
    assert result.models["quantity"].trunk.sha256 != tiny_trunk.sha256
    again = train_sequential(tiny_trunk, TASKS, data, **given)
    assert again.scores == result.scores
    assert [model.trunk.sha256 for model in again.models.values()] == [
        model.trunk.sha256 for model in result.models.values()
    ]


def test_sequential_training_refuses_the_workdir_of_another_order(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    def train(tasks: Sequence[TaskConfig], **options: Any) -> list[str]:
        train_sequential(
            tiny_trunk,
            tasks,
            data,
            workdir=tmp_path,
            method=Method(partition="head"),
            config=dataclasses.replace(CONFIG, max_steps=2),
            options=RunOptions(**options),
        )
        return sorted(folder.name for folder in tmp_path.iterdir() if has_run(folder))

    first, second = TASKS[:2]
    (tmp_path / "1-notes").mkdir()
    names = [f"1-{first.name}", f"2-{second.name}"]
    assert train([first, second]) == names
    # A part of the sequence is resumed.
    assert train([first]) == names
    with pytest.raises(UserError) as error:
        train([second, first])
    assert has_facts(str(error.value), str(tmp_path), f"1-{first.name}", f"1-{second.name}", "overwrite")
    assert train([second, first], overwrite=True) == sorted([f"1-{second.name}", f"2-{first.name}"])
    assert (tmp_path / "1-notes").exists()


def test_stored_scores_of_other_models_or_dev_rows_are_not_used(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    config, folders = dataclasses.replace(CONFIG, max_steps=2), [tmp_path / "1-quantity", tmp_path / "2-number"]

    def scores(data: Any, config: TrainConfig) -> list[list[dict[str, float]]]:
        method = Method(partition="head")
        sequence = train_sequential(tiny_trunk, TASKS[:2], data, workdir=tmp_path, method=method, config=config)
        last = [model.evaluate(data[name]["dev"], batch_size=8) for name, model in sequence.models.items()]
        assert [model.metrics for model in sequence.models.values()] == sequence.scores[-1]
        return [*sequence.scores, last]

    def mark() -> list[dict[str, float]]:
        """Replaces the stored scores by scores that no model has."""
        marked = [{"accuracy": 2.0}, {"macro_f1": 2.0}]
        path = folders[1] / "scores.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "scores": marked}))
        return marked

    scores(data, config)
    marked = mark()
    assert scores(data, config)[1] == marked
    # Only the first task has other dev rows, and only its run is trained again.
    shutil.rmtree(folders[0])
    fewer = {**data, "quantity": {**data["quantity"], "dev": data["quantity"]["dev"].take(range(5))}}
    *_, stored, last = scores(fewer, config)
    assert stored == last
    # All runs are trained again, with other settings.
    mark()
    for folder in folders:
        shutil.rmtree(folder / "checkpoints")
    *_, stored, last = scores(fewer, dataclasses.replace(config, learning_rate=0.3))
    assert stored == last


def test_scores_without_digests_and_damaged_scores_are_computed_again(
    tiny_trunk: Trunk, data: Any, tmp_path: Path
) -> None:
    path, config = tmp_path / "1-quantity" / "scores.json", dataclasses.replace(CONFIG, max_steps=2)

    def scores() -> list[list[dict[str, float]]]:
        method = Method(partition="head")
        return train_sequential(tiny_trunk, TASKS[:1], data, workdir=tmp_path, method=method, config=config).scores

    first = scores()
    record = json.loads(path.read_text())
    for damaged in ([{}], [{"accuracy": 2.0}], {}, None, {**record, "scores": [{}]}, {**record, "scores": ["a"]}):
        path.write_text(json.dumps(damaged))
        assert scores() == first
        assert json.loads(path.read_text()) == record
    # The correlation of constant predictions is NaN.
    path.write_text(json.dumps({**record, "scores": [{"accuracy": math.nan}]}))
    assert math.isnan(scores()[0][0]["accuracy"])
    path.write_text("[")
    with pytest.raises(UserError) as refused:
        scores()
    assert has_facts(str(refused.value), str(path), "delete")


# Tests of invalid arguments.


@pytest.mark.parametrize(
    ("tasks", "changes", "facts"),
    [
        ((), {}, ("(none)", "at least one")),
        ((TASKS[0], TASKS[0]), {}, ("quantity, quantity", "distinct names")),
        (TASKS, {"partition": "fusion"}, ('partition="fusion"', "fusion recipe")),
        (TASKS, {"adapter": AdapterConfig(layer_norms=True)}, ("adapter.layer_norms=False",)),
        (TASKS, {"partition": "top_k", "top_k": 3}, ("top_k is 3", "2 layers")),
        (TASKS, {"adapter": PalConfig(layers=(0, 2))}, ("adapter.layers ", "layer 2")),
        ((dataclasses.replace(TASKS[1], metric="f1"),), {}, ('"f1"', "labels", "macro_f1")),
        (TASKS, {"config": dataclasses.replace(CONFIG, max_length=1000)}, ("max_length is 1000",)),
    ],
)
def test_invalid_arguments_are_refused(
    tiny_trunk: Trunk, data: Any, tmp_path: Path, tasks: Any, changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as raised:
        run(tiny_trunk, data, tmp_path / "refused", tasks, **changes)
    assert has_facts(str(raised.value), *facts)
    assert not (tmp_path / "refused").exists()


def test_trunk_that_computes_in_bfloat16_is_trained_in_float32(tiny_trunk: Trunk, data: Any, tmp_path: Path) -> None:
    narrow = dataclasses.replace(tiny_trunk, dtype="bfloat16")
    trained = run(narrow, data, tmp_path / "narrow")["value"].trunk.params
    assert {leaf.dtype.name for leaf in flatten(trained).values()} == {"float32"}
