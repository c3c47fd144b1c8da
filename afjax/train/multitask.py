"""The multi-task recipe: tasks share a trunk, and each step trains one task.

Each task has its own head, and its own adapter if the method has adapters.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from afjax.config.from_dict import to_dict
from afjax.config.methods import MultitaskMethod
from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.notices import no_better_than_majority
from afjax.data.splits import AnyRows
from afjax.display.words import counted
from afjax.distributed.hosts import all_hosts_or_raise
from afjax.distributed.sharding import check_batch
from afjax.model import partition
from afjax.model.setup import Setup, single_setup
from afjax.model.task_model import TaskModel
from afjax.storage.paths import open_path
from afjax.tasks.class_loss import make_class_loss
from afjax.tasks.kind import Reads
from afjax.tasks.kinds import TASK_KINDS, initial_output_bias
from afjax.train.arguments import check_adapter_size, check_several, check_types
from afjax.train.defaults import choose_learning_rate, choose_pooling
from afjax.train.inputs import run_inputs, shared_tokenizer, task_settings, tokenize_splits
from afjax.train.loop import run_alone, run_loop
from afjax.train.messages import print_notices, print_padding, print_run
from afjax.train.multitask_run import DRAWN, MultitaskRun
from afjax.train.multitask_step import trim_task
from afjax.train.options import RunOptions
from afjax.train.record import RunSpec, check_run, claim_run, recorded_settings
from afjax.train.results import record_trained, stored_form, trained_model, with_params
from afjax.trees import Tree, count, merge
from afjax.trunk.pretrained import Trunk, check_length


def train_multitask(
    trunk: Trunk,
    tasks: Iterable[TaskConfig],
    data: Mapping[str, Mapping[str, Any]],
    *,
    workdir: str | Path,
    method: MultitaskMethod = MultitaskMethod(),
    config: TrainConfig = TrainConfig(),
    options: RunOptions = RunOptions(),
) -> dict[str, TaskModel]:
    """Trains one partition on several tasks at once.

    Each task has its own head, and its own adapter if the method has adapters; all tasks share the trunk. The
    parameters with the best mean of the tasks' main dev metrics are kept.

    Args:
      trunk: The pretrained encoder. It is not changed; a method that trains the trunk returns a new one.
      tasks: One or more tasks with distinct names.
      data: ``{task name: splits}``, with splits as in :func:`afjax.train_single`.
      workdir: The run's folder, as in :func:`afjax.train_single`.
      method: The partition to train, the architectures (the same for all tasks), and the task sampling.
      config: Optimizer, schedule and batches. ``epochs`` counts the epochs of ``method.sampling``.
      options: As in :func:`afjax.train_single`.

    Returns:
      ``{task name: model}``. All models share one trunk.

    Raises:
      UserError: The data, settings and trunk are incompatible, or the workdir holds a different run.

    Example:
      >>> from afjax import ADAPTER_PRESETS, MultitaskMethod, SamplingConfig
      >>> from afjax import TaskConfig, load_task, load_trunk, train_multitask
      >>> tasks = [TaskConfig(name=name, source=f"builtin:{name}") for name in ("entail", "paraphrase")]
      >>> data = {task.name: load_task(task) for task in tasks}
      >>> sampling = SamplingConfig(steps_per_epoch=100)
      >>> method = MultitaskMethod(adapter=ADAPTER_PRESETS["pals"], sampling=sampling)
      >>> trunk = load_trunk("minilm")  # doctest: +SKIP
      >>> models = train_multitask(trunk, tasks, data, workdir="runs/pals", method=method)  # doctest: +SKIP
      >>> models["entail"].save("runs/pals/store")  # doctest: +SKIP

    Reference:
      Stickland & Murray 2019, *BERT and PALs*, sections 3 and 4; Pfeiffer et al. 2021, *AdapterFusion*, section 3.1
      (MT-A).
    """
    check_types(trunk, method, MultitaskMethod, config, options)
    mesh, folder, sampling = options.devices(), open_path(workdir), method.sampling
    check_batch(config.batch_size, mesh)
    rows = check_several(tasks, data, config)
    recorded = recorded_settings(folder, overwrite=options.overwrite)
    config = choose_learning_rate(config, method.partition, recorded)
    method = dataclasses.replace(
        method, head=choose_pooling(method.head, method.partition, lambda: trunk.pooling, recorded)
    )
    check_length(config.max_length, trunk)
    if method.has_adapter:
        check_adapter_size(method.adapter, trunk)
    spec = _spec(trunk, rows, method, config, options)
    with all_hosts_or_raise():
        lengths = None if options.overwrite else check_run(folder, spec)
    compute: dict[str, Any] = {"dtype": trunk.dtype, "scan_layers": options.scan_layers, "remat": options.remat}
    prepared = _with_setups(rows, method, trunk, options, compute)
    key = jax.random.key(options.seed)
    task_params = [task.init(key, trunk) for task in prepared]
    own_shapes = [jax.eval_shape(lambda tree: tree, tree) for tree in task_params]
    trunk_params = partition.split_layers(trunk.params, method.top_k) if method.top_k else trunk.params
    train_rows = [task.rows["train"] for task in prepared]
    class_losses = [make_class_loss(config, train.label_names, train.labels) for train in train_rows]
    tokenizer = shared_tokenizer(trunk, options.shared)
    tokens = [
        tokenize_splits(tokenizer, task.config, task.rows, config.max_length, options.cache_dir) for task in prepared
    ]
    # If no head uses the trunk's pooler, it is not trained.
    reads: Reads = "pooled" if any(TASK_KINDS[task.kind].reads == "pooled" for task in rows) else "tokens"
    drawn_setup = single_setup(method, trunk.config, name=DRAWN, reads=reads, num_outputs=1).computed(**compute)
    run = MultitaskRun(
        drawn_setup,
        trunk_params,
        task_params,
        tokens,
        tuple(rows),
        config,
        sampling,
        seed=options.seed,
        mesh=mesh,
        lengths=lengths,
        class_losses=tuple(filter(None, class_losses)),
        shared=options.shared,
    )
    own_size = sum(count(tree) for tree in task_params)
    trained_trunk, frozen_trunk = (
        part.get("trunk", {}) for part in drawn_setup.split({"trunk": trunk_params, **own_shapes[0]})
    )
    shown_name = options.shown_name("multitask")
    print_run(
        shown_name,
        trunk,
        run,
        method=f"partition {method.partition} on {counted(len(rows), 'task')}",
        trained=count(trained_trunk) + own_size,
        total=count(trunk_params) + own_size,
        dev_rows=sum(len(task.rows["dev"]) for task in prepared),
    )
    del task_params, trained_trunk
    for task, task_splits in zip(prepared, tokens, strict=True):
        print_padding(task.head_name, task_splits["train"], run.lengths.train, config.batch_size)
    inputs = claim_run(folder, spec, run.lengths, overwrite=options.overwrite)
    result = run_alone(run_loop(run, config, inputs=inputs, folder=folder, title=shown_name))
    trained_shared, own_trained = stored_form(result.trained["shared"]), stored_form(result.trained["own"])
    new_trunk = trunk
    if "trunk" in trained_shared:
        new_trunk = with_params(trunk, merge(trained_shared["trunk"], frozen_trunk), folder)
    models = {}
    for number, task in enumerate(prepared):
        metrics = _task_metrics(result.metrics, task.config.name)
        print_notices([no_better_than_majority(task.head_name, task.rows["dev"], metrics)])
        own = trim_task(jax.tree.map(lambda leaf, i=number: leaf[i], own_trained), own_shapes[number])
        models[task.config.name] = task.trained_model(new_trunk, own, metrics, config, options)
    record_trained(folder, trunk, list(models.values()), f"{method.partition}, multitask")
    return models


@dataclasses.dataclass(frozen=True)
class _Task:
    """One task of a run.

    Attributes:
      config: The task.
      rows: Its splits.
      setup: Its model.
    """

    config: TaskConfig
    rows: Mapping[str, AnyRows]
    setup: Setup

    @property
    def head_name(self) -> str:
        """The name of the task's head and, if it has one, of its adapter."""
        return self.setup.model.head_name

    def init(self, key: jax.Array, trunk: Trunk) -> Tree:
        """Initializes the task's adapter and head, under the name used in the step."""
        bias = initial_output_bias(self.config.kind, self.rows["train"])
        params, name = self.setup.init(key, trunk.params, output_bias=bias), self.head_name
        return {root: {DRAWN: params[root][name]} for root in ("adapters", "heads") if name in params[root]}

    def trained_model(
        self, trunk: Trunk, own: Tree, metrics: Mapping[str, float], config: TrainConfig, options: RunOptions
    ) -> TaskModel:
        """Returns the trained model. ``own`` is the task's trained adapter and head, as in :meth:`init`."""
        return trained_model(
            trunk,
            self.setup.model,
            {root: {self.head_name: tree[DRAWN]} for root, tree in own.items()},
            self.config,
            self.rows,
            metrics,
            seed=options.seed,
            max_length=config.max_length,
        )


def _with_setups(
    rows: Mapping[TaskConfig, Mapping[str, AnyRows]],
    method: MultitaskMethod,
    trunk: Trunk,
    options: RunOptions,
    compute: Mapping[str, Any],
) -> list[_Task]:
    """Adds each task's model to its rows. ``compute`` contains the arguments of :meth:`Setup.computed`."""
    tasks = []
    for task, splits in rows.items():
        kind, name = TASK_KINDS[task.kind], options.name_of(task.name)
        num_outputs = kind.num_outputs(splits["train"].label_names)
        setup = single_setup(method, trunk.config, name=name, reads=kind.reads, num_outputs=num_outputs)
        tasks.append(_Task(task, splits, setup.computed(**compute)))
    return tasks


def _spec(
    trunk: Trunk,
    rows: Mapping[TaskConfig, Mapping[str, AnyRows]],
    method: MultitaskMethod,
    config: TrainConfig,
    options: RunOptions,
) -> RunSpec:
    """Collects everything that the run's result depends on."""
    return RunSpec(
        settings={
            "recipe": "multitask",
            "partition": method.partition,
            "top_k": method.top_k,
            "names": {task.name: options.name_of(task.name) for task in rows},
            "tasks": [task_settings(task) for task in rows],
            **({"adapter": to_dict(method.adapter)} if method.has_adapter else {}),
            "head": to_dict(method.head),
            "train": to_dict(config),
            "sampling": to_dict(method.sampling),
            "seed": options.seed,
            "trunk_dtype": trunk.dtype,
            "scan_layers": options.scan_layers,
            "remat": options.remat,
        },
        inputs=run_inputs(trunk, {task.name: splits for task, splits in rows.items()}, options.seed),
    )


def _task_metrics(scores: Mapping[str, float], task: str) -> dict[str, float]:
    """Extracts one task's dev metrics, and the ``step`` of the evaluation."""
    metrics = {name.removeprefix(f"{task}/"): value for name, value in scores.items() if name.startswith(f"{task}/")}
    return {**metrics, "step": scores["step"]}
