"""One multi-task training step: a task's number is an input, so all tasks share one compiled program.

What every task has for itself (its head, and its adapter) is stacked on a leading task axis. A step takes the drawn
task's slice, trains it along with what all tasks share, and puts it back. The slices of the other tasks, their Adam
moments and Adam's count of steps are not touched: to a task's own leaves it is as if only its steps existed, but for
the learning rate, which follows the steps of the run. Gradients are clipped by the norm over the shared leaves and the
drawn task's own. (In the authors' code of Stickland & Murray 2019 it depends on the version of PyTorch whether momentum
and weight decay move the other tasks' leaves as well.)
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array

from afjax.config import TaskKind, TrainConfig
from afjax.model.model import Model
from afjax.train.step import Batch, State, TrainStep, clip_by_global_norm, descend, keep_if, make_adamw, task_loss
from afjax.trees import Tree, merge


@dataclasses.dataclass(frozen=True)
class TaskTable:
    """What a step has to know of the tasks, by their numbers (static).

    Attributes:
      kinds: Classification or regression.
      num_outputs: Of each task's head; the stacked heads have as many outputs as the widest.
    """

    kinds: tuple[TaskKind, ...]
    num_outputs: tuple[int, ...]


def stack_tasks(trees: list[Tree]) -> Tree:
    """Stacks the tasks' trees on a leading axis; output layers narrower than the widest are filled up with zeros."""

    def stack(*leaves: Array) -> Array:
        widest = tuple(max(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True))
        filled = [
            jnp.pad(leaf, [(0, most - size) for size, most in zip(leaf.shape, widest, strict=True)]) for leaf in leaves
        ]
        return jnp.stack(filled)

    return jax.tree.map(stack, *trees)


def take_task(stacked: Tree, task: Array | int) -> Any:
    """A task's slice of what :func:`stack_tasks` gave (or of a tree of optimizer state)."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, task, keepdims=False), stacked)


def put_task(stacked: Tree, task: Array, own: Any) -> Any:
    """The stacked tree with another slice of that task."""
    return jax.tree.map(lambda leaf, part: jax.lax.dynamic_update_index_in_dim(leaf, part, task, 0), stacked, own)


def init_multitask_state(shared: Tree, own: Tree, config: TrainConfig) -> State:
    """The state in front of the first step.

    Args:
      shared: The trained leaves that all tasks share; may be empty.
      own: Each task's own, stacked.
      config: The optimizer's settings.
    """
    first = jax.tree.map(lambda leaf: leaf[0], own)
    return {
        "trained": {"shared": shared, "own": own},
        "optimizer": {
            "shared": make_adamw(config, shared).init(shared),
            "own": jax.vmap(make_adamw(config, first).init)(own),
        },
        "step": jnp.zeros((), jnp.int32),
        "failed": jnp.zeros((), bool),
    }


def make_multitask_step(model: Model, config: TrainConfig, tasks: TaskTable, state: State) -> TrainStep:
    """Makes ``step(state, frozen, batch, key, learning_rate) -> (state, metrics)``, as ``make_train_step`` does.

    The batch also has ``task``, int32, the drawn task's number. The state is that of :func:`init_multitask_state`; the
    given one tells the trees' structure.
    """
    shared_adamw = make_adamw(config, state["trained"]["shared"])
    own_adamw = make_adamw(config, jax.tree.map(lambda leaf: leaf[0], state["trained"]["own"]))
    clip = clip_by_global_norm(config.clip_norm) if config.clip_norm else optax.identity()

    def step(
        state: State, frozen: Tree, batch: Batch, key: Array, learning_rate: Array
    ) -> tuple[State, dict[str, Array]]:
        step_key = jax.random.fold_in(key, state["step"]) if config.dropout else None
        task, shared, stacked = batch["task"], state["trained"]["shared"], state["trained"]["own"]
        own, own_state = take_task(stacked, task), take_task(state["optimizer"]["own"], task)

        def loss_fn(trained: tuple[Tree, Tree]) -> Array:
            params = merge(*trained, frozen)
            logits = model(params, batch, key=step_key).logits
            return multitask_loss(logits, batch, tasks)

        loss, gradients = jax.value_and_grad(loss_fn)((shared, own))
        norm = optax.tree.norm(gradients)
        (shared_gradients, own_gradients), _ = clip.update(gradients, clip.init(gradients))
        by, shared_state = shared_adamw.update(shared_gradients, state["optimizer"]["shared"], shared)
        own_by, new_own_state = own_adamw.update(own_gradients, own_state, own)
        failed = state["failed"] | ~(jnp.isfinite(loss) & jnp.isfinite(norm))
        new_own, new_own_state = keep_if(failed, (own, own_state), (descend(own, own_by, learning_rate), new_own_state))
        before = (shared, state["optimizer"]["shared"], state["step"])
        after = (descend(shared, by, learning_rate), shared_state, state["step"] + 1)
        new_shared, shared_state, number = keep_if(failed, before, after)
        new = {
            "trained": {"shared": new_shared, "own": put_task(stacked, task, new_own)},
            "optimizer": {
                "shared": shared_state,
                "own": put_task(state["optimizer"]["own"], task, new_own_state),
            },
            "step": number,
            "failed": failed,
        }
        return new, {"loss": loss, "gradient_norm": norm, "failed": failed}

    return step


def multitask_loss(logits: Array, batch: Mapping[str, Array], tasks: TaskTable) -> Array:
    """``task_loss`` of the batch's task, over the outputs that its head has.

    Args:
      logits: ``[batch, most outputs of any task]``.
      batch: ``task``; ``labels`` float32 ``[batch]``, classes or values; ``weights``.
      tasks: Kinds and numbers of outputs.
    """
    known = jnp.arange(logits.shape[-1])[None] < jnp.asarray(tasks.num_outputs)[batch["task"]]
    masked = jnp.where(known, logits, jnp.finfo(logits.dtype).min)
    labels, weights = batch["labels"], batch["weights"]
    losses: dict[str, Callable[[], Array]] = {
        "classification": lambda: task_loss(masked, labels.astype(jnp.int32), weights, "classification"),
        "regression": lambda: task_loss(logits, labels, weights, "regression"),
    }
    if len(set(tasks.kinds)) == 1:
        return losses[tasks.kinds[0]]()
    is_regression = jnp.asarray([kind == "regression" for kind in tasks.kinds])[batch["task"]]
    return jnp.where(is_regression, losses["regression"](), losses["classification"]())


def make_multitask_eval_step(model: Model) -> Callable[[Mapping[str, Any], Batch], Array]:
    """Makes ``step({"trained", "frozen", "task"}, batch) -> logits [batch, most outputs]``, without dropout."""

    def step(inputs: Mapping[str, Any], batch: Batch) -> Array:
        trained = inputs["trained"]
        own = take_task(trained["own"], inputs["task"])
        return model(merge(trained["shared"], own, inputs["frozen"]), batch).logits

    return step
