"""Runs experiments, from a config to artifacts in a store.

They can be killed and resumed at any time.
"""

import functools
import hashlib
import platform
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import jax
from etils import epath

import afjax.errors
from afjax import store
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows
from afjax.distributed.hosts import all_hosts_or_raise, check_same, check_shared, is_first_host
from afjax.distributed.notes import note
from afjax.distributed.sharding import make_mesh
from afjax.errors import UserError
from afjax.storage.json_files import json_digest
from afjax.storage.paths import open_path
from afjax.tasks.load import load_task
from afjax.train.checks import (
    check_batches,
    check_experiment,
    check_place,
    check_stored,
    sources_with_rows,
    stored_sources,
    target_kinds,
    why_rows_are_needed,
)
from afjax.train.defaults import choose_defaults
from afjax.train.experiment_runs import ExperimentRuns, Tasks
from afjax.train.inputs import shared_tokenizer
from afjax.train.loop import Training, run_alone
from afjax.train.options import RunOptions
from afjax.train.record import adapter_input, trunk_inputs
from afjax.train.results import Result
from afjax.train.shared import ROWS, TRUNKS, Shared
from afjax.train.workdir import (
    check_inputs,
    check_workdir,
    claim_workdir,
    find_store,
    is_claimed,
    read_inputs,
    recorded_config,
    release_workdir,
    run_identifier,
)
from afjax.trunk.pretrained import Trunk, load_trunk


def run_experiment(
    config: ExperimentConfig,
    *,
    workdir: epath.Path,
    store_folder: str | Path | None = None,
    cache_dir: Path | None = None,
) -> list[Result]:
    """Runs or resumes an experiment. All hosts must pass the same arguments.

    Args:
      config: The experiment.
      workdir: The experiment's folder, local or ``gs://``. It must be accessible from all hosts.
      store_folder: The store where artifacts are saved and a fusion's adapters are found, local or ``gs://``. Defaults
        to the store that the run began with, or to ``workdir/store`` for a new run.
      cache_dir: Folder for cached tokenized rows. None disables the cache.

    Returns:
      One result per source (fusion recipe) and one per task. After each task, the sequential recipe evaluates all tasks
      trained so far, and returns one result per evaluated task.

    Raises:
      UserError: Any error that the caller can fix. If the data, trunk, store and settings are incompatible, nothing is
        written. After a later error, everything trained so far is kept.
      PreemptionError: A host received SIGTERM during training.
    """
    return run_alone(experiment_training(config, workdir=workdir, store_folder=store_folder, cache_dir=cache_dir))


def experiment_training(
    config: ExperimentConfig,
    *,
    workdir: epath.Path,
    store_folder: str | Path | None = None,
    cache_dir: Path | None = None,
    shared: Shared | None = None,
) -> Training[list[Result]]:
    """Runs an experiment whose steps are computed by the caller.

    See :func:`run_experiment` for the arguments, and :mod:`afjax.train.loop` for the steps.

    Experiments with the same ``shared`` also load each trunk only once. The multi-task and sequential recipes compute
    their own steps.
    """
    # The runs within an experiment share programs too: a fusion's sources with equal heads compile once.
    workdir, shared = open_path(workdir), shared or Shared()
    with all_hosts_or_raise():
        mesh = make_mesh(config.mesh)
        check_batches(config, mesh)
        options = RunOptions(
            seed=config.seed,
            mesh=mesh,
            scan_layers=config.scan_layers,
            remat=config.remat,
            cache_dir=cache_dir,
            shared=shared,
        )
        check_place(workdir, "workdir")
        trunk_key = (config.trunk, config.trunk_dtype)
        read_trunk = functools.partial(load_trunk, config.trunk, dtype=config.trunk_dtype)
        trunk = shared.once("trunk", trunk_key, read_trunk, capacity=TRUNKS)
        config = choose_defaults(config, lambda: trunk.pooling, recorded_config(workdir))
        check_workdir(workdir, config)
        store_folder = find_store(workdir, store_folder)
        check_place(store_folder, "store")
        if run_identifier(workdir) and not open_path(store_folder).exists():
            note(f"The run in {workdir} began with a store, but {store_folder} does not exist, so it is created.")
        from_store = stored_sources(config, workdir, store_folder)
    check_same({"the adapters that the store has": ", ".join(from_store)})
    with all_hosts_or_raise():
        recorded = read_inputs(workdir) if is_claimed(workdir) else None
        check_stored(config, from_store, recorded, workdir, store_folder)
        read = sources_with_rows(config, from_store, recorded)
        tasks = _load_rows(config, read, store_folder, shared)
        tokenizer = shared_tokenizer(trunk, shared)
        check_experiment(config, tasks, trunk, tokenizer, workdir, store_folder, from_store)
        inputs = _inputs(config, tasks, trunk, [source.task for source in read], store_folder)
        check_inputs(workdir, recorded, inputs)
    check_same({"the config": json_digest(to_dict(config)), "the code": code_digest(), **inputs})
    check_shared(workdir, "workdir")
    check_shared(store_folder, "store")
    with all_hosts_or_raise():
        if is_first_host():
            _claim(config, workdir, inputs, store_folder, from_store)
    with all_hosts_or_raise():
        run = run_identifier(workdir)
    runs = ExperimentRuns(config, tasks, trunk, options, workdir, store_folder, run)
    results = []
    for source in config.sources:
        if source.task.name in from_store:
            results += runs.stored_source(source)
        else:
            results += yield from runs.train_source(source)
    return results + (yield from runs.train_target())


def _claim(
    config: ExperimentConfig,
    workdir: epath.Path,
    inputs: Mapping[str, str],
    store_folder: epath.Path,
    from_store: Sequence[str],
) -> None:
    """Claims the workdir, and reserves the names of the run's artifacts in the store.

    Raises:
      UserError: Another run has saved or reserved one of the names. If the workdir was new, its claim is undone.
    """
    names = [(kind, name) for name in config.artifact_names for kind in target_kinds(config)]
    trained = [source.task.name for source in config.sources if source.task.name not in from_store]
    names += [(kind, name) for name in trained for kind in ("adapters", "heads")]
    is_new = claim_workdir(workdir, config, inputs, store_folder)
    try:
        store.reserve(store_folder, names, run=run_identifier(workdir), workdir=workdir)
    except UserError:
        if is_new:
            release_workdir(workdir)
        raise


@functools.cache
def code_digest() -> str:
    """Returns a digest of this package's source, JAX's version and Python's version.

    The built-in configs are excluded, because only an installed package has them. Experiments' configs are compared
    separately.
    """
    digest = hashlib.sha256(f"jax {jax.__version__}, {platform.python_version()}".encode())
    package = Path(afjax.errors.__file__).parent
    for path in sorted(path for path in package.rglob("*.py") if path.parent != package / "configs"):
        digest.update(f"{path.relative_to(package)}:".encode() + path.read_bytes())
    return digest.hexdigest()


def _load_rows(
    config: ExperimentConfig, sources: Sequence[SourceConfig], store_folder: str | Path, shared: Shared
) -> Tasks:
    """Loads the rows of the target tasks and of some sources. Experiments with the same ``shared`` load them once."""
    targets, tasks = config.target_tasks, dict[TaskConfig, Mapping[str, AnyRows]]()
    for task in targets:
        load = functools.partial(load_task, task)
        tasks[task] = shared.once("rows", task, load, capacity=max(ROWS, len(targets)))
    for source in sources:
        if source.task not in tasks:
            load = functools.partial(_source_rows, source, store_folder)
            tasks[source.task] = shared.once("source rows", source.task, load, capacity=len(sources))
    return tasks


def _source_rows(source: SourceConfig, store_folder: str | Path) -> dict[str, AnyRows]:
    """Loads a source's rows. Error messages also explain why they are needed."""
    try:
        return load_task(source.task)
    except UserError as error:
        raise UserError(f"{error}{why_rows_are_needed(source.task.name, store_folder)}") from error


def _inputs(
    config: ExperimentConfig, tasks: Tasks, trunk: Trunk, sources: Collection[TaskConfig], store_folder: str | Path
) -> dict[str, str]:
    """Computes digests of an experiment's inputs, except its config.

    Args:
      config: The experiment.
      tasks: The rows of each task.
      trunk: The trunk.
      sources: The sources whose rows are used. For all others, the adapter in the store is used.
      store_folder: The store.
    """
    inputs = trunk_inputs(trunk)
    roles = [("task", task) for task in config.target_tasks]
    for role, task in [*roles, *(("source", task) for task in sources)]:
        for split in ("train", "dev"):
            inputs[f"{role} {task.name}'s {split} rows"] = tasks[task][split].digest()
    for source in config.sources:
        if source.task not in sources:
            manifest = store.read_manifest(store_folder, "adapters", source.task.name)
            inputs[adapter_input(source.task.name)] = manifest.digest
    return inputs
