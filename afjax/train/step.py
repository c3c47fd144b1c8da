"""The training step and the evaluation step, as pure functions to be compiled."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped, UInt32

from afjax.config.tasks import TaskKind
from afjax.distributed.sharding import replicated, shard, tree_sharding
from afjax.model.model import Model
from afjax.tasks.class_loss import ClassLoss
from afjax.train.loss import Batch, task_loss
from afjax.train.optimizer import StepSettings
from afjax.trees import AnyArray, Tree, merge, named_key

# {"trained": tree, "optimizer": optax state, "step": int32, "failed": bool}
State = dict[str, Any]


class SlotState:
    """A state that is stored among the states of other runs, until the run's next step.

    Args:
      read: Copies the state to arrays of its own.
    """

    def __init__(self, read: Callable[[], State]) -> None:
        self.read = read


def state_tree(state: State | SlotState) -> State:
    """Returns a state as a tree."""
    return state.read() if isinstance(state, SlotState) else state


def init_state(trained: Tree, optimizer: optax.GradientTransformation) -> State:
    """Builds the state before the first step."""
    return {
        "trained": trained,
        "optimizer": optimizer.init(trained),
        "step": jnp.zeros((), jnp.int32),
        "failed": jnp.zeros((), bool),
    }


def jit_init(init: Callable[[Tree], State], trained: Tree, mesh: Mesh) -> Callable[[Tree], State]:
    """Compiles ``init`` for trees like ``trained``.

    Returns:
      A function that copies a trained tree to the mesh and returns its state. Each device initializes its own part.
    """

    def rest(tree: Tree) -> State:
        return {name: part for name, part in init(tree).items() if name != "trained"}

    compiled = jax.jit(rest, out_shardings=tree_sharding(jax.eval_shape(rest, trained), mesh))

    def start(tree: Tree) -> State:
        placed = shard(tree, mesh)
        return {**compiled(placed), "trained": placed}

    return start


TrainStep = Callable[[State, Tree, Batch, Array, Any], tuple[State, dict[str, Array]]]


def make_train_step(
    model: Model,
    optimizer: optax.GradientTransformationExtraArgs,
    kind: TaskKind,
    *,
    dropout: bool,
    label_smoothing: float = 0.0,
) -> TrainStep:
    """Builds ``step(state, frozen, batch, key, settings) -> (state, metrics)``.

    The key and the step's number determine the dropout masks. The metrics are the scalars ``loss`` (the task loss plus
    the model's penalty), ``gradient_norm`` (over the trained leaves) and ``failed``. If the loss or a gradient is not
    finite, this step and all later steps fail: they change only ``failed`` in the state. Label smoothing only applies
    if the settings have class weights.
    """

    def step(
        state: State, frozen: Tree, batch: Batch, key: PRNGKeyArray, settings: StepSettings
    ) -> tuple[State, dict[str, Array]]:
        step_key = jax.random.fold_in(key, state["step"]) if dropout else None

        def loss_fn(trained: Tree) -> Array:
            params = merge(trained, frozen)
            logits = model(params, batch, key=step_key).logits
            weights = settings.class_weights
            class_loss = None if weights is None else ClassLoss(weights, label_smoothing)
            return task_loss(logits, batch, kind, class_loss, settings.num_outputs) + model.penalty(params)

        loss, gradients = jax.value_and_grad(loss_fn)(state["trained"])
        norm = optax.tree.norm(gradients)
        inputs = {"weight_decay": settings.weight_decay, "clip_norm": settings.clip_norm}
        directions, optimizer_state = optimizer.update(gradients, state["optimizer"], state["trained"], **inputs)
        trained = descend(state["trained"], directions, settings.learning_rate)
        failed = state["failed"] | ~(jnp.isfinite(loss) & jnp.isfinite(norm))
        new = {"trained": trained, "optimizer": optimizer_state, "step": state["step"] + 1}
        old = {name: state[name] for name in new}
        updated = old_if_failed(failed, old, new)
        return {**updated, "failed": failed}, {"loss": loss, "gradient_norm": norm, "failed": failed}

    return step


def descend(trained: Tree, directions: Tree, learning_rate: Float[AnyArray, ""]) -> Tree:
    """Subtracts the learning rate times the optimizer's directions from the leaves."""
    return jax.tree.map(
        lambda leaf, direction: leaf - (learning_rate * direction).astype(leaf.dtype), trained, directions
    )


def old_if_failed(failed: Bool[Array, ""], before: Any, after: Any) -> Any:
    """Returns ``before`` if a step has failed, else ``after``."""
    return jax.tree.map(lambda old, new: jnp.where(failed, old, new), before, after)


def jit_step(step: TrainStep, state: State, mesh: Mesh) -> Any:
    """Compiles a step that donates its state and keeps the state's sharding.

    The keys of JAX's compilation cache include the names in a program's result. The compiled function therefore returns
    a list instead of the state's tree, so that a new task name does not cause recompilation.

    Returns:
      The jitted function. Call it with :func:`run_step`, which unflattens its first result.
    """
    shardings = [leaf.sharding for leaf in jax.tree.leaves(state)]

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))
    def train_step(*inputs: Any) -> tuple[list[Array], dict[str, Array]]:
        new, scalars = step(*inputs)
        return jax.tree.leaves(new), scalars

    return train_step


def run_step(compiled: Any, mesh: Mesh, state: State, *inputs: Any) -> tuple[State, dict[str, Shaped[Array, ""]]]:
    """Calls a step compiled by :func:`jit_step` and unflattens the new state."""
    treedef = jax.tree.structure(state)
    with jax.set_mesh(mesh):
        leaves, scalars = compiled(state, *inputs)
    return jax.tree.unflatten(treedef, leaves), scalars


def dropout_key(seed: int, prng: str, mesh: Mesh) -> PRNGKeyArray:
    """Returns a run's dropout key, replicated on the mesh."""
    data = jax.random.key_data(named_key(jax.random.key(seed, impl=prng), "dropout"))
    return _replicated_key(np.asarray(data), prng, mesh)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _replicated_key(data: UInt32[Array, "words"], prng: str, mesh: Mesh) -> PRNGKeyArray:
    """Wraps a key's data. All runs with the same mesh use the same compiled program."""
    return jax.lax.with_sharding_constraint(jax.random.wrap_key_data(data, impl=prng), replicated(mesh))


def make_eval_step(model: Model) -> Callable[[Tree, Batch], Array]:
    """Builds ``step(params, batch) -> logits``, without dropout."""

    def step(params: Tree, batch: Batch) -> Array:
        return model(params, batch).logits

    return step
