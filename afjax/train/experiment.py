"""Whole experiments: from a config to artefacts in a store, resumable at any moment."""

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from afjax import store
from afjax.config import ExperimentConfig, SourceConfig, to_dict
from afjax.data.rows import Rows, load_task
from afjax.errors import UserError
from afjax.task_model import TaskModel
from afjax.train.recipes import train_fusion, train_single
from afjax.trees import flatten
from afjax.trunk import Trunk, load_trunk, save_trunk


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
    config: ExperimentConfig, *, workdir: Path, store_folder: Path | None = None, cache_dir: Path | None = None
) -> list[Result]:
    """Runs an experiment, or goes on with it where it stopped.

    Args:
      config: The experiment.
      workdir: Its own folder.
      store_folder: Where artefacts go and a fusion's adapters come from; None: ``workdir/store``.
      cache_dir: Where tokenised rows are kept; None: nowhere.

    Returns:
      A result for every source (fusion recipe) and one for the target.

    Raises:
      UserError: Everything that the caller can put right; what was trained until then stays.
    """
    store_folder = store_folder or workdir / "store"
    tasks = [source.task for source in config.sources] + [config.task]
    data = {task.name: load_task(task) for task in reversed(tasks)}
    trunk = load_trunk(config.trunk)
    claim_workdir(workdir, config)
    _check_names(config, store_folder, workdir)
    results = (
        [
            _source(source, config, trunk, data[source.task.name], workdir, store_folder, cache_dir)
            for source in config.sources
        ]
        if config.recipe == "fusion"
        else []
    )
    folder = workdir / "target"
    shared: dict[str, Any] = {
        "workdir": folder,
        "name": config.artefact_name,
        "head": config.head,
        "config": config.train,
        "seed": config.seed,
        "scan_layers": config.scan_layers,
        "cache_dir": cache_dir,
    }
    if config.recipe == "fusion":
        names = config.fused or [source.task.name for source in config.sources]
        task_model = train_fusion(
            trunk, config.task, data[config.task.name], names, store_folder=store_folder, fusion=config.fusion, **shared
        )
    else:
        task_model = train_single(
            trunk,
            config.task,
            data[config.task.name],
            partition_name=config.partition,
            top_k=config.top_k,
            adapter=config.adapter,
            **shared,
        )
    if task_model.trunk is not trunk:
        task_model = dataclasses.replace(
            task_model, trunk=dataclasses.replace(task_model.trunk, name=str(workdir / "trunk"))
        )
        save_trunk(workdir / "trunk", task_model.trunk)
    results.append(
        _keep(task_model, store_folder, folder, config.recipe if config.recipe == "fusion" else config.partition)
    )
    return results


def _source(
    source: SourceConfig,
    config: ExperimentConfig,
    trunk: Trunk,
    data: Mapping[str, Rows],
    workdir: Path,
    store_folder: Path,
    cache_dir: Path | None,
) -> Result:
    """The source's adapter: that of the store, or else a new one."""
    name, folder = source.task.name, workdir / "sources" / source.task.name
    if name in store.names(store_folder, "adapters") and not _unfinished(folder):
        manifest = store.load(store_folder, "adapters", name, trunk_sha256=trunk.sha256).manifest
        print(f'The store has the adapter "{name}"; it is used as it is.', file=sys.stderr)
        return Result(name, "adapter (from the store)", name, manifest.metrics, source.task.main_metric)
    task_model = train_single(
        trunk,
        source.task,
        data,
        workdir=folder,
        adapter=config.adapter,
        head=config.head,
        config=source.train,
        seed=config.seed,
        scan_layers=config.scan_layers,
        cache_dir=cache_dir,
    )
    return _keep(task_model, store_folder, folder, "adapter")


def _keep(task_model: TaskModel, store_folder: Path, folder: Path, kind: str) -> Result:
    """Saves what was trained. A run that was killed while saving saves again: its bits are the same."""
    task_model.save(store_folder, overwrite=True)
    task = task_model.task
    result = Result(task_model.model.head_name, kind, task.name, dict(task_model.metrics), task.main_metric)
    _write_json(folder / "result.json", dataclasses.asdict(result))
    return result


def _unfinished(folder: Path) -> bool:
    """Whether a run was begun there and not brought to its end."""
    return folder.exists() and not (folder / "result.json").exists()


def _check_names(config: ExperimentConfig, store_folder: Path, workdir: Path) -> None:
    """Refuses to begin a run whose artefacts' names the store already has from elsewhere."""
    name = config.artefact_name
    if (workdir / "target").exists():
        return
    kinds = ["heads", "fusion"] if config.recipe == "fusion" else ["heads"]
    if config.recipe == "single" and config.partition == "adapter":
        kinds.append("adapters")
    taken = [kind for kind in kinds if name in store.names(store_folder, kind)]
    if taken:
        raise UserError(
            f'The store {store_folder} already has "{name}" in {" and ".join(taken)}; give this run another name '
            "(--config.name=NAME) or another --store."
        )


def claim_workdir(workdir: Path, config: ExperimentConfig) -> None:
    """Writes the config into a new workdir, or checks that the one there is the same.

    Raises:
      UserError: The folder holds a run with another config (the difference is shown), or cannot be written.
    """
    path, given = workdir / "config.json", json.loads(json.dumps(to_dict(config)))
    if path.exists():
        try:
            found = json.loads(path.read_text())
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"{path} is damaged ({error}); take another --workdir.") from None
        there, here = _settings(found), _settings(given)
        differences = [
            f"{key}: {there.get(key, 'not set')!r} there, {here.get(key, 'not set')!r} given"
            for key in sorted(there.keys() | here.keys())
            if there.get(key) != here.get(key)
        ]
        if differences:
            raise UserError(
                f"The workdir {workdir} holds a run with another config ({'; '.join(differences)}); take another "
                "--workdir, or give the same config to go on."
            )
        return
    try:
        workdir.mkdir(parents=True, exist_ok=True)
        _write_json(path, given)
    except OSError as error:
        raise UserError(
            f"The workdir {workdir} cannot be written ({error.strerror or error}); give another --workdir."
        ) from None


def _settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The config's settings by dotted path, lists of mappings included."""

    def as_tree(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: as_tree(item) for key, item in value.items()}
        if isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            return {str(index): as_tree(item) for index, item in enumerate(value)}
        return value

    return {path.replace("/", "."): value for path, value in flatten(as_tree(values)).items()}


def _write_json(path: Path, value: Any) -> None:
    """Writes a JSON file whole or not at all."""
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(part, path)
