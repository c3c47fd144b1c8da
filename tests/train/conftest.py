"""Defines a task that a tiny trunk learns in seconds, and its training settings."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import Rows
from afjax.tasks.load import rows_from_lists

TASK = TaskConfig(name="quantity")
TINY = TrainConfig(
    learning_rate=1e-2, max_steps=16, batch_size=8, max_length=8, buckets=(8,), eval_every=8, dropout=False
)


@pytest.fixture(scope="session")
def task() -> TaskConfig:
    return TASK


@pytest.fixture(scope="session")
def tiny() -> TrainConfig:
    """Returns settings for 16 steps of 8 rows each, with two evaluations on dev."""
    return TINY


@pytest.fixture(scope="session")
def rows() -> Mapping[str, Rows]:
    """Makes the rows of a task that labels sentences as "many" or "few"."""
    numbers = ("two", "three", "four", "five", "six", "seven", "eight", "nine")
    texts = [(f"{word} of the {number}", word) for number in numbers for word in ("all", "most", "some", "none")]
    labels = ["many" if word in ("all", "most") else "few" for _, word in texts]
    names = ("few", "many")
    return {
        "train": rows_from_lists([text for text, _ in texts[:24]], labels[:24], label_names=names),
        "dev": rows_from_lists([text for text, _ in texts[24:]], labels[24:], label_names=names),
    }


@pytest.fixture
def data(rows: Mapping[str, Rows], tmp_path: Path) -> Path:
    """Makes a folder with the task's ``train.jsonl`` and ``dev.jsonl``."""
    folder = tmp_path / "data"
    folder.mkdir()
    for split, split_rows in rows.items():
        assert split_rows.labels is not None
        labels = [split_rows.label_names[label] for label in split_rows.labels]
        pairs = zip(split_rows.text_a, labels, strict=True)
        lines = [json.dumps({"text": text, "label": label}) for text, label in pairs]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder
