"""A workdir records the settings and inputs of its run.

The run is only resumed or returned if the settings and inputs are the same.
"""

import contextlib
import dataclasses
import fcntl
import itertools
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from earlier_version import without_record_digest
from etils import epath
from facts import has_facts
from recipe_arguments import recipe_arguments

from afjax.config.adapters import AdapterConfig
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import SamplingConfig, TrainConfig
from afjax.data.batches import Batch
from afjax.data.lengths import PaddedLengths
from afjax.data.splits import Rows
from afjax.display.words import alternatives
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.train import planning, single
from afjax.train.fusion import train_fusion
from afjax.train.multitask import train_multitask
from afjax.train.options import RunOptions
from afjax.train.record import RECORD, RunSpec, by_path, check_run, discard_run, has_checkpoint, setting_differences
from afjax.train.sequential import train_sequential
from afjax.train.single import train_single
from afjax.train.single_run import SingleRun
from afjax.trees import tree_digest
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

ADAPTER = AdapterConfig(size=2)
Train = Callable[..., TaskModel]


@pytest.fixture(scope="module")
def settings(tiny: TrainConfig) -> TrainConfig:
    return dataclasses.replace(tiny, max_steps=4, eval_every=2)


@pytest.fixture(scope="module")
def finished(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    settings: TrainConfig,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, TaskModel]:
    """Trains a run, and returns ``(workdir, model)``."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train_single(tiny_trunk, task, rows, workdir=folder, config=settings, method=Method(adapter=ADAPTER))


@pytest.fixture
def again(
    finished: tuple[Path, TaskModel],
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    settings: TrainConfig,
    tmp_path: Path,
) -> Train:
    """Returns a function that trains in a copy of the finished run's workdir.

    The function's arguments replace arguments of the finished run.
    """
    shutil.copytree(finished[0], tmp_path / "run")

    def train(trunk: Trunk = tiny_trunk, task: TaskConfig = task, data: Any = rows, **changes: Any) -> TaskModel:
        arguments = {"workdir": tmp_path / "run", "adapter": ADAPTER, "config": settings, **changes}
        return train_single(trunk, task, data, **recipe_arguments(**arguments))

    return train


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_finished_run_is_returned_with_a_message(
    again: Train, finished: tuple[Path, TaskModel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = again()
    assert tree_digest(model.params) == tree_digest(finished[1].params)
    assert model.metrics == finished[1].metrics
    messages = [line for line in capsys.readouterr().err.splitlines() if "finished" in line]
    assert len(messages) == 1
    assert str(tmp_path / "run") in messages[0]
    assert "overwrite=True" in messages[0]


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"config": {"learning_rate": 1e-6}}, ("train.learning_rate: 0.01 ", " 1e-06 ")),
        ({"config": {"max_steps": 8}}, ("train.max_steps: 4 ", " 8 ")),
        ({"config": {"batch_size": 4}}, ("train.batch_size: 8 ", " 4 ")),
        ({"config": {"epochs": 3.0}}, ("train.epochs: 10.0 ", " 3.0 ")),
        (
            {"adapter": AdapterConfig(size=2, activation="tanh", scaling=40.0)},
            ("adapters.quantity.activation: 'relu' ", "'tanh' "),
        ),
        (
            {"adapter": AdapterConfig(size=2, activation="tanh", scaling=40.0)},
            ("adapters.quantity.scaling: 1.0 ", " 40.0 "),
        ),
        ({"head": HeadConfig(dropout=0.5)}, ("head.dropout",)),
        ({"seed": 1}, ("seed: 0 ", " 1 ")),
        ({"name": "other"}, ("name: 'quantity' ", "'other' ")),
        ({"partition": "head"}, ("partition: 'adapter' ", "'head' ")),
        ({"scan_layers": True}, ("scan_layers: False ", "True ")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_changed_setting_is_refused_with_both_values(
    again: Train, settings: TrainConfig, tmp_path: Path, changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    if "config" in changes:
        changes = {"config": dataclasses.replace(settings, **changes["config"])}
    before = contents(tmp_path / "run")
    with pytest.raises(UserError) as refused:
        again(**changes)
    assert has_facts(str(refused.value), *facts)
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize("split", ["train", "dev"])
def test_changed_rows_are_refused(again: Train, rows: Mapping[str, Rows], split: str) -> None:
    fewer = {**rows, split: rows[split].take(range(len(rows[split]) - 1))}
    with pytest.raises(UserError) as refused:
        again(data=fewer)
    assert f"quantity's {split} rows changed" in str(refused.value)


def test_changed_task_is_refused(again: Train, task: TaskConfig) -> None:
    with pytest.raises(UserError) as refused:
        again(task=dataclasses.replace(task, metric="macro_f1"))
    assert has_facts(str(refused.value), "task.metric: '' ", "'macro_f1' ")


def test_changed_trunk_is_refused(again: Train, tiny_trunk: Trunk) -> None:
    with pytest.raises(UserError) as refused:
        again(trunk=dataclasses.replace(tiny_trunk, sha256="0" * 64))
    assert "the trunk changed" in str(refused.value)
    with pytest.raises(UserError) as refused:
        again(trunk=dataclasses.replace(tiny_trunk, dtype="bfloat16"))
    assert "trunk_dtype: 'float32' recorded, 'bfloat16' given" in str(refused.value)


def test_trunk_with_another_architecture_or_tokenizer_is_refused(
    again: Train, tiny_trunk: Trunk, tmp_path: Path
) -> None:
    config = dataclasses.replace(tiny_trunk.config, num_heads=2, hidden_dropout=0.3)
    with pytest.raises(UserError) as refused:
        again(trunk=dataclasses.replace(tiny_trunk, config=config))
    assert has_facts(str(refused.value), "trunk's num_attention_heads: 4 ", " 2 ")
    assert has_facts(str(refused.value), "trunk's hidden_dropout_prob: 0.1 ", " 0.3 ")
    shutil.copytree(tiny_trunk.folder, tmp_path / "trunk")
    tokenizer = json.loads((tmp_path / "trunk" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["all"], vocabulary["none"] = vocabulary["none"], vocabulary["all"]
    (tmp_path / "trunk" / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError) as refused:
        again(trunk=dataclasses.replace(tiny_trunk, folder=tmp_path / "trunk"))
    assert has_facts(str(refused.value), "tokenizer's vocabulary ", "changed")


@pytest.mark.parametrize("seed", [-1, 2**32, 10**30, 1.5, True])
def test_seed_out_of_range_is_refused(again: Train, seed: Any) -> None:
    with pytest.raises(UserError) as refused:
        again(seed=seed)
    assert "4294967295" in str(refused.value)


def test_same_rows_from_another_path_are_accepted(again: Train, task: TaskConfig) -> None:
    again(task=dataclasses.replace(task, source="elsewhere", train="train.csv"))


def test_overwrite_trains_again_and_keeps_other_files(
    again: Train, finished: tuple[Path, TaskModel], settings: TrainConfig, tmp_path: Path
) -> None:
    (tmp_path / "run" / "notes.txt").write_text("mine")
    (tmp_path / "run" / "not_finite_step_3").mkdir()
    slower = dataclasses.replace(settings, learning_rate=1e-6)
    model = again(config=slower, overwrite=True)
    assert tree_digest(model.params) != tree_digest(finished[1].params)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "run" / "not_finite_step_3").exists()
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [step for step in steps if step <= 4] == steps
    assert tree_digest(again(config=slower).params) == tree_digest(model.params)
    with pytest.raises(UserError):
        again()


def test_refused_run_overwrites_nothing(again: Train, settings: TrainConfig, tmp_path: Path) -> None:
    before = contents(tmp_path / "run")
    with pytest.raises(UserError):
        again(config=dataclasses.replace(settings, max_length=4096, buckets=()), overwrite=True)
    assert contents(tmp_path / "run") == before


def test_killed_overwrite_leaves_no_checkpoint_without_its_record(
    finished: tuple[Path, TaskModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Stops the deletion."""

    deletions = 0

    def deleting(delete: Callable[..., None]) -> Callable[..., None]:
        def count(path: Any, **options: Any) -> None:
            nonlocal deletions
            if not path.exists():
                return
            deletions += 1
            if deletions > limit:
                raise Killed
            delete(path, **options)

        return count

    path_type = type(epath.Path(tmp_path))
    for name in ("unlink", "rmtree"):
        monkeypatch.setattr(path_type, name, deleting(getattr(path_type, name)))
    for limit in itertools.count():
        folder = epath.Path(tmp_path / str(limit))
        shutil.copytree(finished[0], folder)
        deletions = 0
        try:
            discard_run(folder)
        except Killed:
            assert (folder / RECORD).exists() or not has_checkpoint(folder), limit
        else:
            break
    # The checkpoints, the TensorBoard files, metrics.jsonl and run.json, at least.
    assert limit >= 4
    assert not (folder / RECORD).exists()


def test_overwrite_deletes_nothing_in_a_folder_without_a_run(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], settings: TrainConfig, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints" / "mine").mkdir(parents=True)
    (tmp_path / "scores.json").write_text("[]")
    train_single(
        tiny_trunk,
        task,
        rows,
        workdir=tmp_path,
        config=settings,
        method=Method(partition="head"),
        options=RunOptions(overwrite=True),
    )
    assert (tmp_path / "checkpoints" / "mine").is_dir()
    assert (tmp_path / "scores.json").read_text() == "[]"


def test_run_without_a_checkpoint_can_restart_with_other_settings(again: Train, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    again(seed=1)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["settings"]["seed"] == 1


def test_resumed_run_keeps_its_padded_lengths(
    again: Train,
    finished: tuple[Path, TaskModel],
    settings: TrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    free = dataclasses.replace(settings, buckets=())
    again(config=free, overwrite=True)
    recorded = json.loads((tmp_path / "run" / "run.json").read_text())["lengths"]
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    capsys.readouterr()
    # A later version may choose other lengths for the same rows. The resumed run must use its own lengths.
    monkeypatch.setattr(planning, "choose_lengths", lambda *_, **__: PaddedLengths((3, 5, 8), (3, 8)))
    again(config=free)
    assert f"padded to {alternatives(recorded)} tokens" in capsys.readouterr().err
    assert recorded != [3, 5, 8]


def test_record_without_dev_lengths_uses_its_lengths_for_dev_rows(
    again: Train, finished: tuple[Path, TaskModel], tmp_path: Path
) -> None:
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    settings, inputs = record["settings"], record["inputs"]
    spec = RunSpec(settings=settings, inputs=inputs)
    path.write_text(json.dumps({**record, "lengths": [4, 8], "dev_lengths": [6, 8]}))
    assert check_run(epath.Path(tmp_path / "run"), spec) == PaddedLengths((4, 8), (6, 8))
    path.write_text(json.dumps({"settings": settings, "inputs": inputs, "lengths": [4, 8]}))
    assert check_run(epath.Path(tmp_path / "run"), spec) == PaddedLengths((4, 8), (4, 8))


def test_run_of_an_earlier_version_resumes_and_lists_unchecked_inputs(
    again: Train, finished: tuple[Path, TaskModel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "run.json").unlink()
    model = again()
    assert tree_digest(model.params) == tree_digest(finished[1].params)
    messages = capsys.readouterr().err
    assert "its settings" in messages
    assert "its padded lengths" in messages
    # Checkpoints record the seed, so it is still compared.
    with pytest.raises(UserError) as refused:
        again(seed=1)
    assert has_facts(str(refused.value), "seed: 0 ", " 1 ")
    assert not (tmp_path / "run" / "run.json").exists()


def test_setting_missing_in_an_earlier_record_has_its_former_default(
    again: Train, settings: TrainConfig, tmp_path: Path
) -> None:
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    assert record["settings"]["train"].pop("weight_decay_on") == "kernels"
    path.write_text(json.dumps(record))
    without_record_digest(tmp_path / "run")
    again()
    with pytest.raises(UserError) as refused:
        again(config=dataclasses.replace(settings, weight_decay_on="weights"))
    assert has_facts(str(refused.value), "train.weight_decay_on: 'kernels' ", "'weights' ")


def test_former_defaults_apply_to_every_source_of_a_fusion() -> None:
    given = {"train": {"weight_decay_on": "kernels"}, "sources": [{"train": {"weight_decay_on": "weights"}}]}
    recorded: dict[str, Any] = {"train": {}, "sources": [{"train": {}}]}
    (difference,) = setting_differences(recorded, given)
    assert has_facts(difference, "sources.0.train.weight_decay_on: 'kernels' ", "'weights' ")


def test_nested_settings_are_flattened_by_path() -> None:
    assert by_path({"a": {"b": 1}, "tasks": [{"name": "x"}], "labels": ["no", "yes"]}) == {
        "a.b": 1,
        "tasks.0.name": "x",
        "labels": ["no", "yes"],
    }


@pytest.mark.parametrize("text", ["{", "null", "[]", "{}", '{"settings": [], "inputs": {}, "lengths": []}'])
def test_damaged_record_is_refused(again: Train, tmp_path: Path, text: str) -> None:
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(UserError) as refused:
        again()
    assert "run.json" in str(refused.value)


def test_two_processes_cannot_train_in_one_folder(again: Train, tmp_path: Path) -> None:
    before = contents(tmp_path / "run")
    with open(tmp_path / "run" / ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for changes in ({}, {"overwrite": True}):
            with pytest.raises(UserError) as refused:
                again(**changes)
            assert str(tmp_path / "run") in str(refused.value)
    assert contents(tmp_path / "run") == before
    again()


@pytest.mark.parametrize("learning_rate", [1e-2, 0.5])
def test_run_of_another_process_is_compared_before_it_is_resumed(
    again: Train, settings: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learning_rate: float
) -> None:
    """Another process can train in the folder while this one tokenizes its rows."""
    tokenize = single.tokenize_splits

    def tokenize_meanwhile(*args: Any) -> Any:
        shutil.copytree(tmp_path / "run", tmp_path / "new")
        return tokenize(*args)

    monkeypatch.setattr(single, "tokenize_splits", tokenize_meanwhile)
    own = dataclasses.replace(settings, learning_rate=learning_rate)
    is_same = learning_rate == settings.learning_rate
    with contextlib.nullcontext() if is_same else pytest.raises(UserError, match="learning_rate"):
        again(workdir=tmp_path / "new", config=own)


def test_record_that_another_process_replaces_stops_the_run(
    again: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = single.claim_run

    def claim_then_replace(*args: Any, **options: Any) -> Any:
        inputs = claim(*args, **options)
        (tmp_path / "new" / "run.json").write_text('{"settings": {"seed": 7}, "inputs": {}, "lengths": []}')
        return inputs

    monkeypatch.setattr(single, "claim_run", claim_then_replace)
    with pytest.raises(UserError) as refused:
        again(workdir=tmp_path / "new")
    assert str(tmp_path / "new") in str(refused.value)
    assert not (tmp_path / "new" / "checkpoints").exists()


def test_checkpoints_of_a_run_with_other_settings_are_refused(
    again: Train, settings: TrainConfig, tmp_path: Path
) -> None:
    """A process can write into the folder of another run, if its own folder was deleted and created again."""
    other = dataclasses.replace(settings, learning_rate=0.5)
    again(workdir=tmp_path / "other", config=other)
    shutil.rmtree(tmp_path / "other" / "checkpoints")
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "other" / "checkpoints")
    with pytest.raises(UserError) as refused:
        again(workdir=tmp_path / "other", config=other)
    assert has_facts(str(refused.value), "checkpoints", "different run", "record")
    again()


@pytest.mark.parametrize("replaced", [False, True])
def test_run_in_a_moved_folder_stops_and_resumes(
    again: Train, finished: tuple[Path, TaskModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    folder, moved = tmp_path / "new", tmp_path / "moved"

    def extra_metrics(run: SingleRun, batch: Batch) -> dict[str, float]:
        if folder.exists() and not moved.exists():
            folder.rename(moved)
            if replaced:
                folder.mkdir()
                (folder / ".lock").write_text("another process")
        return {}

    with monkeypatch.context() as patch:
        patch.setattr(SingleRun, "extra_metrics", extra_metrics)
        with pytest.raises(UserError) as stopped:
            again(workdir=folder)
    assert has_facts(str(stopped.value), str(folder), "moved, deleted or replaced")
    assert not has_checkpoint(epath.Path(folder))
    model = again(workdir=moved)
    assert tree_digest(model.params["adapters"]) == tree_digest(finished[1].params["adapters"])


def test_fusion_run_with_another_config_or_other_adapters_is_refused(
    finished: tuple[Path, TaskModel],
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    settings: TrainConfig,
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    finished[1].save(store)

    def fuse(**changes: Any) -> TaskModel:
        arguments = {
            "adapters": ("quantity",),
            "store": store,
            "workdir": tmp_path / "fusion",
            "config": settings,
            **changes,
        }
        return train_fusion(tiny_trunk, task, rows, **recipe_arguments(FusionMethod, **arguments))

    first = fuse()
    assert tree_digest(fuse().params) == tree_digest(first.params)
    with pytest.raises(UserError) as refused:
        fuse(fusion=FusionConfig(temperature=2.0))
    assert has_facts(str(refused.value), "fusion.temperature: 1.0 ", " 2.0 ")
    changed = {name: np.asarray(leaf) for name, leaf in finished[1].params["adapters"]["quantity"]["ffn"]["up"].items()}
    changed["bias"] = changed["bias"] + 1
    params = dict(finished[1].params)
    params["adapters"] = {"quantity": {"ffn": {**params["adapters"]["quantity"]["ffn"], "up": changed}}}
    dataclasses.replace(finished[1], params=params).save(store, overwrite=True)
    with pytest.raises(UserError) as refused:
        fuse()
    assert has_facts(str(refused.value), "adapter quantity ", "changed")


def test_fusion_run_with_its_adapters_in_another_order_is_refused(
    finished: tuple[Path, TaskModel],
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    settings: TrainConfig,
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    finished[1].save(store)
    given: dict[str, Any] = {"config": settings, "method": Method(adapter=ADAPTER), "options": RunOptions(name="other")}
    train_single(tiny_trunk, task, rows, workdir=tmp_path / "other", **given).save(store)

    def fuse(*adapters: str) -> TaskModel:
        method = FusionMethod(adapters=adapters, store=store)
        return train_fusion(tiny_trunk, task, rows, method, workdir=tmp_path / "fusion", config=settings)

    fuse("quantity", "other")
    before = contents(tmp_path / "fusion")
    with pytest.raises(UserError) as refused:
        fuse("other", "quantity")
    assert has_facts(str(refused.value), "adapters: ['quantity', 'other'] ", "['other', 'quantity'] ")
    assert contents(tmp_path / "fusion") == before
    fuse("quantity", "other")


def test_multitask_and_sequential_runs_with_other_settings_are_refused(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], settings: TrainConfig, tmp_path: Path
) -> None:
    tasks, data = [task, dataclasses.replace(task, name="other")], {"quantity": rows, "other": rows}

    def multitask(sampling: SamplingConfig) -> Any:
        return train_multitask(
            tiny_trunk,
            tasks,
            data,
            workdir=tmp_path / "m",
            config=settings,
            method=MultitaskMethod(partition="head", sampling=sampling),
        )

    multitask(SamplingConfig(steps_per_epoch=2))
    with pytest.raises(UserError) as refused:
        multitask(SamplingConfig(steps_per_epoch=2, sampler="round_robin"))
    assert has_facts(str(refused.value), "sampling.sampler: 'annealed' ", "'round_robin' ")

    def sequential(seed: int, **changes: Any) -> Any:
        folder = tmp_path / "s"
        return train_sequential(
            tiny_trunk,
            [task],
            data,
            workdir=folder,
            config=settings,
            method=Method(partition="head"),
            options=RunOptions(seed=seed, **changes),
        )

    first = sequential(0)
    with pytest.raises(UserError) as refused:
        sequential(1)
    assert "seed: 0 recorded, 1 given" in str(refused.value)
    assert sequential(1, overwrite=True).scores != [] != first.scores


def test_dev_rows_with_other_label_names_are_refused(again: Train, rows: Mapping[str, Rows]) -> None:
    # Labels are indices into the label names. With other names, the dev rows would be scored with the wrong labels.
    other = dataclasses.replace(rows["dev"], label_names=("many", "some"))
    with pytest.raises(UserError) as refused:
        again(data={**rows, "dev": other})
    assert "some" in str(refused.value)


@pytest.mark.parametrize("data", [{"train": [], "dev": []}, {}, ["train", "dev"]], ids=["lists", "nothing", "a list"])
def test_data_of_the_wrong_type_is_refused(again: Train, data: Any) -> None:
    with pytest.raises(UserError):
        again(data=data)
