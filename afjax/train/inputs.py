"""What a run reads: token ids, and the digests by which a later run recognizes the same inputs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.data.notices import data_notices
from afjax.data.splits import AnyRows
from afjax.data.tokenise import TokenisedRows
from afjax.tasks.load import check_forms
from afjax.tasks.tokenize import tokenize
from afjax.train.messages import tell
from afjax.train.record import trunk_inputs
from afjax.trunk.pretrained import Trunk


def run_inputs(trunk: Trunk, data: Mapping[str, Mapping[str, AnyRows]], seed: int) -> dict[str, str]:
    """Describes what a run reads.

    Args:
      trunk: The trunk that it begins with.
      data: ``{task: {split: rows}}``, of which train and dev are read.
      seed: The seed of all randomness.

    Returns:
      ``{what: digest or value}``.
    """
    splits = ("train", "dev")
    rows = {f"{task}'s {split} rows": data[task][split].digest() for task in data for split in splits}
    return {**trunk_inputs(trunk), "the seed": str(seed), **rows}


def task_settings(task: TaskConfig) -> dict[str, Any]:
    """The settings of a task that a run's result depends on. Rows are compared by digest, wherever they come from."""
    return {
        "name": task.name,
        "kind": task.kind,
        "metric": task.metric,
        "scale": task.scale,
        "span": to_dict(task.span),
    }


def tokenise_splits(
    trunk: Trunk, task: TaskConfig, data: Mapping[str, AnyRows], max_length: int, cache_dir: Path | None
) -> dict[str, TokenisedRows]:
    """Tokenises train and dev, after a check of their form; prints what may be wrong with them."""
    check_forms(task, {split: data[split] for split in ("train", "dev")})
    tell(data_notices(task, {split: data[split] for split in ("train", "dev")}))
    tokenizer = trunk.tokenizer()
    return {
        split: tokenize(
            data[split], tokenizer, task, max_length=max_length, training=split == "train", cache_dir=cache_dir
        )
        for split in ("train", "dev")
    }
