"""Recipes accept tables instead of rows, and make dev rows if there are none."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from afjax.config.adapters import AdapterConfig
from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import SamplingConfig, TrainConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.model.loading import load_task_model
from afjax.model.task_model import TaskModel
from afjax.train.fusion import train_fusion
from afjax.train.multitask import train_multitask
from afjax.train.record import setting_differences
from afjax.train.sequential import train_sequential
from afjax.train.single import train_single
from afjax.trees import tree_digest
from afjax.trunk.pretrained import Trunk

pytestmark = pytest.mark.slow

ADAPTER = AdapterConfig(size=2)
COLUMNS = TaskConfig(name="quantity", text_a="sentence", label="amount", labels=("few", "many"))


@pytest.fixture(scope="module")
def settings(tiny: TrainConfig) -> TrainConfig:
    return dataclasses.replace(tiny, max_steps=2, eval_every=2)


@pytest.fixture(scope="module")
def tables(rows: Mapping[str, Rows]) -> dict[str, Any]:
    """Returns the tiny task's splits as dictionaries of columns."""
    found = {}
    for split, split_rows in rows.items():
        assert split_rows.labels is not None
        labels = [split_rows.label_names[label] for label in split_rows.labels]
        found[split] = {"sentence": split_rows.text_a, "amount": labels}
    return found


@pytest.fixture(scope="module")
def from_tables(
    tiny_trunk: Trunk, tables: dict[str, Any], settings: TrainConfig, tmp_path_factory: pytest.TempPathFactory
) -> TaskModel:
    folder = tmp_path_factory.mktemp("tables") / "run"
    return train_single(tiny_trunk, COLUMNS, tables, workdir=folder, config=settings, method=Method(adapter=ADAPTER))


def test_training_on_tables_equals_training_on_rows(
    from_tables: TaskModel,
    tiny_trunk: Trunk,
    rows: Mapping[str, Rows],
    tables: dict[str, Any],
    settings: TrainConfig,
    tmp_path: Path,
) -> None:
    from_rows = train_single(
        tiny_trunk, COLUMNS, rows, workdir=tmp_path / "run", config=settings, method=Method(adapter=ADAPTER)
    )
    assert tree_digest(from_tables.params) == tree_digest(from_rows.params)
    # Tables with the same rows return the finished run.
    again = train_single(
        tiny_trunk, COLUMNS, tables, workdir=tmp_path / "run", config=settings, method=Method(adapter=ADAPTER)
    )
    assert again.metrics == from_rows.metrics


def test_tables_can_be_evaluated_and_predicted(
    from_tables: TaskModel, rows: Mapping[str, Rows], tables: dict[str, Any], tmp_path: Path
) -> None:
    from_tables.save(tmp_path)
    stored = load_task_model(tmp_path, from_tables.trunk, head="quantity", adapter="quantity")
    for model in (from_tables, stored):
        assert model.evaluate(tables["dev"]) == model.evaluate(rows["dev"])
        expected = model.predict(rows["dev"].text_a).labels
        assert model.predict(tables["dev"]).labels == expected
        assert model.predict(iter(rows["dev"].text_a)).labels == expected
    with pytest.raises(UserError, match=r"list.*DataFrame"):
        from_tables.evaluate(["all of the two"])
    with pytest.raises(UserError, match=r'"amount".*sentence, amuont'):
        from_tables.evaluate({"sentence": ["all"], "amuont": ["few"]})


def test_single_table_instead_of_splits_is_refused(tiny_trunk: Trunk, tmp_path: Path) -> None:
    table = pytest.importorskip("pandas").DataFrame({"text": ["all", "some"], "label": ["many", "few"]})
    with pytest.raises(UserError, match=r'table \(DataFrame\).*"train"'):
        train_single(tiny_trunk, TaskConfig(name="t"), table, workdir=tmp_path)


def test_hugging_face_datasets_give_the_same_model(
    from_tables: TaskModel,
    tiny_trunk: Trunk,
    rows: Mapping[str, Rows],
    tables: dict[str, Any],
    settings: TrainConfig,
    tmp_path: Path,
) -> None:
    datasets = pytest.importorskip("datasets")
    names = datasets.ClassLabel(names=["many", "few"])
    splits = {}
    for split, name in (("train", "train"), ("dev", "validation")):
        dataset = datasets.Dataset.from_dict(tables[split])
        splits[name] = dataset.cast_column("amount", names)
    model = train_single(
        tiny_trunk,
        COLUMNS,
        datasets.DatasetDict(splits),
        workdir=tmp_path / "run",
        config=settings,
        method=Method(adapter=ADAPTER),
    )
    assert tree_digest(model.params) == tree_digest(from_tables.params)
    assert model.evaluate(splits["validation"]) == model.evaluate(rows["dev"])
    stream = splits["validation"].to_iterable_dataset()
    assert model.predict(stream).labels == model.predict(rows["dev"].text_a).labels


def test_other_recipes_accept_tables(
    from_tables: TaskModel, tiny_trunk: Trunk, tables: dict[str, Any], settings: TrainConfig, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    from_tables.save(store)
    task, data = COLUMNS, {"quantity": tables}
    fused = train_fusion(
        tiny_trunk,
        task,
        tables,
        FusionMethod(adapters=("quantity",), store=store),
        workdir=tmp_path / "fusion",
        config=settings,
    )
    assert fused.labels == ("few", "many")
    sampled = MultitaskMethod(partition="head", sampling=SamplingConfig(steps_per_epoch=2))
    jointly: Any = functools.partial(train_multitask, tiny_trunk, [task], method=sampled, config=settings)
    in_sequence: Any = functools.partial(
        train_sequential, tiny_trunk, [task], method=Method(partition="head"), config=settings
    )
    joint, sequence = jointly(data, workdir=tmp_path / "m"), in_sequence(data, workdir=tmp_path / "s")
    for model in (joint["quantity"], sequence.models["quantity"]):
        assert model.labels == ("few", "many")
    for train in (jointly, in_sequence):
        for bad in ({}, tables, [tables]):
            with pytest.raises(UserError):
                train(bad, workdir=tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_run_without_dev_rows_is_resumed_only_with_the_same_rows(
    tiny_trunk: Trunk, tables: dict[str, Any], settings: TrainConfig, tmp_path: Path
) -> None:
    task = dataclasses.replace(COLUMNS, dev_share=0.3)

    def train(columns: dict[str, Any], task: TaskConfig = task) -> TaskModel:
        data = {"train": columns}
        return train_single(tiny_trunk, task, data, workdir=tmp_path, config=settings, method=Method(partition="head"))

    first = train(tables["train"])
    assert train(tables["train"]).metrics == first.metrics
    more = {name: [*values, values[0]] for name, values in tables["train"].items()}
    more["sentence"][-1] = "a new row"
    with pytest.raises(UserError, match="rows changed since"):
        train(more)
    with pytest.raises(UserError, match="rows changed since"):
        train(tables["train"], dataclasses.replace(task, dev_share=0.6))


def test_dev_share_missing_from_an_earlier_record_is_the_default() -> None:
    recorded = json.loads(json.dumps({"task": {"name": "t"}, "sources": [{"task": {"name": "s"}}]}))
    given = {"task": {"name": "t", "dev_share": 0.1}, "sources": [{"task": {"name": "s", "dev_share": 0.1}}]}
    assert setting_differences(recorded, given) == []
    given["task"]["dev_share"] = 0.2  # type: ignore[index]
    assert setting_differences(recorded, given) == ["task.dev_share: 0.1 recorded, 0.2 given"]
