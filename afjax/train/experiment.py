"""Whole experiments: from a config to artefacts in a store, resumable at any moment."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax import store
from afjax.config import ExperimentConfig, SourceConfig, TaskConfig
from afjax.data.rows import Rows, load_task
from afjax.task_model import TaskModel
from afjax.train.checks import check_experiment, fused_names, stored_sources, target_kinds
from afjax.train.recipes import train_fusion, train_single
from afjax.train.workdir import RESULT, TARGET, check_inputs, check_workdir, claim_workdir, source_folder, write_json
from afjax.trunk import Trunk, load_trunk, save_trunk

Tasks = Mapping[TaskConfig, Mapping[str, Rows]]


@dataclasses.dataclass(frozen=True)
class Result:
    """One line of an experiment's table.

    Attributes:
      name: Of the artefact.
      kind: What was trained, or ``adapter (from the store)``.
      task: The task's name.
      metrics: Dev metrics of the kept parameters.
      main_metric: Which of them early stopping followed.
    """

    name: str
    kind: str
    task: str
    metrics: Mapping[str, float]
    main_metric: str


def run_experiment(
    config: ExperimentConfig, *, workdir: Path, store_folder: str | Path | None = None, cache_dir: Path | None = None
) -> list[Result]:
    """Runs an experiment, or goes on with it where it stopped.

    Args:
      config: The experiment.
      workdir: Its own folder.
      store_folder: Where artefacts go and a fusion's adapters come from, local or ``gs://``; None: ``workdir/store``.
      cache_dir: Where tokenised rows are kept; None: nowhere.

    Returns:
      A result for every source (fusion recipe) and one for the target.

    Raises:
      UserError: Everything that the caller can put right. Where data, trunk, store and settings do not fit each other
        nothing is written; what was trained until a later error stays.
    """
    store_folder = store_folder or workdir / "store"
    sources = config.sources if config.recipe == "fusion" else ()
    check_workdir(workdir, config)
    tasks = {task: load_task(task) for task in dict.fromkeys([config.task, *(source.task for source in sources)])}
    trunk = load_trunk(config.trunk, dtype=config.trunk_dtype)
    check_experiment(config, tasks, trunk, workdir, store_folder)
    inputs = _inputs(config, tasks, trunk)
    check_inputs(workdir, inputs)
    claim_workdir(workdir, config, inputs)
    from_store = stored_sources(config, workdir, store_folder)
    results = []
    for source in sources:
        if source.task.name in from_store:
            results.append(_stored_source(source, workdir, store_folder))
        else:
            results.append(_trained_source(source, config, tasks, trunk, workdir, store_folder, cache_dir))
    results.append(_target(config, tasks, trunk, workdir, store_folder, cache_dir))
    return results


def _inputs(config: ExperimentConfig, tasks: Tasks, trunk: Trunk) -> dict[str, str]:
    """Digests of all that an experiment reads but the config does not hold."""
    inputs = {"the trunk": trunk.sha256}
    roles = [("task", config.task)] + [("source", source.task) for source in config.sources if source.task in tasks]
    for role, task in roles:
        for split in ("train", "dev"):
            inputs[f"{role} {task.name}'s {split} rows"] = tasks[task][split].digest()
    return inputs


def _stored_source(source: SourceConfig, workdir: Path, store_folder: str | Path) -> Result:
    """The result of a source whose adapter the store has."""
    name = source.task.name
    earlier = _result(source_folder(workdir, name))
    if earlier is not None:
        return earlier
    print(f'The store has the adapter "{name}"; it is used as it is.', file=sys.stderr)
    metrics = store.read_manifest(store_folder, "adapters", name).metrics
    return Result(name, "adapter (from the store)", name, metrics, source.task.main_metric)


def _trained_source(
    source: SourceConfig,
    config: ExperimentConfig,
    tasks: Tasks,
    trunk: Trunk,
    workdir: Path,
    store_folder: str | Path,
    cache_dir: Path | None,
) -> Result:
    folder = source_folder(workdir, source.task.name)
    task_model = train_single(
        trunk,
        source.task,
        tasks[source.task],
        workdir=folder,
        adapter=config.adapter,
        head=config.head,
        config=source.train,
        seed=config.seed,
        scan_layers=config.scan_layers,
        cache_dir=cache_dir,
    )
    return _keep(task_model, store_folder, folder, "adapter")


def _target(
    config: ExperimentConfig,
    tasks: Tasks,
    trunk: Trunk,
    workdir: Path,
    store_folder: str | Path,
    cache_dir: Path | None,
) -> Result:
    folder, fusing = workdir / TARGET, config.recipe == "fusion"
    earlier = _result(folder)
    if earlier is not None and all(earlier.name in store.names(store_folder, kind) for kind in target_kinds(config)):
        return earlier
    shared: dict[str, Any] = {
        "workdir": folder,
        "name": config.artefact_name,
        "head": config.head,
        "config": config.train,
        "seed": config.seed,
        "scan_layers": config.scan_layers,
        "cache_dir": cache_dir,
    }
    data = tasks[config.task]
    if fusing:
        task_model = train_fusion(
            trunk, config.task, data, fused_names(config), store_folder=store_folder, fusion=config.fusion, **shared
        )
    else:
        task_model = train_single(
            trunk,
            config.task,
            data,
            partition_name=config.partition,
            top_k=config.top_k,
            adapter=config.adapter,
            **shared,
        )
    if task_model.trunk is not trunk:
        trained = dataclasses.replace(task_model.trunk, name=str(workdir / "trunk"))
        save_trunk(workdir / "trunk", trained)
        task_model = dataclasses.replace(task_model, trunk=trained)
    return _keep(task_model, store_folder, folder, "fusion" if fusing else config.partition)


def _keep(task_model: TaskModel, store_folder: str | Path, folder: Path, kind: str) -> Result:
    """Saves what was trained. A run that was killed while saving saves again: its bits are the same."""
    task_model.save(store_folder, overwrite=True)
    task = task_model.task
    result = Result(task_model.model.head_name, kind, task.name, dict(task_model.metrics), task.main_metric)
    write_json(folder / RESULT, dataclasses.asdict(result))
    return result


def _result(folder: Path) -> Result | None:
    """What a run that was brought to its end there gave."""
    path = folder / RESULT
    return Result(**json.loads(path.read_text())) if path.exists() else None
