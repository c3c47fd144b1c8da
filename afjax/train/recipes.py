"""The recipes of one task: one partition, and a fusion of stored adapters."""

import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from etils import epath
from jax.sharding import Mesh

from afjax.config.adapters import Adapter, AdapterConfig
from afjax.config.from_dict import shown, to_dict
from afjax.config.fusion import FusionConfig
from afjax.config.heads import HeadConfig
from afjax.config.methods import Partition, check_partition
from afjax.config.tasks import TaskConfig
from afjax.config.training import MeshConfig, TrainConfig
from afjax.config.values import Remat
from afjax.data.notices import no_better_than_majority
from afjax.data.splits import AnyRows
from afjax.distributed.hosts import together
from afjax.distributed.sharding import check_batch, make_mesh
from afjax.errors import UserError
from afjax.fusion.factored import check_subset, init_fusion
from afjax.model import partition
from afjax.model.heads import READS
from afjax.model.model import Model
from afjax.model.task_model import TaskModel, load_adapters
from afjax.storage.paths import open_path
from afjax.tasks import metrics
from afjax.tasks.class_loss import check_class_settings, make_class_loss
from afjax.train.parts import (
    check_arguments,
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
from afjax.train.record import RunSpec, adapter_input, check_run, claim_run
from afjax.train.single_run import SingleRun
from afjax.trees import Tree, count, merge, named_key, tree_digest
from afjax.trunk.pretrained import Trunk, check_length


def train_single(
    trunk: Trunk,
    task: TaskConfig,
    data: Mapping[str, Any],
    *,
    workdir: str | Path,
    name: str = "",
    partition_name: Partition = "adapter",
    top_k: int = 0,
    adapter: Adapter = AdapterConfig(),
    head: HeadConfig = HeadConfig(),
    config: TrainConfig = TrainConfig(),
    seed: int = 0,
    scan_layers: bool = False,
    remat: Remat = "none",
    mesh: Mesh | None = None,
    cache_dir: Path | None = None,
    overwrite: bool = False,
) -> TaskModel:
    """Trains one adapter and its head, or another partition, on one task.

    Args:
      trunk: The pretrained encoder. It is not changed; partitions that train it give a new one.
      task: Name, kind and metric.
      data: ``train`` and ``dev`` rows: of ``load_task`` or ``rows_from_lists``, or tables (a DataFrame, or a dictionary
        of columns) with the columns that the task names. Without ``dev``, some of the train rows become dev rows, see
        ``TaskConfig.dev_share``.
      workdir: The run's folder. If it holds a run with the same settings and inputs, an unfinished run is resumed, and
        the result of a finished one is returned. A run with other settings or inputs is refused.
      name: Of the adapter and the head; empty: the task's.
      partition_name: What is trained; the head always is.
      top_k: Number of layers of the ``top_k`` partition.
      adapter, head, config: Architectures and the run's settings.
      seed: All randomness follows from it.
      scan_layers: One compiled loop over the layers.
      remat: What the backward pass computes again; see ``ExperimentConfig``.
      mesh: The devices; None: all, each with its own rows of a batch.
      cache_dir: Where tokenised rows are kept; None: nowhere.
      overwrite: Whether to discard the run that the workdir holds, and to train from the beginning.

    Raises:
      UserError: Data, settings and trunk do not fit, or the workdir holds another run.
    """
    splits = check_arguments(trunk, task, data, config, head, seed, name)
    name = name or task.name
    check_partition(partition_name, adapter)
    config = config.with_rate(partition_name)
    if not isinstance(adapter, typing.get_args(Adapter)):
        raise UserError(f"The adapter is {shown(adapter)}; give an AdapterConfig or another adapter's config.")
    has_adapter = partition_name in ("adapter", "adapter+trunk")
    model = Model(
        trunk=trunk.config,
        head_name=name,
        head=head,
        reads=READS[task.kind],
        adapters=((name, adapter),) if has_adapter else (),
        dtype=trunk.dtype,
        scan_layers=scan_layers,
        remat=remat,
    )
    key = jax.random.key(seed)
    trunk_params = partition.split_layers(trunk.params, top_k) if partition_name == "top_k" else trunk.params
    params = {
        "trunk": trunk_params,
        "adapters": {name: new_adapter(key, name, adapter, trunk)} if has_adapter else {},
        "fusion": {},
        "heads": {name: new_head(key, name, head, task.kind, splits["train"], trunk)},
    }
    # A head that reads tokens leaves the trunk's pooler unused, whatever its settings.
    rules = partition.preset(partition_name, head if model.reads == "pooled" else HeadConfig())
    settings = {"recipe": "single", "partition": partition_name, "top_k": top_k}
    workdir = open_path(workdir)
    return _train(
        trunk, model, params, rules, task, splits, config, seed, mesh, workdir, cache_dir, settings, overwrite=overwrite
    )


def train_fusion(
    trunk: Trunk,
    task: TaskConfig,
    data: Mapping[str, Any],
    adapters: Sequence[str],
    *,
    store_folder: str | Path,
    workdir: str | Path,
    name: str = "",
    fusion: FusionConfig = FusionConfig(),
    head: HeadConfig = HeadConfig(),
    config: TrainConfig = TrainConfig(),
    seed: int = 0,
    scan_layers: bool = False,
    remat: Remat = "none",
    mesh: Mesh | None = None,
    cache_dir: Path | None = None,
    overwrite: bool = False,
) -> TaskModel:
    """Trains the attention over stored adapters, and a head, for a target task; trunk and adapters stay frozen.

    Args:
      adapters: Names of the adapters in the store, in order.
      store_folder: The store that has them.
      name: Of the fusion and the head; empty: the task's name with ``-fusion`` behind it.
      trunk, task, data, workdir, fusion, head, config, seed, scan_layers, remat, mesh, cache_dir, overwrite: As in
        :func:`train_single`.

    Raises:
      UserError: As there; and an adapter that is missing, damaged, of another trunk or of another slot, or that is not
        the one that a run which goes on began with.
    """
    if not adapters:
        raise UserError("A fusion needs at least one adapter; name some that the store has.")
    splits = check_arguments(trunk, task, data, config, head, seed, name)
    name = name or f"{task.name}-fusion"
    config = config.with_rate("fusion")
    members = load_adapters(store_folder, adapters, trunk)
    check_subset(fusion, len(members))
    model = Model(
        trunk=trunk.config,
        head_name=name,
        head=head,
        reads=READS[task.kind],
        adapters=tuple((member, architecture) for member, (architecture, _) in members.items()),
        fusion_name=name,
        fusion=fusion,
        dtype=trunk.dtype,
        scan_layers=scan_layers,
        remat=remat,
    )
    key = jax.random.key(seed)
    size = {"hidden_size": trunk.config.hidden_size, "num_layers": trunk.config.num_layers}
    params = {
        "trunk": trunk.params,
        "adapters": {member: tree for member, (_, tree) in members.items()},
        "fusion": {name: init_fusion(named_key(key, "fusion", name), fusion, model.adapters[0][1], **size)},
        "heads": {name: new_head(key, name, head, task.kind, splits["train"], trunk)},
    }
    rules = partition.preset("fusion")
    settings = {"recipe": "fusion", "fusion": to_dict(fusion)}
    workdir = open_path(workdir)
    return _train(
        trunk, model, params, rules, task, splits, config, seed, mesh, workdir, cache_dir, settings, overwrite=overwrite
    )


def _train(
    trunk: Trunk,
    model: Model,
    params: Tree,
    rules: tuple[partition.Rule, ...],
    task: TaskConfig,
    data: Mapping[str, AnyRows],
    config: TrainConfig,
    seed: int,
    mesh: Mesh | None,
    workdir: epath.Path,
    cache_dir: Path | None,
    settings: Mapping[str, Any],
    *,
    overwrite: bool,
) -> TaskModel:
    """Tokenises, trains, and puts the best parameters together again."""
    mesh = make_mesh(MeshConfig()) if mesh is None else mesh
    check_batch(config.batch_size, mesh)
    check_length(config.max_length, trunk)
    labels = data["train"].label_names
    metrics.check_metric(task.main_metric, task.kind, len(labels))
    check_class_settings(config, {task: labels})
    spec = _spec(trunk, model, params, task, data, config, seed, settings)
    with together():
        lengths = None if overwrite else check_run(workdir, spec)
    splits = tokenise_splits(trunk, task, data, config.max_length, cache_dir)
    run = SingleRun(
        model,
        params,
        rules,
        splits,
        task,
        config,
        seed=seed,
        pad_id=trunk.config.pad_id,
        trunk_dtype=trunk.dtype,
        mesh=mesh,
        lengths=lengths,
        class_loss=make_class_loss(config, labels, data["train"].labels),
    )
    tell_run(
        model.head_name,
        trunk,
        mesh,
        trained=count(partition.split(params, partition.label(params, rules))[0]),
        total=count(params),
        dev_rows=len(data["dev"]),
        num_steps=run.num_steps,
        eval_every=run.eval_every,
    )
    tell_padding(model.head_name, splits["train"], run.lengths.train, config.batch_size)
    claim_run(workdir, spec, run.lengths, overwrite=overwrite)
    result = run_loop(
        run,
        config,
        inputs=spec.inputs,
        num_steps=run.num_steps,
        eval_every=run.eval_every,
        folder=workdir,
        title=model.head_name,
    )
    tell([no_better_than_majority(model.head_name, data["dev"], result.metrics)])
    trained = stored_form(result.trained)
    _, frozen = partition.split(params, partition.label(params, rules))
    whole = merge(trained, frozen)
    task_model = TaskModel(
        trunk=with_params(trunk, whole["trunk"], workdir) if "trunk" in trained else trunk,
        model=model,
        params={root: whole.get(root, {}) for root in ("adapters", "fusion", "heads")},
        task=task,
        labels=labels,
        metrics=result.metrics,
        seed=seed,
        max_length=config.max_length,
        text_columns=data["train"].text_columns,
    )
    record_trained(workdir, trunk, [task_model], settings.get("partition", "fusion"))
    return task_model


def _spec(
    trunk: Trunk,
    model: Model,
    params: Tree,
    task: TaskConfig,
    data: Mapping[str, AnyRows],
    config: TrainConfig,
    seed: int,
    settings: Mapping[str, Any],
) -> RunSpec:
    """Everything that the run's result depends on; a fusion's frozen adapters are inputs."""
    inputs = run_inputs(trunk, {task.name: data}, seed)
    if model.fusion_name:
        inputs |= {adapter_input(name): tree_digest(tree) for name, tree in params["adapters"].items()}
    return RunSpec(
        settings={
            **settings,
            "name": model.head_name,
            "task": task_settings(task),
            "adapters": {name: to_dict(adapter) for name, adapter in model.adapters},
            "head": to_dict(model.head),
            "train": to_dict(config),
            "seed": seed,
            "trunk_dtype": trunk.dtype,
            "scan_layers": model.scan_layers,
            "remat": model.remat,
        },
        inputs=inputs,
    )
