"""Reads run records from workdirs, sweep folders and stores.

A record combines the files of a run's workdir (``config.json``, ``inputs.json``, ``result.json``) with its artifacts'
manifests. :func:`method_of` and :func:`trained_in_trunk` derive the method and the number of trained trunk parameters.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from afjax import store
from afjax.analysis.methods import architecture_name, method_of
from afjax.analysis.parameters import trained_in_trunk, trunk_architecture, trunk_size
from afjax.analysis.run_records import Collection, RunRecord, UnfinishedTask, adapter_of, sampler_of
from afjax.analysis.unfinished import failed_names
from afjax.analysis.workdirs import find_folders
from afjax.config.adapters import Adapter
from afjax.config.experiment import ExperimentConfig
from afjax.config.from_dict import from_dict
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.storage.json_files import read_existing_json
from afjax.storage.paths import AnyPath, check_readable, is_remote, open_path
from afjax.store import Manifest
from afjax.train.checks import target_kinds
from afjax.train.record import TRAINED
from afjax.train.results import Result, read_results
from afjax.train.workdir import CONFIG, INPUTS, RESULT, TARGET, find_store, source_folder


def collect(folders: Sequence[AnyPath]) -> Collection:
    """Reads the runs in workdirs, sweeps and stores.

    Args:
      folders: Workdirs, sweep folders, stores, or folders that contain any of these; local or ``gs://``.

    Returns:
      The finished runs with a dev score and, in separate fields, all other runs.

    Raises:
      UserError: A folder does not exist, no run is finished, a file is damaged, none of the runs on a task has a dev
        score, or the runs started from different pretrained trunks.
    """
    found: dict[str, dict[str, epath.Path]] = {"workdir": {}, "python": {}, "sweep": {}, "store": {}}
    for given in folders:
        folder = open_path(given)
        if is_remote(folder):
            check_readable(folder, "folder")
        if not folder.is_dir():
            raise UserError(f"There is no folder {given}; set --runs to workdirs, sweep folders or stores.")
        for kind, path in find_folders(folder):
            found[kind][_identity(path)] = path
    stores = _Stores(list(found["store"].values()))
    from_python = tuple(folder for folder in found["python"].values() if _is_from_python(folder))
    # Failed runs with a config are workdirs.
    failed = tuple(
        sweep / name
        for sweep in found["sweep"].values()
        for name in failed_names(sweep)
        if not (sweep / name / CONFIG).exists()
    )
    read = [_read_workdir(workdir, stores) for workdir in found["workdir"].values()]
    records = [record for collection in read for record in collection.records]
    records += stores.unclaimed()
    unfinished = tuple(
        dataclasses.replace(run, method=f"{run.method}-mt") if run.trunk in stores.trained else run
        for collection in read
        for run in collection.unfinished
    )
    given = ", ".join(str(folder) for folder in folders)
    if not records:
        notes = [f"{len(unfinished)} started but not finished"] if unfinished else []
        notes += [f"{len(failed)} failed"] if failed else []
        notes += [f"{len(from_python)} trained from Python, without a config"] if from_python else []
        note = f" ({', '.join(notes)})" if notes else ""
        raise UserError(f"There is no finished run in {given}{note}; pass the workdirs of finished afjax train runs.")
    scored = [record for record in records if record.main_metric in record.metrics]
    for task in sorted({record.task for record in records} - {record.task for record in scored}):
        example = next(record.folder for record in records if record.task == task)
        raise UserError(
            f'No run on "{task}" has a dev score (for example {example}); leave these runs out, or retrain them.'
        )
    scoreless = tuple(record for record in records if record not in scored)
    records = _with_origins(scored, stores.trained)
    return Collection(tuple(records), unfinished, scoreless, from_python, failed)


# Finding runs and stores


def _identity(folder: epath.Path) -> str:
    return str(folder) if is_remote(folder) else str(Path(folder).resolve())


def _is_from_python(folder: epath.Path) -> bool:
    # afjax train writes this file too, to subfolders of its workdir.
    of_command = any((parent / CONFIG).exists() for parent in (folder.parent, folder.parent.parent))
    return (folder / TRAINED).exists() and not of_command


class _Stores:
    """The stores to search. Tracks the artifacts that belong to runs in workdirs.

    Attributes:
      trained: ``{trunk digest: record}`` for runs that trained a trunk on several tasks.
    """

    def __init__(self, stores: Sequence[epath.Path]) -> None:
        self._stores = stores
        self._claimed: set[tuple[str, str, str]] = set()
        self.trained: dict[str, RunRecord] = {}

    def find(
        self, own_store: epath.Path, kinds: Iterable[str], name: str, seed: int, metrics: Mapping[str, Any]
    ) -> tuple[str, list[Manifest]]:
        """Finds a run's artifacts.

        ``own_store`` is searched first. If it is not among the given stores, its other artifacts are ignored.

        Returns:
          The store and the manifests of the artifacts, both empty if no store has them.
        """
        first_match: tuple[str, list[Manifest]] = ("", [])
        matching = [folder for folder in self._stores if _identity(folder) == _identity(own_store)]
        other_stores = [folder for folder in self._stores if folder not in matching]
        for folder in [*(matching or _readable(own_store)), *other_stores]:
            if all(name in store.names(folder, kind) for kind in kinds):
                manifests = [store.read_manifest(folder, kind, name) for kind in kinds]
                if all(manifest.seed == seed and manifest.metrics == metrics for manifest in manifests):
                    # A store may have been copied. Mark every copy, so that none counts as a separate run.
                    self._claimed.update((str(folder), kind, name) for kind in kinds)
                    first_match = first_match if first_match[0] else (str(folder), manifests)
        return first_match

    def adapters(self, folder: str, manifest: Manifest) -> dict[str, int]:
        """Counts the parameters of a fusion's stored adapters: ``{digest: number}``."""
        names = store.names(folder, "adapters")
        manifests = [
            store.read_manifest(folder, "adapters", member["name"])
            for member in manifest.adapters
            if member["name"] in names
        ]
        return {adapter.digest: adapter.num_parameters for adapter in manifests}

    def unclaimed(self) -> list[RunRecord]:
        """Returns records of adapters and fusions that no run in a workdir has saved.

        Pruned fusions are skipped: they were not trained, and would count as repeated runs.
        """
        records = []
        for folder in self._stores:
            for kind in ("adapters", "fusion"):
                for name in store.names(folder, kind):
                    manifest = store.read_manifest(folder, kind, name)
                    is_pruned = manifest.config.get("kept") is not None
                    if (str(folder), kind, name) not in self._claimed and manifest.task and not is_pruned:
                        records.append(self._record(folder, manifest))
        return records

    def _record(self, folder: epath.Path, manifest: Manifest) -> RunRecord:
        task: TaskConfig = from_dict(TaskConfig, manifest.task, "task")
        adapter = from_dict(Adapter, manifest.config, "adapter") if manifest.kind == "adapters" else None
        has_head = manifest.name in store.names(folder, "heads")
        head = store.read_manifest(folder, "heads", manifest.name).num_parameters if has_head else 0
        trunk = manifest.trunk_with("sha256", "name")
        return RunRecord(
            task_config=task,
            method="fusion" if adapter is None else architecture_name(adapter),
            seed=manifest.seed,
            metrics=_finite(manifest.metrics),
            adapter=adapter,
            adapters={} if adapter is not None else self.adapters(str(folder), manifest),
            own_parameters=manifest.num_parameters + head,
            trunk=trunk["sha256"],
            trunk_name=trunk["name"],
            trunk_parameters=trunk_size(trunk["name"], None),
            folder=folder,
            store=str(folder),
        )


def _readable(folder: epath.Path) -> list[epath.Path]:
    """Returns ``[folder]``, or an empty list if this store cannot be read.

    An unreadable store is not an error: a run's scores are in its workdir, so only its parameter counts stay unknown.
    """
    try:
        store.names(folder, "heads")
    except UserError:
        return []
    return [folder]


# Reading a workdir

_ADVICE = "leave this workdir out, or retrain it"


def _read_workdir(workdir: epath.Path, stores: _Stores) -> Collection:
    """Reads a workdir's runs: the target run on each task, and a fusion's sources."""
    config = _read_config(workdir / CONFIG)
    inputs = read_existing_json(workdir / INPUTS, advice=_ADVICE, constants=True)
    if not isinstance(inputs.get("the trunk"), str):
        raise UserError(f'{workdir / INPUTS} is damaged (it has no entry "the trunk"); leave {workdir} out.')
    runs = [(config, workdir / TARGET)]
    for source in config.sources:
        folder = source_folder(workdir, source.task.name)
        # A source without a folder was loaded from the store.
        runs += [(_source_config(config, source.task.name), folder)] if folder.exists() else []
    records, unfinished = [], []
    for run_config, folder in runs:
        tasks = run_config.target_tasks
        if not (folder / RESULT).exists():
            run_fields = {
                "method": method_of(run_config),
                "seed": run_config.seed,
                "adapter": adapter_of(run_config),
                "sampler": sampler_of(run_config),
                "folder": workdir,
                "trunk": inputs["the trunk"],
            }
            unfinished += [UnfinishedTask(task=task.name, **run_fields) for task in tasks]
            continue
        # In sequential training, the last result on a task counts.
        results = {result.task: result for result in read_results(folder)}
        for task in tasks:
            if task.name not in results:
                raise UserError(f'{folder / RESULT} has no result on "{task.name}"; leave {workdir} out.')
            records.append(_record(run_config, task, results[task.name], workdir, inputs, stores))
    return Collection(tuple(records), tuple(unfinished))


def _read_config(path: epath.Path) -> ExperimentConfig:
    try:
        values = read_existing_json(path, advice=_ADVICE, constants=True)
        return from_dict(ExperimentConfig, values, str(path))
    except UserError as error:
        # Errors about conflicting settings do not name the file.
        message = str(error) if str(path) in str(error) else f"{path}: {error}"
        raise UserError(message) from None


def _source_config(config: ExperimentConfig, name: str) -> ExperimentConfig:
    """Builds the config of an experiment that trains only one source of a fusion."""
    source = next(source for source in config.sources if source.task.name == name)
    changes: dict[str, Any] = {"recipe": "single", "task": source.task, "train": source.train}
    return dataclasses.replace(config, **changes, sources=(), fused=(), name="", partition="adapter", top_k=0)


def _record(
    config: ExperimentConfig,
    task: TaskConfig,
    result: Result,
    workdir: epath.Path,
    inputs: Mapping[str, str],
    stores: _Stores,
) -> RunRecord:
    kinds = target_kinds(config)
    store_folder, manifests = stores.find(
        find_store(workdir), kinds, config.artifact_name(task), config.seed, result.metrics
    )
    architecture = trunk_architecture(config.trunk, workdir / "trunk" if config.trains_trunk else None)
    several_tasks, trained = config.recipe in ("multitask", "sequential"), 0
    if config.trains_trunk and architecture is not None:
        trained = trained_in_trunk(architecture, config.partition, config.top_k, config.head)
    own_parameters = sum(manifest.num_parameters for manifest in manifests) + (0 if several_tasks else trained)
    is_counted = manifests and (architecture is not None or not config.trains_trunk)
    record = RunRecord(
        task_config=task,
        method=method_of(config),
        seed=config.seed,
        metrics=_finite(result.metrics),
        config=config,
        adapter=adapter_of(config),
        adapters=stores.adapters(store_folder, manifests[0]) if config.recipe == "fusion" and manifests else {},
        own_parameters=own_parameters if is_counted else None,
        shared_parameters=trained if several_tasks else 0,
        inputs=inputs,
        trunk=inputs["the trunk"],
        trunk_name=config.trunk,
        trunk_parameters=trunk_size(config.trunk, architecture),
        folder=workdir,
        store=store_folder,
    )
    if several_tasks and config.trains_trunk and manifests:
        stores.trained[manifests[0].trunk["sha256"]] = record
    return record


def _with_origins(records: Sequence[RunRecord], trained: Mapping[str, RunRecord]) -> list[RunRecord]:
    """Traces each trained trunk back to the pretrained trunk that it started from.

    The record of a run on such a trunk gets the pretrained trunk's name, digest and size, the other run's settings as
    ``origin``, and the suffix ``-mt`` or the prefix ``mt-`` in the method's name.

    Raises:
      UserError: The runs started from different pretrained trunks.
    """
    with_origins = []
    for record in records:
        chain = [record]
        while chain[-1].trunk in trained and trained[chain[-1].trunk] not in chain:
            chain.append(trained[chain[-1].trunk])
        origin = chain[-1]
        if origin is not record:
            settings = ""
            for ancestor in reversed(chain[1:]):
                settings = dataclasses.replace(ancestor, origin=settings).settings
            # Without a workdir, adapters on such a trunk are assumed to have been trained jointly with it.
            assumed_joint = record.config is None and not record.method.startswith("fusion")
            method = f"mt-{record.method}" if assumed_joint else f"{record.method}-mt"
            record = dataclasses.replace(
                record,
                method=method,
                trunk=origin.trunk,
                trunk_name=origin.trunk_name,
                trunk_parameters=origin.trunk_parameters,
                origin=settings,
            )
        with_origins.append(record)
    records_by_trunk = {record.trunk: record for record in with_origins}
    if len(records_by_trunk) > 1:
        details = "; ".join(
            f"{record.folder}: {record.trunk_name} ({sha[:12]})" for sha, record in records_by_trunk.items()
        )
        raise UserError(
            f"The runs started from different trunks ({details}). Pass runs on one trunk; for runs on a jointly "
            "trained trunk, also pass the workdir and store of the run that trained the trunk."
        )
    return with_origins


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Selects the finite scores for which higher is better, because tables choose the setting with the best score."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value) and name not in ("step", "mse")
    }
