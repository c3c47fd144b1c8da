"""Runs experiments, from a config to artifacts in a store.

They can be killed and resumed at any time.
"""

import dataclasses
import functools
import hashlib
import math
import platform
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import jax
from etils import epath

import afjax.errors
from afjax import store
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.from_dict import from_dict, to_dict
from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows
from afjax.display.terminal import print_line
from afjax.distributed.hosts import all_hosts_or_raise, check_same, check_shared, is_first_host
from afjax.distributed.notes import note
from afjax.distributed.sharding import make_mesh
from afjax.errors import UserError
from afjax.model.saving import save_models
from afjax.model.task_model import TaskModel
from afjax.storage.json_files import json_digest
from afjax.storage.paths import as_path, open_path
from afjax.storage.writing import csv_text, write_json, write_text
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
from afjax.train.inputs import shared_tokenizer
from afjax.train.loop import Training, run_alone
from afjax.train.multitask import train_multitask
from afjax.train.options import RunOptions
from afjax.train.record import adapter_input, has_checkpoint, trunk_inputs
from afjax.train.results import Result, read_results, results_of
from afjax.train.sequential import train_sequential
from afjax.train.shared import ROWS, TRUNKS, Shared
from afjax.train.single import PlannedRun, single_training
from afjax.train.workdir import (
    FORGETTING,
    RESULT,
    TARGET,
    check_inputs,
    check_workdir,
    claim_workdir,
    find_store,
    is_claimed,
    read_inputs,
    recorded_config,
    release_workdir,
    run_identifier,
    source_folder,
)
from afjax.trunk.pretrained import Trunk, load_trunk

Tasks = Mapping[TaskConfig, Mapping[str, AnyRows]]


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
    experiment = _Experiment(config, tasks, trunk, options, workdir, store_folder, run)
    results = []
    for source in config.sources:
        if source.task.name in from_store:
            results += _stored_source(source, workdir, store_folder)
        else:
            results += yield from experiment.train_source(source)
    return results + (yield from experiment.train_target())


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


def _stored_source(source: SourceConfig, workdir: epath.Path, store_folder: str | Path) -> list[Result]:
    """Returns the result of a source whose adapter is already in the store."""
    name = source.task.name
    earlier = read_results(source_folder(workdir, name))
    if earlier:
        return earlier
    if is_first_host():
        print_line(f"{name}: the store already has this adapter, which is used unchanged")
    manifest = store.read_manifest(store_folder, "adapters", name)
    # The adapter's main metric may differ from the config's, and an imported adapter has no scores.
    task = from_dict(TaskConfig, manifest.task, f'the task of adapter "{name}"') if manifest.task else source.task
    scores = {metric: math.nan if score is None else score for metric, score in manifest.metrics.items()}
    scores.setdefault(task.main_metric, math.nan)
    return [Result(name, "adapter (from the store)", name, scores, task.main_metric)]


@dataclasses.dataclass(frozen=True)
class _Experiment:
    """An experiment with its inputs, which have been loaded and checked.

    Attributes:
      config: The config, with all defaults filled in.
      tasks: The rows of each task.
      trunk: The trunk.
      options: The options of all runs. Targets get their name.
      workdir: The experiment's folder.
      store_folder: The store.
      run: The experiment's identifier in the store.
    """

    config: ExperimentConfig
    tasks: Tasks
    trunk: Trunk
    options: RunOptions
    workdir: epath.Path
    store_folder: epath.Path
    run: str

    def train_source(self, source: SourceConfig) -> Training[list[Result]]:
        """Trains a source's adapter and saves it."""
        folder = source_folder(self.workdir, source.task.name)
        method = Method(adapter=self.config.adapter, head=self.config.head)
        planned = PlannedRun(
            task=source.task,
            data=self.tasks[source.task],
            workdir=folder,
            method=method,
            config=source.train,
            options=self.options,
        )
        model = yield from single_training(self.trunk, planned)
        return self._save([model], results_of([model], "adapter"), folder)

    def train_target(self) -> Training[list[Result]]:
        """Trains the target and saves its artifacts.

        The multi-task and sequential recipes train all tasks. If the run has already finished, returns its stored
        results. If its artifacts or its trunk were deleted, writes them again from the last checkpoint.
        """
        config, folder = self.config, self.workdir / TARGET
        with all_hosts_or_raise():
            earlier, kinds = read_results(folder), target_kinds(config)
            is_stored = all(set(config.artifact_names).issubset(store.names(self.store_folder, kind)) for kind in kinds)
            lacks_trunk = config.trains_trunk and not (self.workdir / "trunk").exists()
            can_write_trunk = lacks_trunk and has_checkpoint(folder)
        if earlier and is_stored and not can_write_trunk:
            note(
                f"The run in {self.workdir} has already finished, so these are its stored results. To train again, "
                "choose another --workdir."
            )
            return earlier
        if config.recipe == "multitask":
            models, results = self._train_jointly(folder)
        elif config.recipe == "sequential":
            models, results = self._train_in_sequence(folder)
        else:
            model = yield from self._train_alone(folder)
            models = self._with_named_trunk([model])
            results = results_of(models, "fusion" if config.recipe == "fusion" else config.partition)
        return self._save(models, results, folder)

    def _train_alone(self, folder: epath.Path) -> Training[TaskModel]:
        """Trains the only target of the single and fusion recipes."""
        config, task = self.config, self.config.target
        method: Method | FusionMethod = config.method
        if config.recipe == "fusion":
            method = FusionMethod(
                adapters=config.fused_names, store=self.store_folder, fusion=config.fusion, head=config.head
            )
        options = self._options(config.artifact_name(task))
        planned = PlannedRun(
            task=task, data=self.tasks[task], workdir=folder, method=method, config=config.train, options=options
        )
        return single_training(self.trunk, planned)

    def _train_jointly(self, folder: epath.Path) -> tuple[list[TaskModel], list[Result]]:
        config, method, options = self.config, self.config.method, self._options(self.config.name)
        assert isinstance(method, MultitaskMethod)
        trained = train_multitask(
            self.trunk, config.tasks, self._data(), workdir=folder, method=method, config=config.train, options=options
        )
        models = self._with_named_trunk(list(trained.values()))
        return models, results_of(models, f"{config.partition}, multitask")

    def _train_in_sequence(self, folder: epath.Path) -> tuple[list[TaskModel], list[Result]]:
        config, options, tasks = self.config, self._options(self.config.name), self.config.tasks
        sequence = train_sequential(
            self.trunk, tasks, self._data(), workdir=folder, method=config.method, config=config.train, options=options
        )
        models = self._with_named_trunk(list(sequence.models.values()))
        results = [
            Result(model.model.head_name, f"after {last_task.name}", model.task.name, score, task.main_metric)
            for last_task, scores in zip(tasks, sequence.scores, strict=True)
            for model, task, score in zip(models, tasks, scores, strict=False)
        ]
        with all_hosts_or_raise():
            if is_first_host():
                write_forgetting(self.workdir / FORGETTING, tasks, sequence.scores)
        return models, results

    def _data(self) -> dict[str, Mapping[str, AnyRows]]:
        return {task.name: self.tasks[task] for task in self.config.tasks}

    def _options(self, name: str) -> RunOptions:
        return dataclasses.replace(self.options, name=name)

    def _with_named_trunk(self, models: list[TaskModel]) -> list[TaskModel]:
        """Names a trained trunk after its future folder, ``workdir/trunk``."""
        trunk = models[0].trunk
        if not trunk.trained:
            return models
        named = dataclasses.replace(trunk, name=as_path(str(self.workdir / "trunk")))
        return [dataclasses.replace(model, trunk=named) for model in models]

    def _save(self, models: Sequence[TaskModel], results: list[Result], folder: epath.Path) -> list[Result]:
        """Saves models, then their results, which mark the run as finished.

        A run killed while saving writes identical files when it is resumed.
        """
        with all_hosts_or_raise():
            if is_first_host():
                save_models(self.store_folder, models, run=self.run)
                write_json(folder / RESULT, [dataclasses.asdict(result) for result in results])
        return results


def write_forgetting(
    path: epath.Path, tasks: Sequence[TaskConfig], scores: Sequence[Sequence[Mapping[str, float]]]
) -> None:
    """Writes the forgetting curve as CSV.

    The file has one row per trained task and one column per evaluated task, with main dev metrics as values.
    """
    lines = [["after", *(f"{task.name} ({task.main_metric})" for task in tasks)]]
    for after, row in zip(tasks, scores, strict=True):
        cells = [f"{score[task.main_metric]:.4f}" for task, score in zip(tasks, row, strict=False)]
        lines.append([after.name, *cells, *[""] * (len(tasks) - len(cells))])
    write_text(path, csv_text(lines))
