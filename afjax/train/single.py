"""The single-task recipe: trains one adapter and its head, or another partition."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from afjax.config.from_dict import to_dict
from afjax.config.methods import FusionMethod, Method
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.config.values import Partition
from afjax.data.notices import no_better_than_majority
from afjax.data.splits import AnyRows
from afjax.distributed.hosts import all_hosts_or_raise
from afjax.distributed.sharding import check_batch
from afjax.model.setup import Setup, single_setup
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
    return run_alone(single_training(trunk, task, data, workdir=workdir, method=method, config=config, options=options))


def single_training(
    trunk: Trunk,
    task: TaskConfig,
    data: Mapping[str, Any],
    *,
    workdir: str | Path,
    method: Method,
    config: TrainConfig,
    options: RunOptions,
) -> Training[TaskModel]:
    """Trains a run like :func:`train_single`, but the caller computes the steps.

    See :mod:`afjax.train.loop`.
    """
    check_types(trunk, method, Method, config, options)
    splits = check_data(task, data)
    if method.has_adapter:
        check_adapter_size(method.adapter, trunk)
    recorded = recorded_settings(open_path(workdir), overwrite=options.overwrite)
    method = dataclasses.replace(
        method, head=choose_pooling(method.head, method.partition, lambda: trunk.pooling, recorded)
    )
    setup = single_setup(
        method,
        trunk.config,
        name=options.name or task.name,
        reads=TASK_KINDS[task.kind].reads,
        num_outputs=TASK_KINDS[task.kind].num_outputs(splits["train"].label_names),
    )
    task_run = TaskRun(
        trunk=trunk,
        task=task,
        data=splits,
        setup=setup.computed(dtype=trunk.dtype, scan_layers=options.scan_layers, remat=options.remat),
        method=method,
    )
    config = choose_learning_rate(config, method.partition, recorded)
    return (yield from task_training(task_run, config, options, workdir))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskRun:
    """The plan for a run on one task.

    Attributes:
      trunk: The pretrained encoder.
      task: The task.
      data: The task's ``train`` and ``dev`` rows, already checked.
      setup: The model and its trained partition.
      adapters: The parameters of a fusion's adapters, by name; empty for other methods.
      method: The method.
    """

    trunk: Trunk
    task: TaskConfig
    data: Mapping[str, AnyRows]
    setup: Setup
    adapters: Mapping[str, Tree] = dataclasses.field(default_factory=dict)
    method: Method | FusionMethod

    @property
    def partition(self) -> Partition:
        """The trained part of the model."""
        return "fusion" if isinstance(self.method, FusionMethod) else self.method.partition

    def spec(self, config: TrainConfig, seed: int) -> RunSpec:
        """Collects everything that the run's result depends on.

        A fusion's frozen adapters count as inputs.
        """
        model, method = self.setup.model, self.method
        own_settings: dict[str, Any]
        if isinstance(method, FusionMethod):
            own_settings = {"recipe": "fusion", "fusion": to_dict(method.fusion)}
        else:
            own_settings = {"recipe": "single", "partition": method.partition, "top_k": method.top_k}
        digests = {adapter_input(name): tree_digest(tree) for name, tree in self.adapters.items()}
        return RunSpec(
            settings={
                **own_settings,
                "name": model.head_name,
                "task": task_settings(self.task),
                "adapters": {name: to_dict(adapter) for name, adapter in model.adapters},
                "head": to_dict(model.head),
                "train": to_dict(config),
                "seed": seed,
                "trunk_dtype": self.trunk.dtype,
                "scan_layers": model.scan_layers,
                "remat": model.remat,
            },
            inputs={**run_inputs(self.trunk, {self.task.name: self.data}, seed), **digests},
        )


def task_training(
    task_run: TaskRun, config: TrainConfig, options: RunOptions, workdir: str | Path
) -> Training[TaskModel]:
    """Checks the arguments, tokenizes the rows and trains.

    Args:
      task_run: The setup to train, its task and its rows.
      config: Optimizer, schedule and batches, with a learning rate.
      options, workdir: As in :func:`train_single`.

    Raises:
      UserError: As in :func:`train_single`.
    """
    trunk, task, data, setup = task_run.trunk, task_run.task, task_run.data, task_run.setup
    mesh, folder, labels = options.devices(), open_path(workdir), data["train"].label_names
    check_batch(config.batch_size, mesh)
    check_length(config.max_length, trunk)
    check_metric(task.main_metric, task.kind, len(labels))
    check_class_settings(config, {task: labels})
    spec = task_run.spec(config, options.seed)
    with all_hosts_or_raise():
        lengths = None if options.overwrite else check_run(folder, spec)
    name, key, bias = setup.model.head_name, jax.random.key(options.seed), initial_output_bias(task.kind, data["train"])
    params = setup.init(key, trunk.params, task_run.adapters, output_bias=bias)
    tokenizer = shared_tokenizer(trunk, options.shared)
    splits = tokenize_splits(tokenizer, task, data, config.max_length, options.cache_dir)
    run = SingleRun(
        setup,
        params,
        splits,
        task,
        config,
        seed=options.seed,
        mesh=mesh,
        lengths=lengths,
        class_loss=make_class_loss(config, labels, data["train"].labels),
        shared=options.shared,
    )
    trained, frozen = setup.split(params)
    shown_name = options.shown_name(name)
    print_run(
        shown_name,
        trunk,
        run,
        method=_described(task_run),
        trained=count(trained),
        total=count(params),
        dev_rows=len(data["dev"]),
    )
    del trained, params
    print_padding(shown_name, splits["train"], run.lengths.train, config.batch_size)
    claim_run(folder, spec, run.lengths, overwrite=options.overwrite)
    result = yield from run_loop(run, config, inputs=spec.inputs, folder=folder, title=shown_name)
    print_notices([no_better_than_majority(shown_name, data["dev"], result.metrics)])
    best = stored_form(result.trained)
    all_params = merge(best, frozen)
    new_trunk = with_params(trunk, all_params["trunk"], folder) if "trunk" in best else trunk
    model = trained_model(
        new_trunk, setup.model, all_params, task, data, result.metrics, seed=options.seed, max_length=config.max_length
    )
    record_trained(folder, trunk, [model], task_run.partition)
    return model


def _described(task_run: TaskRun) -> str:
    if isinstance(task_run.method, FusionMethod):
        return f"fusion of {', '.join(task_run.adapters)}"
    return f"partition {task_run.partition}"
