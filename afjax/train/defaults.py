"""Resolves settings whose defaults depend on the partition and the trunk.

A resumed run keeps the default that it began with, even if a later version has changed it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from afjax.config.defaults import FORMER_LEARNING_RATE, FORMER_POOLING, LEARNING_RATES, POOL_LIKE_TRUNK
from afjax.config.experiment import ExperimentConfig
from afjax.config.heads import HeadConfig
from afjax.config.training import TrainConfig
from afjax.config.values import Partition, Pooling
from afjax.distributed.notes import note


def choose_pooling(
    head: HeadConfig, trained: Partition, trunk_pooling: Callable[[], Pooling], recorded: Mapping[str, Any]
) -> HeadConfig:
    """Fills in a head's default pooling.

    Args:
      head: The head's architecture. If its pooling is set, it is returned unchanged.
      trained: The trained partition.
      trunk_pooling: Returns the trunk's own pooling. Called only if the default depends on it.
      recorded: The settings of the run to resume, by dotted path; empty for a new run.

    Raises:
      UserError: The trunk's own pooling is needed but unreadable or unsupported.
    """
    if head.pooling is not None:
        return head
    default = trunk_pooling() if trained in POOL_LIKE_TRUNK else "first"
    if recorded.get("head.pooling") == FORMER_POOLING != default:
        note(f'The run began with the former default of head.pooling, "{FORMER_POOLING}", and keeps it.')
        default = FORMER_POOLING
    return head.with_pooling(default)


def choose_learning_rate(
    config: TrainConfig, trained: Partition, recorded: Mapping[str, Any], path: str = "train"
) -> TrainConfig:
    """Fills in the default learning rate.

    Args:
      config: The training settings. If the learning rate is set, they are returned unchanged.
      trained: The trained partition.
      recorded: The settings of the run to resume, by dotted path; empty for a new run.
      path: The dotted path of the training settings in ``recorded``.
    """
    if config.learning_rate is not None:
        return config
    rate = LEARNING_RATES[trained]
    if recorded.get(f"{path}.learning_rate") == FORMER_LEARNING_RATE != rate:
        note(f"The run began with the former default of {path}.learning_rate, {FORMER_LEARNING_RATE:g}, and keeps it.")
        rate = FORMER_LEARNING_RATE
    return dataclasses.replace(config, learning_rate=rate)


def choose_defaults(
    config: ExperimentConfig, trunk_pooling: Callable[[], Pooling], recorded: Mapping[str, Any]
) -> ExperimentConfig:
    """Fills in an experiment's default pooling and learning rates.

    Args:
      config: The experiment.
      trunk_pooling: As in :func:`choose_pooling`.
      recorded: The config recorded in the workdir, by dotted path; empty for a new workdir.

    Raises:
      UserError: As in :func:`choose_pooling`.
    """
    trained: Partition = "fusion" if config.recipe == "fusion" else config.partition
    sources = (
        dataclasses.replace(
            source, train=choose_learning_rate(source.train, "adapter", recorded, f"sources.{number}.train")
        )
        for number, source in enumerate(config.sources)
    )
    return dataclasses.replace(
        config,
        head=choose_pooling(config.head, trained, trunk_pooling, recorded),
        train=choose_learning_rate(config.train, trained, recorded),
        sources=tuple(sources),
    )
