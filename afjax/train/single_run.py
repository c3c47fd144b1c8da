"""A run that trains one partition of a model on one task."""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from afjax.config.tasks import TaskConfig
from afjax.config.training import TrainConfig
from afjax.data.batches import Batch, Batching, batches_per_epoch
from afjax.data.lengths import PaddedLengths
from afjax.data.over_rows import jit_eval_step, over_rows
from afjax.data.tokenization import TokenizedRows
from afjax.distributed.sharding import shard
from afjax.model.model import Model
from afjax.model.names import common_names, renamed, reversed_names, with_common_names
from afjax.model.setup import Setup
from afjax.tasks.class_loss import ClassLoss
from afjax.train.loop import Run
from afjax.train.optimizer import StepSettings, make_optimizer, step_settings, without_inputs
from afjax.train.padded_heads import pad_labels, padded_outputs, with_outputs
from afjax.train.planning import plan_lengths
from afjax.train.run_params import count_passes, shared_trunk, split_params, trains_layers
from afjax.train.shared import Shared
from afjax.train.step import (
    State,
    TrainStep,
    dropout_key,
    init_state,
    jit_init,
    jit_step,
    make_eval_step,
    make_train_step,
    run_step,
)
from afjax.train.task_batches import batches_from, dev_scores, scale_labels, step_inputs
from afjax.trees import Tree, merge


class SingleRun(Run):
    """Trains a setup on one task.

    Args:
      setup: The model and its trained partition.
      params: All initial parameters, of trunk, adapters, fusion and heads.
      data: ``train`` and ``dev`` rows.
      task: The task, with its kind, scale and main metric.
      config: Optimizer, schedule and batches.
      seed: Seed for row order and dropout.
      mesh: The devices.
      lengths: The recorded padded lengths of a resumed run. By default, they are chosen from the rows.
      class_loss: Class weights and label smoothing; None if the run has none.
      shared: Compiled functions and parameters shared with other runs. None shares nothing.

    Attributes:
      programs: The compiled functions. Their trees have common names in place of the run's names (see
        :mod:`afjax.model.names`) and padded heads (see :mod:`afjax.train.padded_heads`). Runs with the same programs
        can compute their steps together.
      frozen: The frozen tree on the mesh, with common names.
      key: The dropout key.
      shares_steps: Whether the run's steps can be computed together with other runs' steps.
    """

    def __init__(
        self,
        setup: Setup,
        params: Tree,
        data: dict[str, TokenizedRows],
        task: TaskConfig,
        config: TrainConfig,
        *,
        seed: int,
        mesh: Mesh,
        lengths: PaddedLengths | None = None,
        class_loss: ClassLoss | None = None,
        shared: Shared | None = None,
    ) -> None:
        shared, names, model = shared or Shared(), common_names(setup.model), with_common_names(setup.model)
        self._num_outputs, self._padded_outputs = setup.num_outputs, padded_outputs(task.kind, setup.num_outputs)
        self._pads = self._padded_outputs > self._num_outputs
        setup = dataclasses.replace(setup, model=model, num_outputs=self._padded_outputs)
        self._model, self._data, self._task, self._config = model, data, task, config
        self._seed, self._pad_id, self.mesh = seed, model.trunk.pad_id, mesh
        self.main_metric = task.main_metric
        self.shown_metrics: tuple[str, ...] = (task.main_metric,)
        num_epoch_steps = batches_per_epoch(len(data["train"]), config.batch_size)
        self.num_steps = config.num_steps(num_epoch_steps)
        self.eval_every = config.eval_every or num_epoch_steps
        trained, frozen = split_params(setup, self.from_checkpoint(renamed(params, names)))
        # A method that trains the trunk's layers may still freeze its pooler, which is not worth sharing.
        shares_trunk = not trains_layers(setup, frozen)
        self.frozen = shared_trunk(frozen, params["trunk"], mesh, shared) if shares_trunk else shard(frozen, mesh)
        passes = count_passes(setup, trained, frozen)
        self.lengths, self.estimate = plan_lengths(
            self, model.trunk, config, [data], lengths=lengths, train_passes=passes, common=True
        )
        # With rbg, the dropout masks of a run would depend on the other runs in the same step.
        self.shares_steps = shares_trunk and config.prng != "rbg"
        self.key = dropout_key(seed, config.prng, mesh)
        missing = self._padded_outputs - self._num_outputs
        self._class_weights = np.pad(class_loss.weights, (0, missing)) if class_loss else None
        key = (setup, without_inputs(config), task.kind, class_loss is None, mesh)
        optimizer = make_optimizer(config, trained)
        init = functools.partial(init_state, optimizer=optimizer)
        start = shared.once("init", key, lambda: jit_init(init, trained, mesh))(trained)
        smoothing = config.label_smoothing
        step = make_train_step(model, optimizer, task.kind, dropout=config.dropout, label_smoothing=smoothing)
        self.programs = shared.once("programs", key, lambda: _compile(step, model, start, mesh))
        self.compiled = self.programs.shapes
        # Checkpoints and results use the run's names.
        assert len(trained.get("adapters", {})) < 2, "renaming must not change the order of the leaves"
        named = renamed(trained, reversed_names(names))
        init = functools.partial(init_state, optimizer=make_optimizer(config, named))
        self._named_structure = jax.tree.structure(jax.eval_shape(init, named))
        self._common_structure, self._trained_structure = jax.tree.structure(start), jax.tree.structure(trained)
        self.start = self.with_names(start)

    def batches(self, step: int) -> Iterator[Batch]:
        batching = Batching(self._config.batch_size, self.lengths.train, self._pad_id)
        for batch in batches_from(step, self._data["train"], batching, self._seed, self.mesh):
            labels = pad_labels(self._task.kind, scale_labels(batch, self._task)["labels"], self._padded_outputs)
            yield {**batch, "labels": labels}

    def step(self, state: State, batch: Batch, learning_rate: float) -> tuple[State, dict[str, Any]]:
        inputs = step_inputs(batch, self._config.batch_size, self.mesh)
        settings, state = self.settings(learning_rate), self.without_names(state)
        new, scalars = run_step(self.programs.step, self.mesh, state, self.frozen, inputs, self.key, settings)
        return self.with_names(new), scalars

    def to_checkpoint(self, tree: Tree) -> Tree:
        return with_outputs(tree, self._num_outputs) if self._pads else tree

    def from_checkpoint(self, tree: Tree) -> Tree:
        return with_outputs(tree, self._padded_outputs) if self._pads else tree

    def without_names(self, state: State) -> State:
        """Replaces the run's names in a state with the common names used in ``programs``."""
        return jax.tree.unflatten(self._common_structure, jax.tree.leaves(state))

    def with_names(self, state: State) -> State:
        """Restores the run's names in a state from ``programs``."""
        return jax.tree.unflatten(self._named_structure, jax.tree.leaves(state))

    def settings(self, rate: float) -> StepSettings:
        """Returns the compiled step's settings for a learning rate."""
        return step_settings(self._config, rate, num_outputs=self._num_outputs, class_weights=self._class_weights)

    def evaluate(self, trained: Tree) -> dict[str, float]:
        trained = jax.tree.unflatten(self._trained_structure, jax.tree.leaves(trained))
        logits = over_rows(
            self.programs.eval_step,
            self._model.fold(merge(trained, self.frozen)),
            self._data["dev"],
            batching=Batching(self._config.batch_size, self.lengths.dev, self._pad_id),
            mesh=self.mesh,
        )
        if self._pads:
            logits = logits[..., : self._num_outputs]
        return dev_scores(logits, self._data["dev"], self._task)

    def train_rows(self, batch: Batch) -> list[int]:
        return self._data["train"].source_rows(batch["rows"])


@dataclasses.dataclass(frozen=True, eq=False)
class Programs:
    """The compiled functions of a run.

    Attributes:
      pure_step: The step before compilation.
      step: The compiled step; see :func:`run_step`.
      eval_step: The compiled evaluation step.
      shapes: The batch shapes that ``step`` has been compiled for; see ``Run.compiled``.
    """

    pure_step: TrainStep
    step: Any
    eval_step: Any
    shapes: set[tuple[tuple[int, ...], ...]] = dataclasses.field(default_factory=set)


def _compile(step: TrainStep, model: Model, state: State, mesh: Mesh) -> Programs:
    """Compiles the programs for states with the shapes and shardings of ``state``."""
    return Programs(step, jit_step(step, state, mesh), jit_eval_step(make_eval_step(model), mesh))
