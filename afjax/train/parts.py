"""What every recipe is put together from: starts of adapters and heads, tokenised splits, the loop, what it leaves."""

import dataclasses
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from afjax.adapters.kinds import init_adapter
from afjax.config.adapters import Adapter
from afjax.config.from_dict import shown, to_dict
from afjax.config.methods import FusionMethod, Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import padding_share
from afjax.data.notices import data_notices
from afjax.data.splits import AnyRows
from afjax.data.tokenise import TokenisedRows
from afjax.display.terminal import print_line
from afjax.distributed.host_memory import physical_memory
from afjax.distributed.hosts import is_first_host, together
from afjax.distributed.sharding import to_host
from afjax.errors import UserError
from afjax.model import partition
from afjax.model.task_model import TaskModel
from afjax.storage.json_files import read_json
from afjax.storage.writing import write_json
from afjax.tasks.load import check_forms, rows_by_split
from afjax.tasks.prepare import prepare
from afjax.train.loop import Run, Trained, train
from afjax.train.options import RunOptions
from afjax.train.record import TRAINED, trunk_inputs
from afjax.train.single_run import map_layers
from afjax.trees import Tree, tree_digest
from afjax.trunk.layers import stack_layers
from afjax.trunk.pretrained import Trunk


def check_arguments(
    trunk: Trunk,
    task: TaskConfig,
    data: Mapping[str, Any],
    method: Method | FusionMethod,
    config: TrainConfig,
    options: RunOptions,
) -> dict[str, AnyRows]:
    """Checks the arguments of a recipe for one of its tasks.

    Returns:
      The rows of each split, see :func:`afjax.tasks.load.rows_by_split`.

    Raises:
      UserError: An argument has a wrong type or cannot be used.
    """
    given: tuple[tuple[str, Any, tuple[type, ...]], ...] = (
        ("trunk", trunk, (Trunk,)),
        ("method", method, (Method, FusionMethod)),
        ("config", config, (TrainConfig,)),
        ("options", options, (RunOptions,)),
    )
    for what, value, kinds in given:
        if not isinstance(value, kinds):
            raise UserError(f"The {what} is {shown(value)}; give a {' or '.join(kind.__name__ for kind in kinds)}.")
    if not isinstance(task, TaskConfig):
        raise UserError(f"The task is {shown(task)}; give a TaskConfig, such as TaskConfig(name=...).")
    splits = rows_by_split(task, data)
    for split in ("train", "dev"):
        if not len(splits[split]):
            raise UserError(f"The task {task.name} has no {split} rows; give at least one.")
    names, dev_names = splits["train"].label_names, splits["dev"].label_names
    # Labels are indices into these names, so other names would score other classes.
    if names and dev_names and names != dev_names:
        raise UserError(
            f"The task {task.name} has the labels {shown(list(names))} in train and {shown(list(dev_names))} in dev. "
            "Give both splits the same label_names."
        )
    return splits


def data_of(data: Any, task: TaskConfig) -> Any:
    """One task's splits, from the splits of several tasks; empty if the task is missing.

    Raises:
      UserError: ``data`` is not a mapping.
    """
    if not isinstance(data, Mapping):
        raise UserError(
            f'The data is of the type {type(data).__name__}; give {{"{task.name}": {{"train": rows}}, ...}}.'
        )
    return data.get(task.name, {})


def check_adapter_size(config: Adapter, trunk: Trunk) -> None:
    """Raises UserError if an adapter does not fit the trunk, or not this machine's memory."""
    try:
        shapes = jax.eval_shape(lambda: init_adapter(jax.random.key(0), config, trunk.config))
        size = sum(4 * math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    except (OverflowError, TypeError):  # Shapes beyond what JAX can express.
        size = sys.maxsize
    if size > physical_memory():
        raise UserError(
            f"One adapter of these settings takes {size / 1e9:,.0f} GB, and this machine has "
            f"{physical_memory() / 1e9:,.0f} GB of memory. Give adapter.size or adapter.reduction_factor a bottleneck "
            f"of at most a few times the trunk's hidden size, {trunk.config.hidden_size}."
        )


def run_loop(
    run: Run,
    config: TrainConfig,
    *,
    inputs: Mapping[str, str],
    num_steps: int,
    eval_every: int,
    folder: epath.Path,
    title: str,
) -> Trained:
    """:func:`afjax.train.loop.train`, with a sentence where the folder cannot be written."""
    try:
        return train(run, config, inputs=inputs, num_steps=num_steps, eval_every=eval_every, folder=folder, title=title)
    except OSError as error:
        raise UserError(
            f"The run's folder {folder} cannot be written ({error.strerror or error}); make room there or give "
            "another workdir, then start the same run again."
        ) from error


def record_trained(workdir: epath.Path, trunk: Trunk, models: Sequence[TaskModel], kind: str) -> None:
    """Writes ``trained.json`` into a finished run's folder, so that ``afjax report`` can read the run.

    Args:
      workdir: The run's folder.
      trunk: The trunk that the run began with.
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
    with together():
        if is_first_host():
            path = workdir / TRAINED
            if read_json(path, advice="delete it", constants=True) != record:
                try:
                    write_json(path, record)
                except OSError as error:
                    raise UserError(
                        f"The run's folder {workdir} cannot be written ({error.strerror or error}). Make room there, "
                        "then start the same run again."
                    ) from error


def stored_form(trained: Tree) -> Tree:
    """A trained tree as it is stored: NumPy arrays, layers stacked."""
    return jax.tree.map(np.asarray, map_layers(to_host(trained), stack_layers))


def with_params(trunk: Trunk, params: Tree, workdir: epath.Path) -> Trunk:
    """The trunk that a run has trained."""
    joined = partition.join_layers(params)
    name, digest = str(workdir / "trunk"), tree_digest(joined)
    return dataclasses.replace(trunk, name=name, params=joined, sha256=digest, trained=True)


def run_inputs(trunk: Trunk, data: Mapping[str, Mapping[str, AnyRows]], seed: int) -> dict[str, str]:
    """Describes what a run reads.

    Args:
      trunk: The trunk that it begins with.
      data: ``{task: {split: rows}}``, of which train and dev are read.
      seed: The seed of all randomness.

    Returns:
      ``{what: digest or value}``.
    """
    splits = ("train", "dev")
    rows = {f"{task}'s {split} rows": data[task][split].digest() for task in data for split in splits}
    return {**trunk_inputs(trunk), "the seed": str(seed), **rows}


def task_settings(task: TaskConfig) -> dict[str, Any]:
    """The settings of a task that a run's result depends on. Rows are compared by digest, wherever they come from."""
    return {
        "name": task.name,
        "kind": task.kind,
        "metric": task.metric,
        "scale": task.scale,
        "span": to_dict(task.span),
    }


def tokenise_splits(
    trunk: Trunk, task: TaskConfig, data: Mapping[str, AnyRows], max_length: int, cache_dir: Path | None
) -> dict[str, TokenisedRows]:
    """Tokenises train and dev, after a check of their form; prints what may be wrong with them."""
    check_forms(task, {split: data[split] for split in ("train", "dev")})
    tell(data_notices(task, {split: data[split] for split in ("train", "dev")}))
    tokenizer = trunk.tokenizer()
    return {
        split: prepare(
            data[split], tokenizer, task, max_length=max_length, training=split == "train", cache_dir=cache_dir
        )
        for split in ("train", "dev")
    }


def tell(notices: Sequence[str]) -> None:
    """Prints notices to stderr, on the first host."""
    if is_first_host():
        for notice in filter(None, notices):
            print(f"Note: {notice}", file=sys.stderr)


def tell_run(
    name: str,
    trunk: Trunk,
    mesh: Mesh,
    *,
    trained: int,
    total: int,
    dev_rows: int,
    num_steps: int,
    eval_every: int,
) -> None:
    """Prints the summary of a run before it trains.

    Args:
      name: The run's name.
      trunk: The trunk that it begins with.
      mesh: The devices.
      trained: Number of trained parameters.
      total: Number of all parameters.
      dev_rows: Rows of the dev split, or of all dev splits.
      num_steps: Steps of the whole run.
      eval_every: Steps between evaluations.
    """
    if not is_first_host():
        return
    devices = f"{mesh.size} device{'s' * (mesh.size > 1)} ({mesh.devices.flat[0].device_kind})"
    dtype = "" if trunk.dtype == "float32" else f" in {trunk.dtype}"
    print_line(
        f"{name}: trunk {trunk.name}{dtype} on {devices}; {trained:,} of {total:,} parameters are trained "
        f"({trained / total:.2%})"
    )
    print_line(
        f"{name}: {num_steps} steps, {dev_rows} dev rows evaluated every {eval_every} step{'s' * (eval_every > 1)}"
    )


def tell_padding(name: str, train: TokenisedRows, lengths: Sequence[int], batch_size: int) -> None:
    """Prints how well the padded lengths fit the rows."""
    if not is_first_host():
        return
    padding = padding_share(train, batch_size=batch_size, lengths=lengths)
    cut = f"{train.truncated / len(train):.1%} of the rows are cut, " if train.truncated else ""
    print_line(
        f"{name}: {len(train)} train rows in batches of {batch_size}; {cut}{padding:.1%} of the tokens are padding "
        f"(lengths {', '.join(map(str, lengths))})"
    )
