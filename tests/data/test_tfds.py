"""Prepared TFDS datasets are built and read without TensorFlow, which the tests do not install."""

import importlib.util
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from afjax.config.adapters import AdapterConfig
from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import ChoiceRows, Rows, SpanRows
from afjax.errors import UserError
from afjax.tasks.load import load_split, load_task
from afjax.train.single import train_single
from afjax.trunk.pretrained import Trunk

tfds = pytest.importorskip("tensorflow_datasets")


class TinyPairs(tfds.core.GeneratorBasedBuilder):
    """A dataset in GLUE's layout, where test labels are -1."""

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
            "train": self._generate_examples(6, labeled=True),
            "validation": self._generate_examples(4, labeled=True),
            "test": self._generate_examples(2, labeled=False),
        }

    def _generate_examples(self, count: int, *, labeled: bool) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in range(count):
            label = row % 2 if labeled else -1
            yield row, {"idx": row, "sentence1": f"first é {row}", "sentence2": f"second {row}", "label": label}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepares the dataset, and returns its version folder."""
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
        (
            {"dev": "validaton"},
            r'no split validaton; .*train, validation, test.*"dev" setting.*Did you mean "validation"',
        ),
        ({"text_a": "sentence"}, r'validation:1 .*no column "sentence".*Did you mean "sentence[12]"'),
        ({"label": "idx", "labels": ("a", "b")}, r"validation:\d .*the label"),
    ],
)
def test_invalid_settings_are_refused(prepared: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_split(TaskConfig(name="t", source=f"tfds:{prepared}", **settings), "dev")


@pytest.mark.parametrize(("chosen", "num_rows"), [("train+validation", 10), ("train[:3]+validation[50%:]", 5)])
def test_sums_of_splits(prepared: Path, chosen: str, num_rows: int) -> None:
    assert len(load_split(TaskConfig(name="t", source=f"tfds:{prepared}", train=chosen), "train")) == num_rows


@pytest.mark.parametrize(
    "chosen",
    ["train[:50", "train[", "train[a:b]", "train[200%:]", "train[:0%]", "train[4:2]", "train+", "train[:2]+no"],
)
def test_invalid_slices_and_sums_of_splits_are_refused(prepared: Path, chosen: str) -> None:
    with pytest.raises(UserError, match=r'the task\'s "train" setting|The task\'s "train" setting'):
        load_split(TaskConfig(name="t", source=f"tfds:{prepared}", train=chosen), "train")


@pytest.mark.parametrize("damage", ["no shard", "empty shard", "no features", "damaged info"])
def test_damaged_dataset_is_refused(prepared: Path, tmp_path: Path, damage: str) -> None:
    folder = Path(shutil.copytree(prepared, tmp_path / "copy" / "1.0.0"))
    (shard,) = folder.glob("*-train.array_record-*")
    if damage == "no shard":
        shard.unlink()
    elif damage == "empty shard":
        shard.write_bytes(b"")
    elif damage == "no features":
        (folder / "features.json").unlink()
    else:
        (folder / "dataset_info.json").write_text("{")
    with pytest.raises(UserError, match=re.escape(f"tfds:{folder}")):
        load_split(TaskConfig(name="t", source=f"tfds:{folder}"), "train")


def test_misspelled_test_split_is_refused_instead_of_skipped(prepared: Path) -> None:
    with pytest.raises(UserError, match=r'no split tset; .*"test" setting.*Did you mean "test"'):
        load_task(TaskConfig(name="t", source=f"tfds:{prepared}", test="tset"))


def test_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no dataset_info\.json; .*version folder"):
        load_split(TaskConfig(name="t", source=f"tfds:{tmp_path}"), "train")


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is not None, reason="TensorFlow is installed")
def test_dataset_that_needs_tensorflow_is_refused() -> None:
    with pytest.raises(UserError, match=r"afjax\[tfds\]"):
        load_split(TaskConfig(name="t", source="tfds:glue/rte"), "train")


class TinyStars(tfds.core.GeneratorBasedBuilder):
    """A dataset whose label names are numbers, so that an index could be mistaken for a name."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        label = tfds.features.ClassLabel(names=["1", "2", "3"])
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": label})
        )

    def _split_generators(self, _: Any) -> dict[str, Any]:
        return {"train": self._generate_examples()}

    def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in range(3):
            yield row, {"text": f"{row + 1} stars", "label": row}


@pytest.fixture(scope="module")
def stars(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prepares the dataset, and returns its source."""
    builder = TinyStars(data_dir=tmp_path_factory.mktemp("tfds"), file_format="array_record")
    builder.download_and_prepare()
    return f"tfds:{builder.data_path}"


@pytest.mark.parametrize(("labels", "first"), [((), "1"), (("3", "2", "1"), "1"), (("poor", "fair", "good"), "poor")])
def test_class_indices_become_the_datasets_names(stars: str, labels: tuple[str, ...], first: str) -> None:
    rows = load_split(TaskConfig(name="t", source=stars, labels=labels), "train")
    assert isinstance(rows, Rows)
    assert rows.labels is not None
    names = {text: rows.label_names[label] for text, label in zip(rows.text_a, rows.labels, strict=True)}
    assert names["1 stars"] == first
    numbers = load_split(TaskConfig(name="t", source=stars, kind="regression"), "train")
    assert isinstance(numbers, Rows)
    assert numbers.labels is not None
    assert dict(zip(numbers.text_a, numbers.labels.tolist(), strict=True))["1 stars"] == 0


class TinyQuestions(tfds.core.GeneratorBasedBuilder):
    """A dataset in SQuAD's layout, with an additional list of choices."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> Any:
        answers = {"text": tfds.features.Text(), "answer_start": np.int32}
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "id": tfds.features.Text(),
                    "context": tfds.features.Text(),
                    "question": tfds.features.Text(),
                    "answers": tfds.features.Sequence(answers),
                    "endings": tfds.features.Sequence(tfds.features.Text()),
                    "right": np.int64,
                }
            ),
        )

    def _split_generators(self, _: Any) -> dict[str, Any]:
        return {"train": self._generate_examples(3), "validation": self._generate_examples(2)}

    def _generate_examples(self, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for row in range(count):
            context = f"é is {row}"
            answers = {"text": [str(row), "é"], "answer_start": [5, 0]}
            endings = [f"ending {row}", "other"] + ["third"] * (row % 2)
            yield row, {"id": f"q{row}", "context": context, "question": "what?", "answers": answers,
                        "endings": endings, "right": row % 2}  # fmt: skip


def test_answers_and_choices(tmp_path: Path) -> None:
    builder = TinyQuestions(data_dir=tmp_path, file_format="array_record")
    builder.download_and_prepare()
    source = f"tfds:{builder.data_path}"
    spans = load_split(TaskConfig(name="t", source=source, kind="span"), "train")
    assert isinstance(spans, SpanRows)
    assert spans.labels is not None
    assert sorted(spans.labels) == [((str(row), 5), ("é", 0)) for row in range(3)]
    choices = load_split(
        TaskConfig(name="t", source=source, kind="multiple_choice", choices=("endings",), label="right"), "train"
    )
    assert isinstance(choices, ChoiceRows)
    assert choices.labels is not None
    assert sorted(zip(choices.choices, choices.labels.tolist(), strict=True)) == [
        (("ending 0", "other"), 0),
        (("ending 1", "other", "third"), 1),
        (("ending 2", "other"), 0),
    ]


@pytest.mark.slow
def test_prepared_dataset_can_be_trained_on(prepared: Path, tiny_trunk: Trunk, tmp_path: Path) -> None:
    task = TaskConfig(name="t", source=f"tfds:{prepared}")
    settings = TrainConfig(max_steps=2, batch_size=4, max_length=8, buckets=(8,), dropout=False)
    adapter = AdapterConfig(reduction_factor=4.0)
    trained = train_single(
        tiny_trunk, task, load_task(task), workdir=tmp_path, config=settings, method=Method(adapter=adapter)
    )
    assert trained.metrics.keys() >= {"accuracy", "f1"}
    assert trained.labels == ("yes", "no")
    assert "tensorflow" not in sys.modules
