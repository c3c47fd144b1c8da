"""Turns trained parameters into a run's stored results."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np
from etils import epath

from afjax.distributed.hosts import all_hosts_or_raise, is_first_host
from afjax.distributed.sharding import to_host
from afjax.errors import UserError
from afjax.model import partition
from afjax.model.task_model import TaskModel
from afjax.storage.json_files import read_json
from afjax.storage.writing import write_json
from afjax.train.record import TRAINED
from afjax.train.single_run import map_layers
from afjax.trees import Tree, tree_digest
from afjax.trunk.layers import stack_layers
from afjax.trunk.pretrained import Trunk


def record_trained(workdir: epath.Path, trunk: Trunk, models: Sequence[TaskModel], kind: str) -> None:
    """Writes ``trained.json`` into a finished run's folder, so that ``afjax report`` can read the run.

    Args:
      workdir: The run's folder.
      trunk: The initial trunk.
      models: The trained models.
      kind: The method, such as the partition.

    Raises:
      UserError: The folder cannot be written.
    """
    results = [
        {
            "name": model.model.head_name,
            "kind": kind,
            "task": model.task.name,
            "metrics": dict(model.metrics),
            "main_metric": model.task.main_metric,
        }
        for model in models
    ]
    record = {"trunk": trunk.name, "results": results}
    with all_hosts_or_raise():
        if is_first_host():
            path = workdir / TRAINED
            if read_json(path, advice="delete it", constants=True) != record:
                try:
                    write_json(path, record)
                except OSError as error:
                    raise UserError(
                        f"The run's folder {workdir} cannot be written ({error.strerror or error}). Free up space "
                        "there, then start the run again."
                    ) from error


def stored_form(trained: Tree) -> Tree:
    """Converts a trained tree to its stored form: NumPy arrays with stacked layers."""
    return jax.tree.map(np.asarray, map_layers(to_host(trained), stack_layers))


def with_params(trunk: Trunk, params: Tree, workdir: epath.Path) -> Trunk:
    """Returns a copy of the trunk with the parameters trained by a run."""
    joined = partition.join_layers(params)
    name, digest = str(workdir / "trunk"), tree_digest(joined)
    return dataclasses.replace(trunk, name=name, params=joined, sha256=digest, trained=True)
