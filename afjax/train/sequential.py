"""The sequential recipe: trains tasks one after another.

Each task starts from the previous task's trunk.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from etils import epath

from afjax.config.methods import Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.splits import AnyRows
from afjax.display.terminal import print_line
from afjax.distributed.hosts import all_hosts_or_raise, is_first_host
from afjax.errors import UserError
from afjax.model.task_model import TaskModel
from afjax.storage.json_files import read_json
from afjax.storage.paths import open_path
from afjax.storage.writing import write_json
from afjax.train.arguments import check_several, check_types
from afjax.train.inputs import task_settings
from afjax.train.options import RunOptions
from afjax.train.record import discard_run, has_run, plain
from afjax.train.single import train_single
from afjax.trees import tree_digest
from afjax.trunk.pretrained import Trunk

SCORES = "scores.json"


@dataclasses.dataclass(frozen=True)
class TaskSequence:
    """The result of training tasks one after another.

    Attributes:
      models: ``{task name: model after the last task}``. Each model combines the task's own head and adapter with the
        final trunk, and has the dev metrics of this combination.
      scores: ``scores[i][j]`` holds the dev metrics of task j after training on task i, for j ≤ i.
    """

    models: dict[str, TaskModel]
    scores: list[list[dict[str, float]]]

    def __repr__(self) -> str:
        return f"<TaskSequence: {', '.join(self.models)}>"


def train_sequential(
    trunk: Trunk,
    tasks: Iterable[TaskConfig],
    data: Mapping[str, Mapping[str, Any]],
    *,
    workdir: str | Path,
    method: Method = Method(partition="full"),
    config: TrainConfig = TrainConfig(),
    options: RunOptions = RunOptions(),
) -> TaskSequence:
    """Trains one partition on several tasks in order, and measures forgetting.

    After each task, all tasks so far are evaluated. A task keeps the head (and adapter) from its own training, while
    later tasks change the trunk.

    Args:
      trunk: The pretrained encoder. It is not changed.
      tasks: The tasks in training order, with distinct names.
      data: ``{task name: splits}``, with splits as in :func:`afjax.train_single`.
      workdir: The parent folder of the runs. Each task has a subfolder, the ``workdir`` of its single-task run.
      method, config, options: As in :func:`afjax.train_single`; the same for every task.

    Returns:
      :class:`~afjax.train.sequential.TaskSequence`: the models after the last task, and the dev metrics of all tasks so
      far after each task.

    Raises:
      UserError: The data, settings and trunk are incompatible, or the workdir holds a different run.

    Example:
      >>> from afjax import TaskConfig, TrainConfig, load_task, load_trunk, train_sequential
      >>> tasks = [TaskConfig(name=name, source=f"builtin:{name}") for name in ("entail", "paraphrase")]
      >>> data = {task.name: load_task(task) for task in tasks}
      >>> config = TrainConfig(epochs=2, max_length=32)
      >>> trunk = load_trunk("minilm")  # doctest: +SKIP
      >>> sequence = train_sequential(trunk, tasks, data, workdir="runs/sequence", config=config)  # doctest: +SKIP
      >>> forgotten = sequence.scores[0][0]["accuracy"] - sequence.scores[1][0]["accuracy"]  # doctest: +SKIP
    """
    check_types(trunk, method, Method, config, options)
    rows = check_several(tasks, data, config)
    names = {task: options.name_of(task.name) for task in rows}
    dev_rows = {task.name: splits["dev"] for task, splits in rows.items()}
    folders = [open_path(workdir) / f"{number}-{task.name}" for number, task in enumerate(rows, start=1)]
    with all_hosts_or_raise():
        others = _other_runs(open_path(workdir), folders)
        if others and not options.overwrite:
            raise UserError(
                f"The workdir {workdir} holds the run {others[0].name} of a sequence with other tasks; this run is "
                f"{folders[_position(others[0]) - 1].name}. Choose another workdir, or overwrite the runs."
            )
    models: dict[str, TaskModel] = {}
    scores: list[list[dict[str, float]]] = []
    for folder, (task, splits) in zip(folders, rows.items(), strict=True):
        models[task.name] = train_single(
            trunk,
            task,
            splits,
            workdir=folder,
            method=method,
            config=_own_weights(config, splits["train"].label_names),
            options=dataclasses.replace(options, name=names[task]),
        )
        with all_hosts_or_raise():
            # All settings have been checked now.
            for other in others if is_first_host() else ():
                discard_run(other)
        others = []
        trunk = models[task.name].trunk
        models = {name: dataclasses.replace(model, trunk=trunk) for name, model in models.items()}
        # Evaluated models and their trunk keep their parameters on the devices. Evaluate copies, which are dropped
        # before the next task is trained.
        copied = dataclasses.replace(trunk)
        copies = {name: dataclasses.replace(model, trunk=copied) for name, model in models.items()}
        scores.append(_scores(folder / SCORES, copies, dev_rows, config.batch_size))
        del copied, copies
    last = dict(zip(models, scores[-1], strict=True))
    return TaskSequence(
        {name: dataclasses.replace(model, metrics=last[name]) for name, model in models.items()}, scores
    )


def _other_runs(workdir: epath.Path, folders: Sequence[epath.Path]) -> list[epath.Path]:
    """Lists the runs in a workdir that have a position of a sequence but another task.

    Args:
      workdir: The sequence's folder.
      folders: The folders of the sequence's runs, ``POSITION-TASK``.
    """
    entries = sorted(workdir.iterdir()) if workdir.is_dir() else []
    others = [entry for entry in entries if 1 <= _position(entry) <= len(folders) and entry not in folders]
    return [entry for entry in others if has_run(entry)]


def _position(folder: epath.Path) -> int:
    """Returns a run's position in its sequence, or 0 if the folder does not have the name of a run."""
    number, dash, _ = folder.name.partition("-")
    return int(number) if dash and number.isdecimal() else 0


def _own_weights(config: TrainConfig, label_names: Sequence[str]) -> TrainConfig:
    """Removes the class weights of other tasks' labels from the config."""
    if not isinstance(config.class_weights, Mapping):
        return config
    class_weights = {label: weight for label, weight in config.class_weights.items() if label in label_names}
    return dataclasses.replace(config, class_weights=class_weights)


def _scores(
    path: epath.Path, models: Mapping[str, TaskModel], dev_rows: Mapping[str, AnyRows], batch_size: int
) -> list[dict[str, float]]:
    """Evaluates every model on its dev rows.

    The metrics are written to a file, with digests of everything that they depend on. A resumed run reads them if
    nothing changed, and evaluates the models again otherwise.
    """
    inputs = {name: _inputs(model, dev_rows[name]) for name, model in models.items()}
    with all_hosts_or_raise():
        # Earlier versions wrote NaN for the correlation of constant predictions.
        advice = f"delete {path} to evaluate the models again"
        stored = read_json(path, expected=None, advice=advice, constants=True)
    # Earlier versions wrote a list of metrics, without inputs.
    if isinstance(stored, dict) and stored.get("inputs") == inputs and _are_scores(stored.get("scores"), models):
        return stored["scores"]
    scores = [model.evaluate(dev_rows[name], batch_size=batch_size) for name, model in models.items()]
    with all_hosts_or_raise():
        if is_first_host():
            numbers = []
            for model, model_scores in zip(models.values(), scores, strict=True):
                metric = model.task.main_metric
                numbers.append(f"{model.task.name} {metric} {model_scores[metric]:.4f}")
            print_line(f"after {list(models)[-1]}: dev {', '.join(numbers)}")
            write_json(path, {"inputs": inputs, "scores": scores})
    return scores


def _inputs(model: TaskModel, rows: AnyRows) -> dict[str, Any]:
    """Returns digests of a model and of its dev rows, and the settings that affect its metrics."""
    return {
        "trunk": model.trunk.sha256,
        "params": tree_digest(model.params),
        "dev_rows": rows.digest(),
        "task": plain(task_settings(model.task)),
        "max_length": model.max_length,
    }


def _are_scores(value: Any, models: Mapping[str, TaskModel]) -> bool:
    """Whether a value from a file holds the metrics of every model."""
    if not isinstance(value, list) or len(value) != len(models):
        return False
    return all(
        isinstance(metrics, dict)
        and model.task.main_metric in metrics
        and all(type(score) in (int, float) for score in metrics.values())
        for metrics, model in zip(value, models.values(), strict=True)
    )
