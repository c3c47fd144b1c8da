"""The training loop: one partition of one model on one task, resumable at any moment."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from afjax import metrics, partition
from afjax.config import TaskConfig, TrainConfig, TrunkDtype
from afjax.data.batches import batches_per_epoch, train_batches
from afjax.data.tokenise import TokenisedRows
from afjax.errors import UserError
from afjax.evaluate import over_rows
from afjax.model.encoder import cast_trunk, stack_layers, unstack_layers
from afjax.model.model import Model
from afjax.train.checkpoints import RunCheckpoints
from afjax.train.logs import RunLog
from afjax.train.step import (
    State,
    init_state,
    jit_step,
    learning_rate,
    make_eval_step,
    make_optimizer,
    make_train_step,
)
from afjax.trees import Tree, merge, named_key


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run leaves.

    Attributes:
      trained: The trained tree with the best dev metric, on the host.
      metrics: Every dev metric of that tree, and ``step``, the step it is from.
    """

    trained: Tree
    metrics: dict[str, float]


@dataclasses.dataclass
class _Progress:
    """Where a run is, beside its parameters; goes into checkpoints as JSON."""

    best: dict[str, float] = dataclasses.field(default_factory=dict)
    looks_since_best: int = 0
    stopped: bool = False


def train(
    model: Model,
    params: Tree,
    rules: tuple[partition.Rule, ...],
    data: dict[str, TokenisedRows],
    task: TaskConfig,
    config: TrainConfig,
    *,
    seed: int,
    folder: Path,
    title: str,
    pad_id: int,
    trunk_dtype: TrunkDtype,
) -> Trained:
    """Trains what the rules say, and keeps the parameters with the best dev metric.

    The same arguments on the same machine give the same bits, however often the run was killed and started again.

    Args:
      model: What to compute.
      params: The tree with four roots at the start.
      rules: What is trained.
      data: ``train`` and ``dev``.
      task: Its kind and main metric.
      config: Optimizer, schedule, batches.
      seed: Of the data's order and of dropout.
      folder: The run's own: checkpoints, ``metrics.jsonl``, TensorBoard files. A run that is found there goes on.
      title: For the progress bar.
      pad_id: The padding token.
      trunk_dtype: Of the trunk's frozen leaves.

    Raises:
      UserError: Not-finite loss, or a checkpoint that cannot be read or written.
      OSError: The folder cannot be written.
    """
    run = _Run(model, params, rules, data, task, config, seed, folder, pad_id, trunk_dtype)
    num_epoch_steps = batches_per_epoch(len(data["train"]), config.batch_size)
    num_steps = config.max_steps or max(1, math.ceil(config.epochs * num_epoch_steps))
    eval_every = config.eval_every or num_epoch_steps
    checkpoint_every = config.checkpoint_every or eval_every

    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = RunCheckpoints(folder / "checkpoints")
    state, best, progress = run.start, run.trained_at_start, _Progress()
    if (found := checkpoints.restore(state, best)) is not None:
        state, best, progress = found[0], found[1], _Progress(**found[2])
    step = int(state["step"])
    log = RunLog(folder, title, num_steps, step)
    pending: tuple[int, np.ndarray, float, Any] | None = None
    compiled: set[int] = set()

    def settle() -> None:
        """Waits for the step that is under way, logs it, and stops the run if it failed."""
        nonlocal pending
        if pending is not None:
            done, rows, rate, scalars = pending
            pending = None
            if bool(scalars["failed"]):
                raise _not_finite(done, rows, float(scalars["loss"]), state, folder)
            loss = float(scalars["loss"])
            log.advance(loss, rate)
            log.write(done, {"loss": loss, "gradient_norm": float(scalars["gradient_norm"]), "learning_rate": rate})

    with contextlib.closing(checkpoints), contextlib.closing(log):
        while step < num_steps and not progress.stopped:
            epoch, start = divmod(step, num_epoch_steps)
            for batch in run.batches(epoch, start):
                rate = learning_rate(config, step, num_steps)
                inputs: tuple[Any, ...] = (state, run.frozen, batch, run.key, np.float32(rate))
                if (length := batch["tokens"].shape[1]) in compiled:
                    # The next batch is built while the device is at work on this one.
                    state, scalars = run.step(*inputs)
                else:
                    with log.during(f"compiling for {length} tokens"):
                        state, scalars = run.step(*inputs)
                    compiled.add(length)
                settle()
                step += 1
                pending = (step, batch["rows"], rate, scalars)
                looking = step % eval_every == 0 or step == num_steps
                if looking:
                    settle()
                    scores = run.look(state["trained"])
                    log.write(step, {f"dev/{name}": value for name, value in scores.items()})
                    log.show(task.main_metric, scores[task.main_metric])
                    if not progress.best or scores[task.main_metric] > progress.best[task.main_metric]:
                        # A copy: the step donates the state's buffers.
                        best = jax.tree.map(lambda leaf: leaf.copy(), state["trained"])
                        progress = _Progress({**scores, "step": step})
                    else:
                        progress.looks_since_best += 1
                        progress.stopped = 0 < config.patience <= progress.looks_since_best
                if looking or step % checkpoint_every == 0:
                    settle()
                    log.flush()
                    checkpoints.save(step, state, best, dataclasses.asdict(progress))
                if step == num_steps or progress.stopped:
                    break
    kept = jax.tree.map(np.asarray, map_layers(best, stack_layers))
    return Trained(kept, progress.best)


class _Run:
    """The compiled pieces of a run and what they are fed with."""

    def __init__(
        self,
        model: Model,
        params: Tree,
        rules: tuple[partition.Rule, ...],
        data: dict[str, TokenisedRows],
        task: TaskConfig,
        config: TrainConfig,
        seed: int,
        folder: Path,
        pad_id: int,
        trunk_dtype: TrunkDtype,
    ) -> None:
        self._data, self._task, self._config, self._seed, self._pad_id = data, task, config, seed, pad_id
        self._lengths = config.lengths
        if not model.scan_layers:
            params = map_layers(params, unstack_layers)
        trained, frozen = partition.split(params, partition.label(params, rules))
        self._model = model
        if "trunk" in frozen:
            frozen = {**frozen, "trunk": cast_trunk(frozen["trunk"], trunk_dtype)}
        self.frozen = jax.tree.map(jax.numpy.asarray, frozen)
        # The step donates the state: it must own its buffers.
        self.trained_at_start = jax.tree.map(lambda leaf: jax.numpy.array(leaf, copy=True), trained)
        optimizer = make_optimizer(config, trained)
        self.start = init_state(jax.tree.map(lambda leaf: leaf.copy(), self.trained_at_start), optimizer)
        self.key = named_key(jax.random.key(seed, impl=config.prng), "dropout")
        self.step = jit_step(make_train_step(model, optimizer, task.kind, dropout=config.dropout), self.start)
        self._eval_step = jax.jit(make_eval_step(model))

    def batches(self, epoch: int, start: int) -> Any:
        return train_batches(
            self._data["train"],
            batch_size=self._config.batch_size,
            lengths=self._lengths,
            pad_id=self._pad_id,
            seed=self._seed,
            epoch=epoch,
            start=start,
        )

    def look(self, trained: Tree) -> dict[str, float]:
        """Every metric on the dev split."""
        logits = over_rows(
            self._eval_step,
            self._model.fold(merge(trained, self.frozen)),
            self._data["dev"],
            batch_size=self._config.batch_size,
            lengths=self._lengths,
            pad_id=self._pad_id,
        )
        labels = self._data["dev"].labels
        assert labels is not None, "load_task gives dev its labels"
        return metrics.scores(logits, labels, self._task.kind)


def map_layers(params: Tree, function: Callable[[Tree], Tree]) -> Tree:
    """Applies a function to the trunk's stacked (or unstacked) layers, where the tree has them."""
    trunk = params.get("trunk", {})
    layers = {name: function(tree) for name, tree in trunk.items() if name in ("layers", "top_layers")}
    return {**params, "trunk": {**trunk, **layers}} if layers else params


def _not_finite(step: int, rows: np.ndarray, loss: float, state: State, folder: Path) -> UserError:
    """Saves the state in front of the step that failed, and says so."""
    import orbax.checkpoint as ocp

    target = folder / f"not_finite_step_{step}"
    batch_rows = [int(row) for row in rows if row >= 0]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((target / "state").absolute(), state, force=True)
    report = target / "report.json"
    report.write_text(json.dumps({"step": step, "loss": repr(loss), "train_rows": batch_rows}, indent=1) + os.linesep)
    return UserError(
        f"The loss or a gradient stopped being finite at step {step} (loss {loss}); the batch's train rows and the "
        f"state in front of that step are in {target}: lower train.learning_rate, or look at those rows."
    )
