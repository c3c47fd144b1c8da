"""Arguments of the wrong type are refused by name before anything is written."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from facts import has_facts

from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import MeshConfig, SamplingConfig, TrainConfig
from afjax.data.splits import Rows
from afjax.distributed.sharding import make_mesh
from afjax.errors import UserError
from afjax.model.setup import single_setup
from afjax.model.task_model import TaskModel
from afjax.storage.paths import cache_folder
from afjax.train.arguments import check_several
from afjax.train.fusion import train_fusion
from afjax.train.multitask import train_multitask
from afjax.train.options import RunOptions
from afjax.train.sequential import train_sequential
from afjax.train.single import train_single
from afjax.trunk.pretrained import Trunk

FUSION = FusionMethod(adapters=("a",), store="store")
SAMPLED = MultitaskMethod(sampling=SamplingConfig(steps_per_epoch=2))


@pytest.mark.parametrize(
    ("recipe", "arguments", "facts"),
    [
        (train_single, {"method": FUSION}, ("method", "Method")),
        (train_fusion, {"method": Method()}, ("method", "FusionMethod")),
        (train_multitask, {"method": Method()}, ("method", "MultitaskMethod")),
        (train_sequential, {"method": "full"}, ("method", "'full'", "Method")),
        (train_single, {"method": SAMPLED}, ("method.sampling", "Method")),
        (train_sequential, {"method": SAMPLED}, ("method.sampling", "Method")),
        (train_single, {"options": {"seed": 1}}, ("options", "RunOptions")),
        (train_multitask, {"options": None}, ("options", "RunOptions")),
        (train_single, {"config": 1e-3}, ("config", "TrainConfig")),
        (train_single, {"trunk": "minilm"}, ("trunk", "'minilm'", "Trunk")),
    ],
)
def test_error_names_the_argument_and_the_expected_type(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tmp_path: Path,
    recipe: Callable[..., Any],
    arguments: dict[str, Any],
    facts: tuple[str, ...],
) -> None:
    takes_tasks = recipe in (train_multitask, train_sequential)
    defaults: dict[str, Any] = {"trunk": tiny_trunk, "workdir": tmp_path / "run"}
    defaults |= {"tasks": [task], "data": {task.name: rows}} if takes_tasks else {"task": task, "data": rows}
    if recipe is train_fusion:
        defaults["method"] = FUSION
    with pytest.raises(UserError) as refused:
        recipe(**{**defaults, **arguments})
    assert all(fact in str(refused.value) for fact in facts)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda task: ["quantity"], ("'quantity'", "TaskConfig")),
        (lambda task: [task, None], ("None", "TaskConfig")),
        (lambda task: "quantity", ("'quantity'", "list", "TaskConfig")),
        (lambda task: task, ("name='quantity'", "list", "TaskConfig")),
        (lambda task: 3, ("3", "list", "TaskConfig")),
        (lambda task: iter(()), ("(none)", "at least one")),
    ],
    ids=["names", "None in a list", "a name", "a task", "a number", "no tasks"],
)
@pytest.mark.parametrize("recipe", [train_multitask, train_sequential])
def test_tasks_of_the_wrong_type_are_refused(
    tiny_trunk: Trunk,
    task: TaskConfig,
    rows: Mapping[str, Rows],
    tmp_path: Path,
    recipe: Callable[..., Any],
    make: Callable[[TaskConfig], Any],
    facts: tuple[str, ...],
) -> None:
    with pytest.raises(UserError) as refused:
        recipe(tiny_trunk, make(task), {task.name: rows}, workdir=tmp_path / "run")
    assert has_facts(str(refused.value), *facts)
    assert not (tmp_path / "run").exists()


def test_tasks_can_come_from_a_generator(task: TaskConfig, rows: Mapping[str, Rows]) -> None:
    assert list(check_several((each for each in [task]), {task.name: rows}, TrainConfig())) == [task]


def test_sequence_with_an_unsuitable_name_is_refused_before_training(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tmp_path: Path
) -> None:
    later = dataclasses.replace(task, name="l" * 60)
    with pytest.raises(UserError) as refused:
        train_sequential(
            tiny_trunk,
            [task, later],
            {task.name: rows, later.name: rows},
            workdir=tmp_path / "run",
            options=RunOptions(name="n" * 200),
        )
    assert has_facts(str(refused.value), "261 bytes", "limit is 236")
    assert not (tmp_path / "run").exists()


def test_sequence_with_an_unsuitable_metric_is_refused_before_training(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows], tmp_path: Path
) -> None:
    later = dataclasses.replace(task, name="later", metric="spearman")
    with pytest.raises(UserError) as refused:
        train_sequential(
            tiny_trunk, [task, later], {task.name: rows, "later": rows}, workdir=tmp_path / "run", config=TrainConfig()
        )
    assert "spearman" in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_seed_may_be_a_numpy_integer() -> None:
    assert type(RunOptions(seed=np.int64(3)).seed) is int  # type: ignore[arg-type]
    with pytest.raises(UserError):
        RunOptions(seed=np.int64(-1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: RunOptions(cache_dir=3), ("cache_dir", "3")),  # type: ignore[arg-type]
        (lambda: RunOptions(cache_dir="gs://bucket/cache"), ("cache_dir", "gs://bucket/cache", "local")),  # type: ignore[arg-type]
        (lambda: RunOptions(mesh="all"), ("mesh", "'all'")),  # type: ignore[arg-type]
        (lambda: RunOptions(mesh=jax.make_mesh((1, 1), ("data", "x"))), ("axes are data, x", "data, fsdp, tensor")),
        (lambda: RunOptions(overwrite="yes"), ("overwrite", "'yes'")),  # type: ignore[arg-type]
        (lambda: RunOptions(name="x" * 236).name_of("task"), ("241 bytes",)),
        (lambda: FusionMethod(adapters="entail", store="store"), ("adapters", "'entail'")),  # type: ignore[arg-type]
        (lambda: FusionMethod(adapters=("a", "b", "a"), store="store"), ("adapters", "a, b, a")),
        (lambda: FusionMethod(adapters=("entail",), store=3), ("store", "3")),  # type: ignore[arg-type]
        (lambda: Method(adapter="pfeiffer"), ("adapter", "'pfeiffer'")),  # type: ignore[arg-type]
        (lambda: Method(top_k=2), ("top_k", "2")),
        (lambda: MultitaskMethod(sampling="annealed"), ("sampling", "'annealed'")),  # type: ignore[arg-type]
    ],
)
def test_options_and_methods_refuse_invalid_values(make: Callable[[], Any], facts: tuple[str, ...]) -> None:
    with pytest.raises(UserError) as refused:
        make()
    assert all(fact in str(refused.value) for fact in facts)


def test_home_folder_in_afjax_cache_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFJAX_CACHE", "~/cache")
    assert cache_folder() == Path.home() / "cache"


def test_cache_folder_can_be_a_string(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RunOptions(cache_dir="cache").cache_dir == Path("cache")  # type: ignore[arg-type]
    monkeypatch.setenv("HOME", "/home/alice")
    assert RunOptions(cache_dir=Path("~/cache")).cache_dir == Path("/home/alice/cache")


def test_mesh_with_explicit_axes_is_used_with_automatic_ones() -> None:
    mesh = RunOptions(mesh=jax.make_mesh((1, 1, 1), ("data", "fsdp", "tensor"))).mesh
    assert mesh == make_mesh(MeshConfig())


def test_head_with_a_wrong_number_of_outputs_is_refused(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows]
) -> None:
    setup = single_setup(Method(partition="head"), tiny_trunk.config, name="a", reads="pooled", num_outputs=3)
    params = {"heads": {"a": {"output": {"bias": np.zeros(3)}}}}
    with pytest.raises(UserError) as refused:
        TaskModel.from_params(setup.model, params, tiny_trunk, task, rows["train"], max_length=8)
    assert all(fact in str(refused.value) for fact in ("3", "2", "few, many"))


def test_trained_trunk_is_not_silently_replaced_by_the_pretrained_one(
    tiny_trunk: Trunk, task: TaskConfig, rows: Mapping[str, Rows]
) -> None:
    setup = single_setup(Method(partition="full"), tiny_trunk.config, name="a", reads="pooled", num_outputs=2)
    params = setup.init(jax.random.key(0), tiny_trunk.params)
    model = TaskModel.from_params(setup.model, params, tiny_trunk, task, rows["train"], max_length=8)
    assert model.labels == rows["train"].label_names
    params["trunk"] = jax.tree.map(lambda leaf: leaf + 1, params["trunk"])
    with pytest.raises(UserError) as refused:
        TaskModel.from_params(setup.model, params, tiny_trunk, task, rows["train"], max_length=8)
    assert all(fact in str(refused.value) for fact in ('params["trunk"]', "save_trunk"))
