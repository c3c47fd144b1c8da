"""The results of runs: their files, and trained parameters in stored form."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from etils import epath

from afjax.config.tasks import TaskConfig
from afjax.data.splits import AnyRows
from afjax.distributed.hosts import all_hosts_or_raise, is_first_host
from afjax.distributed.sharding import to_host
from afjax.errors import UserError
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.storage.json_files import read_json
from afjax.storage.paths import as_path
from afjax.storage.writing import write_json
from afjax.train.record import TRAINED, folder_error
from afjax.train.run_params import map_layers
from afjax.train.workdir import RESULT
from afjax.trees import Tree, tree_digest
from afjax.trunk.hugging_face import without_unused
from afjax.trunk.layers import join_layers, stack_layers
from afjax.trunk.pretrained import Trunk


@dataclasses.dataclass(frozen=True)
class Result:
    """One row of an experiment's results.

    Attributes:
      name: The artifact's name.
      kind: The trained method, such as ``fusion``, or ``adapter (from the store)``.
      task: The task's name.
      metrics: Dev metrics of the saved parameters.
      main_metric: The metric used for early stopping.
    """

    name: str
    kind: str
    task: str
    metrics: Mapping[str, float]
    main_metric: str


def results_of(models: Sequence[TaskModel], kind: str) -> list[Result]:
    """Returns the dev results of trained models. ``kind`` is the method, such as the partition."""
    return [
        Result(model.model.head_name, kind, model.task.name, dict(model.metrics), model.task.main_metric)
        for model in models
    ]


def record_trained(workdir: epath.Path, trunk: Trunk, models: Sequence[TaskModel], kind: str) -> None:
    """Writes ``trained.json`` into a finished run's folder, for ``afjax report``.

    Args:
      workdir: The run's folder.
      trunk: The initial trunk.
      models: The trained models.
      kind: The method, such as the partition.

    Raises:
      UserError: The folder cannot be written.
    """
    record = {"trunk": trunk.name, "results": [dataclasses.asdict(result) for result in results_of(models, kind)]}
    with all_hosts_or_raise():
        if is_first_host():
            path = workdir / TRAINED
            if read_json(path, advice="delete it", constants=True) != record:
                try:
                    write_json(path, record)
                except OSError as error:
                    raise folder_error(workdir, error) from error


def stored_form(trained: Tree) -> Tree:
    """Converts a trained tree to its stored form: NumPy arrays with stacked layers."""
    return jax.tree.map(np.asarray, map_layers(to_host(trained), stack_layers))


def with_params(trunk: Trunk, params: Tree, workdir: epath.Path) -> Trunk:
    """Returns a copy of the trunk with the parameters trained by a run."""
    joined = without_unused(join_layers(params), trunk.config)
    name, digest = as_path(str(workdir / "trunk")), tree_digest(joined)
    return dataclasses.replace(trunk, name=name, params=joined, sha256=digest, trained=True)


def trained_model(
    trunk: Trunk,
    model: Model,
    params: Mapping[str, Tree],
    task: TaskConfig,
    splits: Mapping[str, AnyRows],
    metrics: Mapping[str, float],
    *,
    seed: int,
    max_length: int,
) -> TaskModel:
    """Returns a task's trained model, with a tuned threshold if the task asks for it.

    Args:
      trunk: The trunk after training.
      model: The task's model.
      params: The task's parameters in stored form, by root. Only adapters, fusion and heads are used.
      task: The task.
      splits: Its rows.
      metrics: Its dev metrics.
      seed, max_length: The run's settings.
    """
    train = splits["train"]
    trained = TaskModel(
        trunk=trunk,
        model=model,
        params={root: params.get(root, {}) for root in ("adapters", "fusion", "heads")},
        task=task,
        labels=train.label_names,
        metrics=dict(metrics),
        seed=seed,
        max_length=max_length,
        text_columns=train.text_columns,
    )
    if not task.multi_label.tune_threshold:
        return trained
    # A trunk that predicts keeps its parameters on the devices. Other runs use this trunk, so tune with a copy.
    copied = dataclasses.replace(trained, trunk=dataclasses.replace(trunk))
    return dataclasses.replace(copied.tune_threshold(splits["dev"]), trunk=trunk)


def read_results(folder: epath.Path) -> list[Result]:
    """Reads the results of a finished run. An unfinished run has none.

    Raises:
      UserError: The file is damaged.
    """
    path = folder / RESULT
    advice = "delete it, then run the same command to write it again"
    # A score is NaN if the adapter comes from a store that does not record it.
    return parse_results(read_json(path, expected=list, advice=advice, constants=True) or [], path, advice)


def parse_results(entries: Sequence[Any], path: epath.Path, advice: str) -> list[Result]:
    """Checks and parses the entries of a results file.

    Args:
      entries: One mapping per result.
      path: The file, for error messages.
      advice: How to fix a damaged file, for error messages.

    Raises:
      UserError: The file is damaged.
    """
    results = []
    for values in entries:
        if not isinstance(values, dict) or values.keys() != {field.name for field in dataclasses.fields(Result)}:
            raise UserError(f"{path} is damaged (it does not hold an experiment's results); {advice}.")
        texts = [values[name] for name in ("name", "kind", "task", "main_metric")]
        scores = values["metrics"]
        if not (all(isinstance(text, str) for text in texts) and isinstance(scores, dict)):
            raise UserError(f"{path} is damaged (a result has a value of the wrong type); {advice}.")
        for metric in (values["main_metric"], *scores):
            if not isinstance(scores.get(metric), int | float) or isinstance(scores[metric], bool):
                raise UserError(f'{path} is damaged (its metric "{metric}" is not a number); {advice}.')
        results.append(Result(**values))
    return results
