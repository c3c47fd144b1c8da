"""A prepared TFDS dataset is built and read here without TensorFlow, which is not installed for the tests."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afjax.config import TaskConfig
from afjax.data.rows import load_split, load_task
from afjax.errors import UserError

tfds = pytest.importorskip("tensorflow_datasets")


class TinyPairs(tfds.core.GeneratorBasedBuilder):
    """GLUE's layout: test labels are -1."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "idx": tfds.features.Scalar(np.int32),
                    "label": tfds.features.ClassLabel(names=["yes", "no"]),
                    "sentence1": tfds.features.Text(),
                    "sentence2": tfds.features.Text(),
                }
            ),
        )

    def _split_generators(self, _: Any) -> dict[str, Any]:
        return {
            "train": self._generate_examples(6, labelled=True),
            "validation": self._generate_examples(4, labelled=True),
            "test": self._generate_examples(2, labelled=False),
        }

    def _generate_examples(self, count: int, *, labelled: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in range(count):
            label = row % 2 if labelled else -1
            yield row, {"idx": row, "sentence1": f"first é {row}", "sentence2": f"second {row}", "label": label}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version folder of the prepared dataset."""
    builder = TinyPairs(data_dir=tmp_path_factory.mktemp("tfds"), file_format="array_record")
    builder.download_and_prepare()
    return Path(builder.data_path)


def test_splits_of_a_prepared_folder(prepared: Path) -> None:
    splits = load_task(TaskConfig(name="t", source=f"tfds:{prepared}"))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 6, "dev": 4, "test": 2}
    train = splits["train"]
    assert train.label_names == ("yes", "no")
    assert train.text_b is not None
    assert train.labels is not None
    rows = sorted(zip(train.text_a, train.text_b, train.labels.tolist(), strict=True))
    assert rows == [(f"first é {row}", f"second {row}", row % 2) for row in range(6)]
    assert splits["test"].labels is None
    assert "tensorflow" not in sys.modules


def test_chosen_splits_and_columns(prepared: Path) -> None:
    task = TaskConfig(name="t", source=f"tfds:{prepared}", dev="train[:3]", text_a="sentence2")
    rows = load_split(task, "dev")
    assert len(rows) == 3
    assert rows.text_b is None
    assert rows.text_a[0].startswith("second")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"dev": "validaton"}, "no dev split, but train, validation, test"),
        ({"text_a": "sentence"}, r'validation:1 has no column "sentence".*Did you mean "sentence[12]"'),
        ({"label": "idx", "labels": ("a", "b")}, r"validation:\d has the label"),
    ],
)
def test_wrong_settings(prepared: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_split(TaskConfig(name="t", source=f"tfds:{prepared}", **settings), "dev")


def test_folder_that_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no dataset_info\.json; give the version folder"):
        load_split(TaskConfig(name="t", source=f"tfds:{tmp_path}"), "train")


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_dataset_that_needs_tensorflow() -> None:
    with pytest.raises(UserError, match=r"afjax\[tfds\]"):
        load_split(TaskConfig(name="t", source="tfds:glue/rte"), "train")
