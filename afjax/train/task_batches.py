"""A task's train batches, and the scores of its dev split."""

from collections.abc import Iterator

import jax
import numpy as np
from jax.sharding import Mesh

from afjax.config.tasks import TaskConfig
from afjax.data.batches import Batch, Batching, batches_per_epoch, train_batches
from afjax.data.tokenization import TokenizedRows
from afjax.distributed.sharding import host_rows, shard_batch
from afjax.tasks.scores import split_scores


def batches_from(step: int, rows: TokenizedRows, batching: Batching, seed: int, mesh: Mesh) -> Iterator[Batch]:
    """Yields this host's part of a task's train batches from a step onwards, indefinitely.

    Each epoch reshuffles the rows.
    """
    epoch, start = divmod(step, batches_per_epoch(len(rows), batching.batch_size))
    part = host_rows(batching.batch_size, mesh)
    while True:
        yield from train_batches(rows, batching, seed=seed, epoch=epoch, start=start, part=part)
        epoch, start = epoch + 1, 0


def step_inputs(batch: Batch, batch_size: int, mesh: Mesh) -> dict[str, jax.Array]:
    """Copies a batch, without its row numbers, to the mesh."""
    return shard_batch(device_arrays(batch), batch_size, mesh)


def device_arrays(batch: Batch) -> Batch:
    """Returns a batch without its row numbers, which the step does not use."""
    return {name: array for name, array in batch.items() if name != "rows"}


def scale_labels(batch: Batch, task: TaskConfig) -> Batch:
    """Divides a regression task's labels by the task's scale, as the loss expects."""
    return batch if task.scale == 1.0 else {**batch, "labels": batch["labels"] / np.float32(task.scale)}


def dev_scores(logits: np.ndarray, dev: TokenizedRows, task: TaskConfig) -> dict[str, float]:
    """Computes every metric of a dev split from a model's logits."""
    return split_scores(logits if task.scale == 1.0 else logits * task.scale, dev, task)
