"""Rows are built from Hugging Face's ``Dataset``, ``IterableDataset`` and ``DatasetDict``."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from facts import has_facts
from labeled_datasets import PAIRS, labeled, names_of

from afjax.config.tasks import TaskConfig
from afjax.data.splits import Rows
from afjax.errors import UserError
from afjax.tasks.load import rows_by_split, rows_from_lists, rows_from_table

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()


def refused(make: Callable[..., Any], *args: Any, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        make(*args, **settings)
    return str(caught.value)


def iterable(dataset: Any) -> Any:
    return dataset.to_iterable_dataset()


@pytest.mark.parametrize("convert", [lambda dataset: dataset, iterable, lambda dataset: dataset.with_format("numpy")])
def test_rows_of_a_dataset(convert: Any) -> None:
    dataset = convert(labeled(0, 1, -1, names=("2", "1"), id=[7, 8, 9]))
    rows = rows_from_table(dataset, TaskConfig(name="t"), labeled=False)
    assert isinstance(rows, Rows)
    assert (rows.text_a, rows.text_b, rows.ids) == (PAIRS["text_a"][:3], PAIRS["text_b"][:3], ["7", "8", "9"])
    message = refused(rows_from_table, dataset, TaskConfig(name="t"))
    assert has_facts(message, "table:2 ", "no label")
    rows = rows_from_table(convert(labeled(0, 1, 1, names=("2", "1"))), TaskConfig(name="t"))
    assert (rows.label_names, names_of(rows)) == (("2", "1"), ["2", "1", "1"])
    assert has_facts(refused(rows_from_table, dataset, TaskConfig(name="t", text_a="text")), "table:0 ", '"text"')


def test_iterable_dataset_without_features() -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for number in range(3):
            yield {"text": f"text {number}", "label": np.int64(number % 2)}

    found = rows_from_table(datasets.IterableDataset.from_generator(rows), TaskConfig(name="t"))
    assert (found.label_names, names_of(found)) == (("0", "1"), ["0", "1", "0"])


def test_dataset_dict_is_the_data_of_a_task() -> None:
    task = TaskConfig(name="t")
    train, dev = labeled(0, 1, 1), labeled(1, 0, names=("yes", "no"))
    for convert in (lambda dataset: dataset, iterable):
        splits = {"train": convert(train), "validation": convert(dev), "test": convert(labeled(-1))}
        found = rows_by_split(task, datasets.DatasetDict(splits) if convert is not iterable else splits)
        assert list(found) == ["train", "dev", "test"]
        assert names_of(found["dev"]) == ["no", "yes"]
        assert found["test"].labels is None
    message = refused(rows_by_split, task, datasets.DatasetDict(train=train, validation=dev.remove_columns("label")))
    assert has_facts(message, 'data["validation"]:0 ', '"label"', "text_a, text_b")
    message = refused(rows_by_split, task, datasets.DatasetDict(train=train, validation_matched=dev))
    assert has_facts(message, "train, validation_matched", '"dev"')
    assert has_facts(refused(rows_from_table, datasets.DatasetDict(train=train), task), "table", "train")


def test_numbers_of_unlabeled_rows_are_not_labels() -> None:
    task = TaskConfig(name="t", kind="regression")
    unlabeled = {"text": ["one", "two"], "label": [-1.0, -1.0]}
    assert rows_from_table(datasets.Dataset.from_dict(unlabeled), task, labeled=None).labels is None
    negative = rows_from_table({"text": ["one", "two"], "label": [-1.0, 0.5]}, task, labeled=None)
    assert negative.labels is not None
    assert list(negative.labels) == [-1.0, 0.5]


def test_column_of_a_dataset() -> None:
    dataset = labeled(0, 1, 1)
    rows = rows_from_lists(dataset["text_a"], dataset["label"], label_names=dataset.features["label"].names)
    assert isinstance(rows, Rows)
    assert (rows.text_a, names_of(rows)) == (PAIRS["text_a"][:3], ["no", "yes", "yes"])
