"""Trains the sources and the target of an experiment, and saves their artifacts."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from etils import epath

from afjax import store
from afjax.config.experiment import ExperimentConfig, SourceConfig
from afjax.config.from_dict import from_dict
from afjax.config.methods import FusionMethod, Method, MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows
from afjax.display.terminal import print_line
from afjax.distributed.hosts import all_hosts_or_raise, is_first_host
from afjax.distributed.notes import note
from afjax.model.saving import save_models
from afjax.model.task_model import TaskModel
from afjax.storage.paths import as_path
from afjax.storage.writing import csv_text, write_json, write_text
from afjax.train.checks import target_kinds
from afjax.train.loop import Training
from afjax.train.multitask import train_multitask
from afjax.train.options import RunOptions
from afjax.train.record import has_checkpoint
from afjax.train.results import Result, read_results, results_of
from afjax.train.sequential import train_sequential
from afjax.train.single import PlannedRun, single_training
from afjax.train.workdir import FORGETTING, RESULT, TARGET, source_folder
from afjax.trunk.pretrained import Trunk

Tasks = Mapping[TaskConfig, Mapping[str, AnyRows]]


@dataclasses.dataclass(frozen=True)
class ExperimentRuns:
    """The runs of an experiment, whose inputs have been loaded and checked.

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

    def stored_source(self, source: SourceConfig) -> list[Result]:
        """Returns the result of a source whose adapter is already in the store."""
        name = source.task.name
        earlier = read_results(source_folder(self.workdir, name))
        if earlier:
            return earlier
        if is_first_host():
            print_line(f"{name}: the store already has this adapter, which is used unchanged")
        manifest = store.read_manifest(self.store_folder, "adapters", name)
        # The adapter's main metric may differ from the config's, and an imported adapter has no scores.
        task = from_dict(TaskConfig, manifest.task, f'the task of adapter "{name}"') if manifest.task else source.task
        scores = {metric: math.nan if score is None else score for metric, score in manifest.metrics.items()}
        scores.setdefault(task.main_metric, math.nan)
        return [Result(name, "adapter (from the store)", name, scores, task.main_metric)]

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
