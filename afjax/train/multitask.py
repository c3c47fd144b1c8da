"""The multi-task recipe: one trunk, a head and (where asked) an adapter a task, one task a step."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.from_dict import to_dict
from afjax.config.heads import HeadConfig
from afjax.config.methods import Partition, check_partition
from afjax.config.tasks import TaskConfig
from afjax.config.training import MeshConfig, SamplingConfig, TrainConfig
from afjax.config.values import Remat
from afjax.data.notices import no_better_than_majority
from afjax.data.splits import AnyRows
from afjax.distributed.hosts import together
from afjax.distributed.sharding import check_batch, make_mesh
from afjax.errors import UserError
from afjax.model import partition
from afjax.model.heads import READS
from afjax.model.model import Model
from afjax.model.task_model import TaskModel
from afjax.storage.paths import open_path
from afjax.tasks import metrics
from afjax.tasks.class_loss import check_class_settings, make_class_loss
from afjax.train.multitask_run import DRAWN, MultitaskRun
from afjax.train.multitask_step import trim_task
from afjax.train.parts import (
    check_arguments,
    data_of,
    new_adapter,
    new_head,
    record_trained,
    run_inputs,
    run_loop,
    stored_form,
    task_settings,
    tell,
    tell_padding,
    tell_run,
    tokenise_splits,
    with_params,
)
from afjax.train.record import RunSpec, check_run, claim_run
from afjax.trees import Tree, count, merge
from afjax.trunk.pretrained import Trunk, check_length


def train_multitask(
    trunk: Trunk,
    tasks: Sequence[TaskConfig],
    data: Mapping[str, Mapping[str, Any]],
    *,
    workdir: str | Path,
    names: Mapping[str, str] | None = None,
    partition_name: Partition = "adapter+trunk",
    top_k: int = 0,
    adapter: Adapter = AdapterConfig(),
    head: HeadConfig = HeadConfig(),
    config: TrainConfig = TrainConfig(),
    sampling: SamplingConfig = SamplingConfig(),
    seed: int = 0,
    scan_layers: bool = False,
    remat: Remat = "none",
    mesh: Mesh | None = None,
    cache_dir: Path | None = None,
    overwrite: bool = False,
) -> dict[str, TaskModel]:
    """Trains one partition on several tasks (Stickland & Murray 2019; AdapterFusion's MT-A).

    Each task has its own head, and its own adapter where the partition has adapters; all share the trunk. The
    parameters with the best mean of the tasks' main dev metrics are kept.

    Args:
      trunk: The pretrained encoder. It is not changed; partitions that train it give a new one.
      tasks: At least one, of distinct names.
      data: Each task's splits by its name, each as in ``train_single``.
      workdir: The run's folder, used as in ``train_single``.
      names: Of each task's adapter and head, by the task's name; None: the tasks' own.
      partition_name: What is trained; the heads always are.
      top_k: Number of layers of the ``top_k`` partition.
      adapter, head: Architectures, the same for all tasks.
      config: Optimizer, schedule, batches. ``epochs`` counts those of ``sampling``.
      sampling: Which task a step trains.
      seed: All randomness follows from it.
      scan_layers: One compiled loop over the layers.
      remat: What the backward pass computes again; see ``ExperimentConfig``.
      mesh: The devices; None: all, each with its own rows of a batch.
      cache_dir: Where tokenised rows are kept; None: nowhere.
      overwrite: Whether to discard the run that the workdir holds, and to train from the beginning.

    Returns:
      ``{task's name: its model}``; their trunks are one.

    Raises:
      UserError: Data, settings and trunk do not fit, or the workdir holds another run.
    """
    workdir = open_path(workdir)
    mesh = make_mesh(MeshConfig()) if mesh is None else mesh
    check_batch(config.batch_size, mesh)
    check_tasks([task.name for task in tasks])
    splits_of: dict[str, dict[str, AnyRows]] = {}
    for task in tasks:
        name = (names or {}).get(task.name, "")
        splits_of[task.name] = check_arguments(trunk, task, data_of(data, task), config, head, seed, name)
    check_partition(partition_name, adapter)
    config = config.with_rate(partition_name)
    check_length(config.max_length, trunk)
    for task in tasks:
        metrics.check_metric(task.main_metric, task.kind, len(splits_of[task.name]["train"].label_names))
    check_class_settings(config, {task: splits_of[task.name]["train"].label_names for task in tasks})
    names = names or {task.name: task.name for task in tasks}
    has_adapter = partition_name in ("adapter", "adapter+trunk")
    spec = RunSpec(
        settings={
            "recipe": "multitask",
            "partition": partition_name,
            "top_k": top_k,
            "names": dict(names),
            "tasks": [task_settings(task) for task in tasks],
            **({"adapter": to_dict(adapter)} if has_adapter else {}),
            "head": to_dict(head),
            "train": to_dict(config),
            "sampling": to_dict(sampling),
            "seed": seed,
            "trunk_dtype": trunk.dtype,
            "scan_layers": scan_layers,
            "remat": remat,
        },
        inputs=run_inputs(trunk, {task.name: splits_of[task.name] for task in tasks}, seed),
    )
    with together():
        lengths = None if overwrite else check_run(workdir, spec)
    key = jax.random.key(seed)
    own: list[Tree] = []
    for task in tasks:
        name = names[task.name]
        tree: Tree = {"heads": {DRAWN: new_head(key, name, head, task.kind, splits_of[task.name]["train"], trunk)}}
        if has_adapter:
            tree["adapters"] = {DRAWN: new_adapter(key, name, adapter, trunk)}
        own.append(tree)
    own_shapes = [jax.eval_shape(lambda tree: tree, tree) for tree in own]
    trunk_params = partition.split_layers(trunk.params, top_k) if partition_name == "top_k" else trunk.params
    num_steps = config.num_steps(sampling.steps_per_epoch)
    trains = [splits_of[task.name]["train"] for task in tasks]
    class_losses = [make_class_loss(config, rows.label_names, rows.labels) for rows in trains]
    splits = [tokenise_splits(trunk, task, splits_of[task.name], config.max_length, cache_dir) for task in tasks]
    run = MultitaskRun(
        dataclasses.replace(_model(trunk, DRAWN, adapter if has_adapter else None, head, scan_layers), remat=remat),
        trunk_params,
        own,
        partition.preset(partition_name, head),
        splits,
        tasks,
        config,
        sampling,
        num_steps=num_steps,
        seed=seed,
        pad_id=trunk.config.pad_id,
        trunk_dtype=trunk.dtype,
        mesh=mesh,
        lengths=lengths,
        class_losses=tuple(filter(None, class_losses)),
    )
    eval_every = config.eval_every or sampling.steps_per_epoch
    own_size = sum(count(tree) for tree in own)
    rules = partition.preset(partition_name, head)
    shared_tree = {"trunk": trunk_params, **own[0]}
    tell_run(
        "multitask",
        trunk,
        mesh,
        trained=count(partition.split(shared_tree, partition.label(shared_tree, rules))[0].get("trunk", {})) + own_size,
        total=count(trunk_params) + own_size,
        dev_rows=sum(len(of_task["dev"]) for of_task in splits),
        num_steps=num_steps,
        eval_every=eval_every,
    )
    del own, shared_tree
    for task, of_task in zip(tasks, splits, strict=True):
        tell_padding(names[task.name], of_task["train"], run.lengths.train, config.batch_size)
    claim_run(workdir, spec, run.lengths, overwrite=overwrite)
    result = run_loop(
        run,
        config,
        inputs=spec.inputs,
        num_steps=num_steps,
        eval_every=eval_every,
        folder=workdir,
        title="multitask",
    )
    began_with = trunk
    shared = stored_form(result.trained["shared"])
    if "trunk" in shared:
        # What the partition leaves frozen of the trunk stays as it was.
        rules = partition.preset(partition_name, head)
        whole = {"trunk": trunk_params, **own_shapes[0]}
        _, frozen = partition.split(whole, partition.label(whole, rules))
        trunk = with_params(trunk, merge(shared, {"trunk": frozen.get("trunk", {})})["trunk"], workdir)
    models = {}
    own_trained = stored_form(result.trained["own"])
    for number, task in enumerate(tasks):
        name = names[task.name]
        own_metrics = _own_metrics(result.metrics, task.name)
        tell([no_better_than_majority(name, splits_of[task.name]["dev"], own_metrics)])
        tree = trim_task(jax.tree.map(lambda leaf, i=number: leaf[i], own_trained), own_shapes[number])
        models[task.name] = TaskModel(
            trunk=trunk,
            model=dataclasses.replace(
                _model(trunk, name, adapter if has_adapter else None, head, scan_layers), reads=READS[task.kind]
            ),
            params={
                "adapters": {name: tree["adapters"][DRAWN]} if has_adapter else {},
                "fusion": {},
                "heads": {name: tree["heads"][DRAWN]},
            },
            task=task,
            labels=splits_of[task.name]["train"].label_names,
            metrics=own_metrics,
            seed=seed,
            max_length=config.max_length,
            text_columns=splits_of[task.name]["train"].text_columns,
        )
    record_trained(workdir, began_with, list(models.values()), f"{partition_name}, multitask")
    return models


def check_tasks(names: Sequence[str]) -> None:
    """Raises UserError unless there are tasks, of distinct names."""
    if not names or len(set(names)) != len(names):
        raise UserError(f"The tasks are {', '.join(names) or '(none)'}; give at least one, each with its own name.")


def _model(trunk: Trunk, name: str, adapter: Adapter | None, head: HeadConfig, scan_layers: bool) -> Model:
    adapters = ((name, adapter),) if adapter is not None else ()
    return Model(
        trunk=trunk.config,
        head_name=name,
        head=head,
        adapters=adapters,
        dtype=trunk.dtype,
        scan_layers=scan_layers,
    )


def _own_metrics(scores: Mapping[str, float], task: str) -> dict[str, float]:
    """A task's own of a run's dev metrics, and the step they are from."""
    own = {name.removeprefix(f"{task}/"): value for name, value in scores.items() if name.startswith(f"{task}/")}
    return {**own, "step": scores["step"]}
