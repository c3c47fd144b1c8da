"""Checks an experiment before anything is written.

Mistakes should not surface after hours of training.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath
from jax.sharding import Mesh

from afjax import store
from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import Adapter
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import AnyRows
from afjax.distributed.sharding import check_batch
from afjax.errors import UserError, did_you_mean
from afjax.fusion.checks import check_fusible, check_subset
from afjax.fusion.pruning import check_kept
from afjax.model import partition
from afjax.model.heads import check_pooler
from afjax.model.loading import load_adapters
from afjax.storage.paths import check_writable, expanded, is_remote
from afjax.tasks.class_loss import check_class_settings
from afjax.tasks.kinds import TASK_KINDS, check_metric
from afjax.train.arguments import check_adapter_size
from afjax.train.record import adapter_input
from afjax.train.workdir import TARGET, is_unfinished, source_folder
from afjax.trunk.pretrained import Trunk, check_length


def check_experiment(
    config: ExperimentConfig,
    tasks: Mapping[TaskConfig, Mapping[str, AnyRows]],
    trunk: Trunk,
    tokenizer: Any,
    workdir: epath.Path,
    store_folder: str | Path,
    from_store: Sequence[str],
) -> None:
    """Raises UserError if data, trunk, store and settings are incompatible.

    Args:
      config: The experiment.
      tasks: The rows of every task to train.
      trunk: The trunk.
      tokenizer: The trunk's tokenizer.
      workdir, store_folder: The run's folder, and the store for its artifacts.
      from_store: The result of :func:`stored_sources`.
    """
    runs: list[tuple[TaskConfig, TrainConfig]] = [(task, config.train) for task in config.target_tasks]
    runs += [(source.task, source.train) for source in config.sources if source.task.name not in from_store]
    for task, settings in runs:
        check_length(settings.max_length, trunk)
        check_metric(task.main_metric, task.kind, len(tasks[task]["train"].label_names))
        for split in ("train", "dev"):
            TASK_KINDS[task.kind].check_tokens(tasks[task][split], tokenizer, f"{task.name}'s {split} rows")
    check_class_settings(config.train, {task: tasks[task]["train"].label_names for task in config.target_tasks})
    for source in config.sources:
        if source.task in tasks:
            check_class_settings(source.train, {source.task: tasks[source.task]["train"].label_names})
    adapter_layers(config.adapter, trunk.config.num_layers)
    if config.has_adapter or config.recipe == "fusion":
        check_adapter_size(config.adapter, trunk)
    check_pooler(config.head, trunk.params)
    if config.partition == "top_k":
        partition.split_layers(trunk.params, config.top_k)
    _check_names(config, workdir, store_folder, from_store)
    if config.recipe == "fusion":
        _check_fused(config, trunk, store_folder, from_store)


def check_place(folder: epath.Path, flag: str) -> None:
    """Raises UserError if a flag's folder is not writable.

    On object stores, writing and removing a small file is the only way to check.
    """
    if is_remote(folder):
        check_writable(folder, flag)
        return
    path = expanded(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists() or parent.is_symlink())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        not_folder = "is not a folder" if existing.exists() else "is a broken link"
        problem = "cannot be written" if existing.is_dir() else not_folder
        raise UserError(f"The {flag} {folder} cannot be used because {existing} {problem}; choose another --{flag}.")


def check_batches(config: ExperimentConfig, mesh: Mesh) -> None:
    """Raises UserError if a run's batches cannot be split evenly across the mesh."""
    for settings in (config.train, *(source.train for source in config.sources)):
        check_batch(settings.batch_size, mesh)


def stored_sources(config: ExperimentConfig, workdir: epath.Path, store_folder: str | Path) -> list[str]:
    """Lists the sources whose adapters are already in the store.

    Sources that this experiment has begun to train are excluded.
    """
    if config.recipe != "fusion":
        return []
    stored_names = store.names(store_folder, "adapters")
    return [
        name for name in config.source_names if name in stored_names and not is_unfinished(source_folder(workdir, name))
    ]


def sources_with_rows(
    config: ExperimentConfig, from_store: Sequence[str], inputs: Mapping[str, str] | None
) -> list[SourceConfig]:
    """Selects the sources whose rows must be loaded.

    A resumed run loads the same rows as when it began, even for sources that it has finished since. If an earlier
    version of afjax began the run, the rows of all sources are loaded.

    Args:
      config: The experiment.
      from_store: The result of :func:`stored_sources`.
      inputs: The inputs recorded in the workdir; None for a new workdir.
    """
    unread = from_store if inputs is None else [name for name in from_store if adapter_input(name) in inputs]
    return [source for source in config.sources if source.task.name not in unread]


def why_rows_are_needed(name: str, store_folder: str | Path) -> str:
    """Explains in an error message why a source's rows are needed.

    Returns:
      A sentence saying that the store lacks the source's adapter, or an empty string if the store has it.
    """
    stored_names = store.names(store_folder, "adapters")
    if name in stored_names:
        return ""
    return (
        f' Its rows are needed because the store {store_folder} has no adapter "{name}" '
        f"(it has: {', '.join(stored_names) or 'none'}).{did_you_mean(name, stored_names)} If the adapter is in "
        "another store, pass that store with --store."
    )


def check_stored(
    config: ExperimentConfig,
    from_store: Sequence[str],
    inputs: Mapping[str, str] | None,
    workdir: epath.Path,
    store_folder: str | Path,
) -> None:
    """Raises UserError if a fusion's adapters are no longer in the store.

    Only fusions that have already begun are checked.

    Args:
      config, from_store, inputs: As in :func:`sources_with_rows`.
      workdir, store_folder: The run's folder, and the store for its artifacts.
    """
    not_stored = [name for name in config.source_names if name not in from_store]
    missing = [name for name in not_stored if not source_folder(workdir, name).exists()]
    if not (workdir / TARGET).exists():
        missing = [name for name in missing if adapter_input(name) in (inputs or {})]
    if missing:
        raise UserError(
            f"The fusion in {workdir} began with adapters that are missing from the store {store_folder} "
            f"({', '.join(missing)}). Pass the --store that has them, or choose another --workdir."
        )


def target_kinds(config: ExperimentConfig) -> tuple[str, ...]:
    """Returns the kinds of artifacts that the target run saves."""
    if config.recipe == "fusion":
        return ("fusion", "heads")
    return ("adapters", "heads") if config.has_adapter else ("heads",)


def _check_names(
    config: ExperimentConfig, workdir: epath.Path, store_folder: str | Path, from_store: Sequence[str]
) -> None:
    """Raises UserError if a new run's artifact name is already taken in the store."""
    targets = config.artifact_names
    kinds_by_name = {} if (workdir / TARGET).exists() else dict.fromkeys(targets, target_kinds(config))
    if config.recipe == "fusion":
        names = config.source_names
        if targets[0] in names:
            raise UserError(
                f'The fusion\'s head and the source "{targets[0]}" would share a name; choose another config.name.'
            )
        new = [source for source in names if source not in from_store and not source_folder(workdir, source).exists()]
        kinds_by_name |= dict.fromkeys(new, ("heads",))
    stored = {
        kind: store.names(store_folder, kind) for kind in {kind for kinds in kinds_by_name.values() for kind in kinds}
    }
    for name, kinds in kinds_by_name.items():
        saved = [kind for kind in kinds if name in stored[kind]]
        if saved:
            raise UserError(
                f'The store {store_folder} already has "{name}" in {" and ".join(saved)}. Rename this run '
                "(--config.name=NAME, or the name of the source's task), choose another --store, or move "
                f"{'it' if len(saved) == 1 else 'them'} out of the store."
            )


def _check_fused(config: ExperimentConfig, trunk: Trunk, store_folder: str | Path, from_store: Sequence[str]) -> None:
    """Raises UserError if the adapters cannot be fused.

    This is also raised if a stored adapter is damaged or for a different trunk.
    """
    stored = load_adapters(store_folder, from_store, trunk)
    configs: dict[str, Adapter] = {
        name: stored[name][0] if name in stored else config.adapter for name in config.fused_names
    }
    check_fusible(configs, trunk.config.num_layers)
    check_kept(config.fusion, list(configs.values()), trunk.config.num_layers)
    check_subset(config.fusion, len(configs))
