"""A run on several tasks. Each step trains one of them."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh

from afjax.config.tasks import TaskConfig, TaskKind
from afjax.config.training import SamplingConfig, TrainConfig
from afjax.data.batches import Batch, Batching
from afjax.data.lengths import PaddedLengths
from afjax.data.over_rows import jit_eval_step, over_rows
from afjax.data.tokenization import TokenizedRows
from afjax.distributed.sharding import shard
from afjax.model.model import Model
from afjax.model.setup import Setup
from afjax.tasks.class_loss import ClassLoss
from afjax.tasks.kind import Reads
from afjax.tasks.kinds import TASK_KINDS
from afjax.train.loop import Run
from afjax.train.multitask_step import (
    STEP_GROUPS,
    TaskTable,
    batch_labels,
    init_multitask_state,
    make_multitask_eval_step,
    make_multitask_step,
    stack_tasks,
)
from afjax.train.optimizer import without_inputs
from afjax.train.planning import plan_lengths
from afjax.train.run_params import count_passes, shared_trunk, split_params, trains_layers
from afjax.train.sampling import draw_tasks
from afjax.train.shared import Shared
from afjax.train.step import State, dropout_key, jit_init, jit_step, run_step
from afjax.train.task_batches import batches_from, dev_scores, scale_labels, step_inputs
from afjax.trees import Tree

# The name of the drawn task's adapter and head in the model.
DRAWN = "drawn"


class MultitaskRun(Run):
    """Trains a setup on several tasks.

    The trained leaves are the shared leaves, and each task's own adapter and head.

    Args:
      setup: The setup for one task. Its head, and its adapter if it has one, are named :data:`DRAWN`.
      trunk: The trunk's initial tree.
      own: Each task's initial ``{"adapters": {DRAWN: tree}, "heads": {DRAWN: tree}}``, in the order of ``tasks``.
      data: Each task's tokenized ``train`` and ``dev`` rows.
      tasks: The tasks, with their names, kinds, scales and main metrics.
      config: Optimizer, schedule and batches.
      sampling: How the task of each step is drawn.
      seed: Seed for task sampling, row order and dropout.
      mesh: The devices.
      lengths: The recorded padded lengths of a resumed run. By default, they are chosen from the rows.
      class_losses: Class weights and label smoothing of each task; empty if the run has none.
      shared: Keeps the compiled functions and the frozen trunk for other runs.
    """

    main_metric = "mean"

    def __init__(
        self,
        setup: Setup,
        trunk: Tree,
        own: Sequence[Tree],
        data: Sequence[Mapping[str, TokenizedRows]],
        tasks: Sequence[TaskConfig],
        config: TrainConfig,
        sampling: SamplingConfig,
        *,
        seed: int,
        mesh: Mesh,
        lengths: PaddedLengths | None = None,
        class_losses: tuple[ClassLoss, ...] = (),
        shared: Shared | None = None,
    ) -> None:
        shared = shared or Shared()
        model, num_steps = setup.model, config.num_steps(sampling.steps_per_epoch)
        self._data, self._tasks, self._config, self._seed, self._pad_id = data, tasks, config, seed, model.trunk.pad_id
        self.mesh, self.num_steps, self.eval_every = mesh, num_steps, config.eval_every or sampling.steps_per_epoch
        self.shown_metrics = (self.main_metric, *(f"{task.name}/{task.main_metric}" for task in tasks))
        stacked = stack_tasks(list(own))
        self.num_outputs = [tree["heads"][DRAWN]["output"]["bias"].shape[0] for tree in own]
        trained, frozen = split_params(setup, {"trunk": trunk, **stacked, "fusion": {}})
        passes = count_passes(setup, trained, frozen)
        shares_trunk = not trains_layers(setup, frozen)
        self._frozen = shared_trunk(frozen, trunk, mesh, shared) if shares_trunk else shard(frozen, mesh)
        trained_trunk = {"trunk": trained.pop("trunk")} if "trunk" in trained else {}
        init = functools.partial(init_multitask_state, config=config)
        tree = {"shared": trained_trunk, "own": trained}
        table = TaskTable(tuple(task.kind for task in tasks), tuple(self.num_outputs), class_losses)
        # Unlike in a run on one task, these settings are compiled into the step.
        compiled_config = dataclasses.replace(
            without_inputs(config), weight_decay=config.weight_decay, clip_norm=config.clip_norm
        )
        losses = tuple((np.asarray(loss.weights).tobytes(), loss.label_smoothing) for loss in class_losses)
        key = (setup, compiled_config, table.kinds, table.num_outputs, losses, mesh)
        self.start = shared.once("multitask init", key, lambda: jit_init(init, tree, mesh))(tree)
        self._programs = shared.once(
            "multitask programs", key, lambda: _compile(model, config, table, self.start, mesh)
        )
        self.compiled = self._programs.shapes
        self._key = dropout_key(seed, config.prng, mesh)
        sizes = [len(splits["train"]) for splits in data]
        self.drawn = draw_tasks(sampling, sizes, num_steps=num_steps, seed=seed)
        # All tasks use the same lengths, so that they share compiled programs. Rarely drawn tasks weigh less.
        shares = np.bincount(self.drawn, minlength=len(tasks)).tolist()
        self.lengths, self.estimate = plan_lengths(
            self, model.trunk, config, data, lengths=lengths, train_passes=passes, shares=shares
        )

    def batches(self, step: int) -> Iterator[Batch]:
        batching = Batching(self._config.batch_size, self.lengths.train, self._pad_id)
        streams = [
            batches_from(int((self.drawn[:step] == number).sum()), splits["train"], batching, self._seed, self.mesh)
            for number, splits in enumerate(self._data)
        ]
        for number in self.drawn[step:]:
            task = self._tasks[number]
            batch = scale_labels(next(streams[number]), task)
            labels = batch_labels(task.kind, batch["labels"], max(self.num_outputs))
            yield {**batch, "labels": labels, "task": np.asarray(number, np.int32)}

    def step(self, state: State, batch: Batch, learning_rate: float) -> tuple[State, dict[str, Any]]:
        inputs = step_inputs(batch, self._config.batch_size, self.mesh)
        rate = np.asarray(learning_rate, np.float32)
        step = self._programs.steps[self._tasks[int(batch["task"])].kind]
        return run_step(step, self.mesh, state, self._frozen, inputs, self._key, rate)

    def evaluate(self, trained: Tree) -> dict[str, float]:
        """Computes all metrics, as ``TASK/METRIC``, and ``mean``.

        ``mean`` is the mean of the tasks' main metrics.
        """
        scores: dict[str, float] = {}
        for number, (task, splits) in enumerate(zip(self._tasks, self._data, strict=True)):
            inputs = {"trained": trained, "frozen": self._frozen, "task": np.int32(number)}
            logits = over_rows(
                self._programs.eval_steps[TASK_KINDS[task.kind].reads],
                inputs,
                splits["dev"],
                batching=Batching(self._config.batch_size, self.lengths.dev, self._pad_id),
                mesh=self.mesh,
            )
            task_logits = logits if task.kind == "multiple_choice" else logits[..., : self.num_outputs[number]]
            task_scores = dev_scores(task_logits, splits["dev"], task)
            scores |= {f"{task.name}/{name}": value for name, value in task_scores.items()}
        return {"mean": float(np.mean([scores[f"{task.name}/{task.main_metric}"] for task in self._tasks])), **scores}

    def extra_metrics(self, batch: Batch) -> dict[str, float]:
        return {"task": int(batch["task"])}

    def train_rows(self, batch: Batch) -> list[int]:
        return self._data[int(batch["task"])]["train"].source_rows(batch["rows"])


@dataclasses.dataclass(frozen=True, eq=False)
class MultitaskPrograms:
    """The compiled functions of a run on several tasks.

    Attributes:
      steps: The compiled step of each task kind.
      eval_steps: The compiled evaluation steps for heads that read one vector per row, and for heads that read every
        token.
      shapes: The batch shapes that the steps have been compiled for; see ``Run.compiled``.
    """

    steps: Mapping[TaskKind, Any]
    eval_steps: Mapping[Reads, Any]
    shapes: set[tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=set)


def _compile(model: Model, config: TrainConfig, table: TaskTable, state: State, mesh: Mesh) -> MultitaskPrograms:
    """Compiles the programs for states with the shapes and shardings of ``state``."""
    steps = {
        kind: step
        for group in STEP_GROUPS
        if set(table.kinds) & set(group)
        for step in [jit_step(make_multitask_step(model, config, table, state, group), state, mesh)]
        for kind in group
    }
    eval_steps = {
        reads: jit_eval_step(make_multitask_eval_step(dataclasses.replace(model, reads=reads)), mesh)
        for reads in {TASK_KINDS[kind].reads for kind in table.kinds}
    }
    return MultitaskPrograms(steps, eval_steps)
