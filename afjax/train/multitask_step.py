"""One multi-task training step.

The task's index is an input, so tasks whose batches have the same structure share one compiled program. Each task's own
leaves (its head, and its adapter if it has one) are stacked on a leading task axis. A step takes the drawn task's
slice, trains it together with the shared leaves, and puts it back. The slices of the other tasks, their Adam moments
and their Adam step counts do not change. A task's own leaves are therefore trained as if the steps of other tasks did
not exist, except that the learning rate follows the steps of the run. If gradients are clipped by their global norm,
the norm covers the shared leaves and the drawn task's own leaves. (In Stickland & Murray's code, whether momentum and
weight decay also change the other tasks' leaves depends on the PyTorch version.)
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int, PRNGKeyArray, Shaped

from afjax.config.tasks import TaskKind
from afjax.config.training import TrainConfig
from afjax.model.model import Model
from afjax.tasks.class_loss import ClassLoss
from afjax.tasks.kinds import TASK_KINDS
from afjax.train.loss import Batch, task_loss
from afjax.train.optimizer import make_adamw, make_clipping
from afjax.train.padded_heads import pad_labels
from afjax.train.step import State, TrainStep, descend, old_if_failed
from afjax.trees import AnyArray, Tree, flatten, merge, unflatten


@dataclasses.dataclass(frozen=True)
class TaskTable:
    """Static properties of the tasks, by task index.

    Attributes:
      kinds: Kind of each task.
      num_outputs: Number of outputs of each task's head. Stacked heads are padded to the widest.
      class_losses: Class weights and label smoothing of each task; empty if the run has none.
    """

    kinds: tuple[TaskKind, ...]
    num_outputs: tuple[int, ...]
    class_losses: tuple[ClassLoss, ...] = ()


def step_groups() -> list[tuple[TaskKind, ...]]:
    """Groups task kinds by the structure of their batches.

    Tasks in a group share one compiled program.
    """
    groups: dict[Any, list[TaskKind]] = {}
    for kind, spec in TASK_KINDS.items():
        groups.setdefault((spec.reads, spec.has_choices, spec.label_axes), []).append(kind)
    return [tuple(group) for group in groups.values()]


STEP_GROUPS = step_groups()


def batch_labels(
    kind: TaskKind, labels: Shaped[np.ndarray, "batch *label"], num_outputs: int
) -> Shaped[np.ndarray, "batch *padded"]:
    """Pads and casts a batch's labels to the shape and dtype of the kind's group.

    Args:
      kind: The task's kind.
      labels: A batch's labels.
      num_outputs: The largest number of outputs of any task in the run.
    """
    return pad_labels(kind, labels, num_outputs).astype(label_dtype(kind))


def label_dtype(kind: TaskKind) -> str:
    """Returns the common label dtype of the kind's group.

    It is float32 if any kind in the group has float32 labels.
    """
    (group,) = (group for group in STEP_GROUPS if kind in group)
    return "float32" if any(TASK_KINDS[other].label_dtype == "float32" for other in group) else "int32"


def stack_tasks(trees: list[Tree]) -> Tree:
    """Stacks the tasks' trees along a leading axis.

    Output layers are padded with zeros to the widest. If only some heads have a pooler, the others get zeros.
    """
    flat = [flatten(tree) for tree in trees]

    def stack(path: str) -> Array:
        leaves = [leaves[path] for leaves in flat if path in leaves]
        widest = tuple(max(sizes) for sizes in zip(*(leaf.shape for leaf in leaves), strict=True))
        missing = jnp.zeros([0] * len(widest), leaves[0].dtype)
        return jnp.stack(
            [
                jnp.pad(leaf, [(0, largest - size) for size, largest in zip(leaf.shape, widest, strict=True)])
                for leaf in (leaves.get(path, missing) for leaves in flat)
            ]
        )

    return unflatten({path: stack(path) for path in sorted({path for leaves in flat for path in leaves})})


def trim_task(own: Tree, shapes: Tree) -> Tree:
    """Removes the padding of :func:`stack_tasks` from a task's slice.

    Args:
      own: A slice returned by :func:`take_task`.
      shapes: The task's tree before stacking, or its shapes.
    """
    leaves = flatten(own)
    return unflatten({path: leaves[path][tuple(map(slice, shape.shape))] for path, shape in flatten(shapes).items()})


def take_task(stacked: Tree, task: Int[AnyArray, ""] | int) -> Any:
    """Returns a task's slice of a stacked tree or of its optimizer state."""
    return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, task, keepdims=False), stacked)


def put_task(stacked: Tree, task: Int[AnyArray, ""], own: Any) -> Any:
    """Returns the stacked tree with a task's slice replaced."""
    return jax.tree.map(lambda leaf, part: jax.lax.dynamic_update_index_in_dim(leaf, part, task, 0), stacked, own)


def init_multitask_state(trained: Tree, config: TrainConfig) -> State:
    """Builds the state before the first step.

    Args:
      trained: ``{"shared": shared leaves, "own": each task's own leaves, stacked}``. ``shared`` may be empty.
      config: The optimizer's settings.
    """
    shared, task_params = trained["shared"], trained["own"]
    return {
        "trained": trained,
        "optimizer": {
            "shared": make_adamw(config, shared).init(shared),
            "own": jax.vmap(make_adamw(config, task_params).init)(task_params),
        },
        "step": jnp.zeros((), jnp.int32),
        "failed": jnp.zeros((), bool),
    }


def make_multitask_step(
    model: Model, config: TrainConfig, tasks: TaskTable, state: State, group: tuple[TaskKind, ...]
) -> TrainStep:
    """Builds a step like ``make_train_step``, for one task of several.

    The step is ``step(state, frozen, batch, key, learning_rate) -> (state, metrics)``. The batch also has ``task``, the
    drawn task's index as an int32 scalar.

    Args:
      model: The model of one task.
      config: The optimizer's settings, and whether to apply dropout.
      tasks: The tasks of the run.
      state: A state from :func:`init_multitask_state`. Only the structure of its trees is used.
      group: The task kinds that the step can train, one of :data:`STEP_GROUPS`.
    """
    shared_adamw = make_adamw(config, state["trained"]["shared"])
    own_adamw = make_adamw(config, state["trained"]["own"])
    clip = make_clipping(config)
    model_of_group = dataclasses.replace(model, reads=TASK_KINDS[group[0]].reads)

    def step(
        state: State, frozen: Tree, batch: Batch, key: PRNGKeyArray, learning_rate: Float[Array, ""]
    ) -> tuple[State, dict[str, Array]]:
        step_key = jax.random.fold_in(key, state["step"]) if config.dropout else None
        task, shared, stacked = batch["task"], state["trained"]["shared"], state["trained"]["own"]
        task_params, own_state = take_task(stacked, task), take_task(state["optimizer"]["own"], task)

        def loss_fn(trained: tuple[Tree, Tree]) -> Array:
            params = merge(*trained, frozen)
            logits = model_of_group(params, batch, key=step_key).logits
            return multitask_loss(logits, batch, tasks, group)

        loss, gradients = jax.value_and_grad(loss_fn)((shared, task_params))
        norm = optax.tree.norm(gradients)
        (shared_gradients, own_gradients), _ = clip.update(gradients, clip.init(gradients))
        shared_updates, shared_state = shared_adamw.update(shared_gradients, state["optimizer"]["shared"], shared)
        own_updates, new_own_state = own_adamw.update(own_gradients, own_state, task_params)
        failed = state["failed"] | ~(jnp.isfinite(loss) & jnp.isfinite(norm))
        new_own = descend(task_params, own_updates, learning_rate)
        new_own, new_own_state = old_if_failed(failed, (task_params, own_state), (new_own, new_own_state))
        before = (shared, state["optimizer"]["shared"], state["step"])
        after = (descend(shared, shared_updates, learning_rate), shared_state, state["step"] + 1)
        new_shared, shared_state, number = old_if_failed(failed, before, after)
        new = {
            "trained": {"shared": new_shared, "own": put_task(stacked, task, new_own)},
            "optimizer": {"shared": shared_state, "own": put_task(state["optimizer"]["own"], task, new_own_state)},
            "step": number,
            "failed": failed,
        }
        return new, {"loss": loss, "gradient_norm": norm, "failed": failed}

    return step


def multitask_loss(
    logits: Float[Array, "batch ..."], batch: Mapping[str, AnyArray], tasks: TaskTable, group: tuple[TaskKind, ...]
) -> Float[Array, ""]:
    """Computes ``task_loss`` for the batch's task, ignoring the padding of its head.

    Args:
      logits: ``[batch, max_outputs]``; for multiple choice ``[batch, choices]``; for span and tagging
        ``[batch, length, max_outputs]``. ``max_outputs`` is the largest number of outputs of any task.
      batch: ``task``; ``labels`` as returned by :func:`batch_labels`; ``weights``; ``mask``.
      tasks: The tasks' kinds, numbers of outputs and class losses.
      group: The possible kinds of the batch's task, one of :data:`STEP_GROUPS`.
    """
    num_outputs = jnp.asarray(tasks.num_outputs)[batch["task"]]
    if tasks.class_losses:
        # All tasks are classification tasks. The padding of narrower heads gets weight 0.
        weights = np.zeros((len(tasks.kinds), logits.shape[-1]))
        for row, class_loss in zip(weights, tasks.class_losses, strict=True):
            row[: len(class_loss.weights)] = class_loss.weights
        class_weights = jnp.asarray(weights, logits.dtype)[batch["task"]]
        class_loss = ClassLoss(class_weights, tasks.class_losses[0].label_smoothing)
        labels = batch["labels"].astype(TASK_KINDS["classification"].label_dtype)
        return task_loss(logits, {**batch, "labels": labels}, "classification", class_loss, num_outputs)

    def kind_loss(kind: TaskKind) -> Float[Array, ""]:
        labels = batch["labels"].astype(TASK_KINDS[kind].label_dtype)
        return task_loss(logits, {**batch, "labels": labels}, kind, num_outputs=num_outputs)

    first, *others = [kind for kind in group if kind in tasks.kinds]
    loss = kind_loss(first)
    for kind in others:
        is_kind = jnp.asarray([other == kind for other in tasks.kinds])[batch["task"]]
        loss = jnp.where(is_kind, kind_loss(kind), loss)
    return loss


def make_multitask_eval_step(model: Model) -> Callable[[Mapping[str, Any], Batch], Array]:
    """Builds ``step({"trained", "frozen", "task"}, batch) -> logits``.

    The step has no dropout. The logits are as wide as the widest head.
    """

    def step(inputs: Mapping[str, Any], batch: Batch) -> Array:
        trained = inputs["trained"]
        task_params = take_task(trained["own"], inputs["task"])
        return model(merge(trained["shared"], task_params, inputs["frozen"]), batch).logits

    return step
