"""The recipes for one task: train an adapter and its head, another partition, or a fusion of stored adapters."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from afjax.config.adapters import Adapter
from afjax.config.from_dict import to_dict
from afjax.config.methods import FusionMethod, Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.config.values import Partition
from afjax.data.notices import no_better_than_majority
from afjax.distributed.hosts import all_hosts_or_raise
from afjax.distributed.notes import note
from afjax.distributed.sharding import check_batch
from afjax.model.loading import load_adapters
from afjax.model.model import Model
from afjax.model.setup import Setup, fusion_setup, single_setup
from afjax.model.task_model import TaskModel
from afjax.storage.paths import open_path
from afjax.tasks.class_loss import check_class_settings, make_class_loss
from afjax.tasks.kinds import TASK_KINDS, check_metric, initial_output_bias
from afjax.train.arguments import check_adapter_size, check_data, check_types
from afjax.train.defaults import choose_learning_rate, choose_pooling
from afjax.train.inputs import run_inputs, shared_tokenizer, task_settings, tokenize_splits
from afjax.train.loop import Training, run_alone, run_loop
from afjax.train.messages import print_notices, print_padding, print_run
from afjax.train.options import RunOptions
from afjax.train.record import RunSpec, adapter_input, check_run, claim_run, recorded_settings
from afjax.train.results import record_trained, stored_form, trained_model, with_params
from afjax.train.single_run import SingleRun
from afjax.trees import Tree, count, merge, tree_digest
from afjax.trunk.pretrained import Trunk, check_length


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """The arguments of a run on one task, for :func:`afjax.train_many`.

    Attributes:
      task, data, workdir, config, options: As in :func:`afjax.train_single`.
      method: What to train: a ``Method``, or a ``FusionMethod`` as in :func:`afjax.train_fusion`.

    Example:
      >>> from afjax import PlannedRun, TaskConfig, load_task
      >>> task = TaskConfig(name="entail", source="builtin:entail")
      >>> PlannedRun(task=task, data=load_task(task), workdir="runs/entail").options.seed
      0
    """

    task: TaskConfig
    data: Mapping[str, Any] = dataclasses.field(repr=False)
    workdir: str | Path
    method: Method | FusionMethod = Method()
    config: TrainConfig = TrainConfig()
    options: RunOptions = RunOptions()


def train_single(
    trunk: Trunk,
    task: TaskConfig,
    data: Mapping[str, Any],
    *,
    workdir: str | Path,
    method: Method = Method(),
    config: TrainConfig = TrainConfig(),
    options: RunOptions = RunOptions(),
) -> TaskModel:
    """Trains one adapter and its head, or another partition, on one task.

    Args:
      trunk: The pretrained encoder. It is not changed; a method that trains the trunk returns a new one.
      task: The task, with its name, kind and metric.
      data: ``train`` and ``dev`` rows from ``load_task`` or ``rows_from_lists``, or tables (a DataFrame, or a
        dictionary of columns) with the columns named in the task. If ``train`` is the only split, some of its rows are
        used as dev rows; see ``TaskConfig.dev_share``.
      workdir: The run's folder. If it holds a run with the same settings and inputs, that run is resumed, or its result
        is returned if it has finished. A run with different settings or inputs raises an error.
      method: The partition to train, and the architectures of the adapter and the head.
      config: Optimizer, schedule and batches.
      options: The artifact's name, the seed, the devices, and other options.

    Returns:
      The model with the best parameters by the main dev metric, and their dev metrics.

    Raises:
      UserError: The data, settings and trunk are incompatible, or the workdir holds a different run.

    Example:
      >>> from afjax import TaskConfig, TrainConfig, load_task, load_trunk, train_single
      >>> task = TaskConfig(name="entail", source="builtin:entail")
      >>> config = TrainConfig(epochs=2, max_length=32)
      >>> trunk = load_trunk("minilm")  # doctest: +SKIP
      >>> model = train_single(trunk, task, load_task(task), workdir="runs/entail", config=config)  # doctest: +SKIP
      >>> model.save("store")  # doctest: +SKIP

    Reference:
      Houlsby et al. 2019, *Parameter-Efficient Transfer Learning for NLP*, section 2.
    """
    check_types(trunk, method, Method, config, options)
    planned = PlannedRun(task=task, data=data, workdir=workdir, method=method, config=config, options=options)
    return run_alone(single_training(trunk, planned))


def single_training(trunk: Trunk, planned: PlannedRun) -> Training[TaskModel]:
    """Trains a run like :func:`train_single` or :func:`afjax.train_fusion`, but the caller computes the steps.

    The caller also checks the types of the arguments. See :mod:`afjax.train.loop`.
    """
    task, method, config, options = planned.task, planned.method, planned.config, planned.options
    rows = check_data(task, planned.data)
    labels, folder = rows["train"].label_names, open_path(planned.workdir)
    members: dict[str, tuple[Adapter, Tree]] = {}
    if isinstance(method, FusionMethod):
        partition: Partition = "fusion"
        members = load_adapters(os.fspath(method.store), method.adapters, trunk)
        if method.fusion.subset is not None and not config.dropout:
            # This is not an error, because runs of earlier versions can be resumed.
            note("fusion.subset has no effect, because train.dropout is False: all adapters are fused in each step.")
    else:
        partition = method.partition
        if method.has_adapter:
            check_adapter_size(method.adapter, trunk)
    recorded = recorded_settings(folder, overwrite=options.overwrite)
    head = choose_pooling(method.head, partition, lambda: trunk.pooling, recorded)
    architectures = {name: architecture for name, (architecture, _) in members.items()}
    setup = _setup(trunk, task, labels, dataclasses.replace(method, head=head), architectures, options)
    config = choose_learning_rate(config, partition, recorded)
    mesh = options.devices()
    check_batch(config.batch_size, mesh)
    check_length(config.max_length, trunk)
    check_metric(task.main_metric, task.kind, len(labels))
    check_class_settings(config, {task: labels})
    # A fusion's frozen adapters count as inputs.
    adapters = {name: tree for name, (_, tree) in members.items()}
    digests = {adapter_input(name): tree_digest(tree) for name, tree in adapters.items()}
    spec = RunSpec(
        settings=_settings(trunk, task, method, setup.model, config, options.seed),
        inputs={**run_inputs(trunk, {task.name: rows}, options.seed), **digests},
    )
    with all_hosts_or_raise():
        lengths = None if options.overwrite else check_run(folder, spec)
    name, key, bias = setup.model.head_name, jax.random.key(options.seed), initial_output_bias(task.kind, rows["train"])
    params = setup.init(key, trunk.params, adapters, output_bias=bias)
    tokenizer = shared_tokenizer(trunk, options.shared)
    splits = tokenize_splits(tokenizer, task, rows, config.max_length, options.cache_dir)
    run = SingleRun(
        setup,
        params,
        splits,
        task,
        config,
        seed=options.seed,
        mesh=mesh,
        lengths=lengths,
        class_loss=make_class_loss(config, labels, rows["train"].labels),
        shared=options.shared,
    )
    trained, frozen = setup.split(params)
    shown_name = options.shown_name(name)
    print_run(
        shown_name,
        trunk,
        run,
        method=f"fusion of {', '.join(adapters)}" if adapters else f"partition {partition}",
        trained=count(trained),
        total=count(params),
        dev_rows=len(rows["dev"]),
    )
    del trained, params
    print_padding(shown_name, splits["train"], run.lengths.train, config.batch_size)
    inputs = claim_run(folder, spec, run.lengths, overwrite=options.overwrite)
    result = yield from run_loop(run, config, inputs=inputs, folder=folder, title=shown_name)
    print_notices([no_better_than_majority(shown_name, rows["dev"], result.metrics)])
    best = stored_form(result.trained)
    all_params = merge(best, frozen)
    new_trunk = with_params(trunk, all_params["trunk"], folder) if "trunk" in best else trunk
    model = trained_model(
        new_trunk, setup.model, all_params, task, rows, result.metrics, seed=options.seed, max_length=config.max_length
    )
    record_trained(folder, trunk, [model], partition)
    return model


def default_name(task: TaskConfig, method: Method | FusionMethod) -> str:
    """Returns the name of a run on one task whose options have no name."""
    return f"{task.name}-fusion" if isinstance(method, FusionMethod) else task.name


def _setup(
    trunk: Trunk,
    task: TaskConfig,
    labels: Sequence[str],
    method: Method | FusionMethod,
    adapters: Mapping[str, Adapter],
    options: RunOptions,
) -> Setup:
    """Returns the model and its trained partition. ``adapters`` are the architectures of a fusion's adapters."""
    kind = TASK_KINDS[task.kind]
    outputs: dict[str, Any] = {
        "name": options.name or default_name(task, method),
        "reads": kind.reads,
        "num_outputs": kind.num_outputs(labels),
    }
    if isinstance(method, FusionMethod):
        setup = fusion_setup(adapters, method.fusion, method.head, trunk.config, **outputs)
    else:
        setup = single_setup(method, trunk.config, **outputs)
    return setup.computed(dtype=trunk.dtype, scan_layers=options.scan_layers, remat=options.remat)


def _settings(
    trunk: Trunk, task: TaskConfig, method: Method | FusionMethod, model: Model, config: TrainConfig, seed: int
) -> dict[str, Any]:
    """Collects the settings that the run's result depends on."""
    own_settings: dict[str, Any]
    if isinstance(method, FusionMethod):
        own_settings = {"recipe": "fusion", "fusion": to_dict(method.fusion)}
    else:
        own_settings = {"recipe": "single", "partition": method.partition, "top_k": method.top_k}
    return {
        **own_settings,
        "name": model.head_name,
        "task": task_settings(task),
        "adapters": {name: to_dict(adapter) for name, adapter in model.adapters},
        "head": to_dict(model.head),
        "train": to_dict(config),
        "seed": seed,
        "trunk_dtype": trunk.dtype,
        "scan_layers": model.scan_layers,
        "remat": model.remat,
    }
