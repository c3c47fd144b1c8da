"""A run's inputs: tokenized rows, and digests of everything that the run reads.

The digests detect changed inputs when the run is resumed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.data.notices import data_notices
from afjax.data.splits import AnyRows
from afjax.data.tokenization import TokenizedRows
from afjax.tasks.load import check_forms
from afjax.tasks.tokenize import tokenize
from afjax.train.messages import print_notices
from afjax.train.record import trunk_inputs
from afjax.train.shared import TRUNKS, Shared
from afjax.trunk.pretrained import Trunk


def run_inputs(trunk: Trunk, data: Mapping[str, Mapping[str, AnyRows]], seed: int) -> dict[str, str]:
    """Computes a digest of each of a run's inputs.

    Args:
      trunk: The initial trunk.
      data: ``{task: {split: rows}}``. Only train and dev are used.
      seed: The seed of all randomness.

    Returns:
      ``{name: digest or value}``. Short inputs, such as the seed, are kept as values.
    """
    splits = ("train", "dev")
    rows = {f"{task}'s {split} rows": data[task][split].digest() for task in data for split in splits}
    return {**trunk_inputs(trunk), "the seed": str(seed), **rows}


def task_settings(task: TaskConfig) -> dict[str, Any]:
    """Selects the task settings that affect a run's result.

    The data's location is excluded, because rows are compared by digest.
    """
    return {
        "name": task.name,
        "kind": task.kind,
        "metric": task.metric,
        "scale": task.scale,
        "span": to_dict(task.span),
        **({"multi_label": to_dict(task.multi_label)} if task.kind == "multi_label" else {}),
    }


def shared_tokenizer(trunk: Trunk, shared: Shared | None) -> Any:
    """Returns the trunk's tokenizer. Runs with the same ``shared`` load it once."""
    if shared is None:
        return trunk.tokenizer()
    # The value holds a reference to the trunk, so that its id is not reused.
    _, tokenizer = shared.once("tokenizer", id(trunk), lambda: (trunk, trunk.tokenizer()), capacity=TRUNKS)
    return tokenizer


def tokenize_splits(
    tokenizer: Any, task: TaskConfig, data: Mapping[str, AnyRows], max_length: int, cache_dir: Path | None
) -> dict[str, TokenizedRows]:
    """Checks and tokenizes train and dev rows, and prints notices about them."""
    splits = {split: data[split] for split in ("train", "dev")}
    check_forms(task, splits)
    print_notices(data_notices(task, splits))
    return {
        split: tokenize(rows, tokenizer, task, max_length=max_length, training=split == "train", cache_dir=cache_dir)
        for split, rows in splits.items()
    }
