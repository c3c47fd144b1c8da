"""One training step and one evaluation step, as pure functions to be compiled.

The learning rate is an input of the step: runs that differ in it alone share one compiled program.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.sharding import Mesh

from afjax.config.tasks import TaskKind
from afjax.config.training import TrainConfig
from afjax.distributed.sharding import place, tree_sharding, whole
from afjax.model.model import Model
from afjax.tasks.class_loss import ClassLoss, weighted_cross_entropy
from afjax.trees import Tree, map_with_path, merge, named_key, num_axes

Batch = Mapping[str, Any]
# {"trained": tree, "optimizer": optax state, "step": int32, "failed": bool}
State = dict[str, Any]


def learning_rate(config: TrainConfig, step: int, num_steps: int) -> float:
    """The rate of step 0, 1, ...: linear warm-up over ``warmup * num_steps`` steps, then linear decay to zero."""
    assert config.learning_rate is not None, "recipes call TrainConfig.with_rate"
    warmup = round(config.warmup * num_steps)
    if step < warmup:
        return config.learning_rate * step / warmup
    begin = warmup if config.decay_from == "warmup" else 0
    return config.learning_rate * max(0.0, (num_steps - step) / (num_steps - begin))


def make_optimizer(config: TrainConfig, trained: Tree) -> optax.GradientTransformation:
    """Clipping and AdamW's direction, without the learning rate.

    It is made for the trained tree and never meets a frozen leaf.
    """
    return optax.chain(make_clipping(config), make_adamw(config, trained))


def make_adamw(config: TrainConfig, trained: Tree) -> optax.GradientTransformation:
    """AdamW's direction, without clipping and the learning rate.

    Args:
      config: Adam's settings, and which leaves decay.
      trained: The trained tree; only its paths are used.
    """

    scale_by_adam = optax.scale_by_adam if config.adam_bias_correction else scale_by_uncorrected_adam

    def adamw(weight_decay: float) -> optax.GradientTransformation:
        return optax.chain(
            scale_by_adam(b1=config.adam_b1, b2=config.adam_b2, eps=config.adam_epsilon),
            optax.add_decayed_weights(weight_decay),
        )

    labels = map_with_path(lambda path, _: "kernel" if decays(path, config) else "other", trained)
    return optax.partition({"kernel": adamw(config.weight_decay), "other": adamw(0.0)}, labels)


def decays(path: str, config: TrainConfig) -> bool:
    """Whether weight decay acts on the leaf of a path, see ``TrainConfig.weight_decay_on``."""
    *parents, name = path.split("/")
    if config.weight_decay_on == "kernels":
        return name == "kernel"
    in_layer_norm = "layer_norms" in parents or parents[-1].startswith("norm")
    return name != "bias" and not in_layer_norm


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """optax's Adam without the correction of the moments for their start at zero, as BERT's own optimizer has it."""

    def init(params: optax.Params) -> optax.ScaleByAdamState:
        # Buffers of their own: steps donate them.
        mu, nu = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.zeros((), jnp.int32), mu=mu, nu=nu)

    def update(
        gradients: optax.Updates, state: optax.ScaleByAdamState, _: Any = None
    ) -> tuple[optax.Updates, optax.ScaleByAdamState]:
        mu = jax.tree.map(lambda moment, by: b1 * moment + (1 - b1) * by, state.mu, gradients)
        nu = jax.tree.map(lambda moment, by: b2 * moment + (1 - b2) * by * by, state.nu, gradients)
        directions = jax.tree.map(lambda first, second: first / (jnp.sqrt(second) + eps), mu, nu)
        return directions, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def make_clipping(config: TrainConfig) -> optax.GradientTransformation:
    """What the config says of clipping gradients."""
    if not config.clip_norm:
        return optax.identity()
    return {"all": clip_by_global_norm, "tensor": clip_by_tensor_norm}[config.clip_by](config.clip_norm)


def clip_by_global_norm(clip_norm: float) -> optax.GradientTransformation:
    """optax's, but with one factor for all: a division at every entry would be a pass over memory of its own."""

    def update(gradients: optax.Updates, state: Any, _: Any = None) -> tuple[optax.Updates, Any]:
        norm = optax.tree.norm(gradients)
        factor = jnp.where(norm < clip_norm, 1.0, clip_norm / norm)
        return jax.tree.map(lambda gradient: gradient * factor.astype(gradient.dtype), gradients), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def clip_by_tensor_norm(clip_norm: float) -> optax.GradientTransformation:
    """Clips each tensor by its own norm; of stacked leaves each layer's (and each task's) slice is a tensor."""

    def clip(name: str, gradient: Array) -> Array:
        axes = tuple(range(-num_axes(name), 0))
        norm = jnp.sqrt(jnp.square(gradient).sum(axes, keepdims=True))
        return gradient * jnp.where(norm < clip_norm, 1.0, clip_norm / norm).astype(gradient.dtype)

    def update(gradients: optax.Updates, state: Any, _: Any = None) -> tuple[optax.Updates, Any]:
        names = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key, gradients)
        return jax.tree.map(clip, names, gradients), state

    return optax.GradientTransformation(lambda _: optax.EmptyState(), update)


def task_loss(logits: Array, batch: Batch, kind: TaskKind, class_loss: ClassLoss | None = None) -> Array:
    """The weighted mean over rows of the cross-entropy, or of the squared error.

    Args:
      logits: ``[batch, num_outputs]``; of span ``[batch, length, 2]``, whose loss is the mean of the cross-entropies of
        the answer's first and last token among the row's tokens.
      batch: ``labels``, int32 ``[batch]`` classes or choices, int32 ``[batch, 2]`` tokens, or float ``[batch]`` values;
        ``weights``, float ``[batch]``, where rows of weight zero count for nothing; and ``mask``.
      kind: The task's kind.
      class_loss: Class weights and label smoothing of a classification task; see :func:`weighted_cross_entropy`.
    """
    labels, weights = batch["labels"], batch["weights"]
    if class_loss is not None:
        assert kind == "classification", kind
        return weighted_cross_entropy(logits, labels, weights, class_loss.weights, class_loss.label_smoothing)
    if kind == "regression":
        losses = jnp.square(logits[:, 0] - labels)
    elif kind == "span":
        there = jnp.where(batch["mask"][..., None], logits, jnp.finfo(logits.dtype).min)
        losses = optax.softmax_cross_entropy_with_integer_labels(there, labels, axis=1).mean(-1)
    else:
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    return (losses * weights).sum() / jnp.maximum(weights.sum(), 1.0)


def init_state(trained: Tree, optimizer: optax.GradientTransformation) -> State:
    """The state in front of the first step."""
    return {
        "trained": trained,
        "optimizer": optimizer.init(trained),
        "step": jnp.zeros((), jnp.int32),
        "failed": jnp.zeros((), bool),
    }


def place_state(init: Callable[[Tree], State], trained: Tree, mesh: Mesh) -> State:
    """The state that ``init`` makes of a trained tree, on the mesh: each device makes its own part."""
    placed = place(trained, mesh)

    def rest(tree: Tree) -> State:
        return {name: part for name, part in init(tree).items() if name != "trained"}

    shardings = tree_sharding(jax.eval_shape(rest, placed), mesh)
    return {**jax.jit(rest, out_shardings=shardings)(placed), "trained": placed}


TrainStep = Callable[[State, Tree, Batch, Array, Any], tuple[State, dict[str, Array]]]


def make_train_step(
    model: Model,
    optimizer: optax.GradientTransformation,
    kind: TaskKind,
    *,
    dropout: bool,
    class_loss: ClassLoss | None = None,
) -> TrainStep:
    """Makes ``step(state, frozen, batch, key, learning_rate) -> (state, metrics)``.

    Each step's dropout follows from the key and the step's number. The metrics are the scalars ``loss`` (the task's,
    plus the model's penalty), ``gradient_norm`` (of the trained leaves) and ``failed``. From the first step on whose
    loss or gradients are not finite, the state is not changed. See :func:`task_loss` for ``class_loss``.
    """

    def step(
        state: State, frozen: Tree, batch: Batch, key: Array, learning_rate: Array
    ) -> tuple[State, dict[str, Array]]:
        step_key = jax.random.fold_in(key, state["step"]) if dropout else None

        def loss_fn(trained: Tree) -> Array:
            params = merge(trained, frozen)
            logits = model(params, batch, key=step_key).logits
            return task_loss(logits, batch, kind, class_loss) + model.penalty(params)

        loss, gradients = jax.value_and_grad(loss_fn)(state["trained"])
        norm = optax.tree.norm(gradients)
        directions, optimizer_state = optimizer.update(gradients, state["optimizer"], state["trained"])
        trained = descend(state["trained"], directions, learning_rate)
        failed = state["failed"] | ~(jnp.isfinite(loss) & jnp.isfinite(norm))
        new = {"trained": trained, "optimizer": optimizer_state, "step": state["step"] + 1}
        old = {name: state[name] for name in new}
        kept = keep_if(failed, old, new)
        return {**kept, "failed": failed}, {"loss": loss, "gradient_norm": norm, "failed": failed}

    return step


def descend(trained: Tree, directions: Tree, learning_rate: Array) -> Tree:
    """Goes from the trained leaves against the optimizer's directions."""
    return jax.tree.map(lambda leaf, by: leaf - (learning_rate * by).astype(leaf.dtype), trained, directions)


def keep_if(failed: Array, before: Any, after: Any) -> Any:
    """``before`` where a step has failed, else ``after``."""
    return jax.tree.map(lambda old, new: jnp.where(failed, old, new), before, after)


def jit_step(step: TrainStep, state: State, mesh: Mesh) -> Any:
    """Compiles a step, which then donates its state and leaves the next one where this one was.

    JAX's cache of compiled programs takes the names in a program's result for part of the program. The compiled one
    returns a list in place of the state's tree, so that a task's name does not make it compile anew.

    Returns:
      What ``jax.jit`` gives; its first result is to be unflattened (:func:`run_step`).
    """
    shardings = [leaf.sharding for leaf in jax.tree.leaves(state)]

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(shardings, whole(mesh)))
    def train_step(*inputs: Any) -> tuple[list[Array], dict[str, Array]]:
        new, scalars = step(*inputs)
        return jax.tree.leaves(new), scalars

    return train_step


def run_step(compiled: Any, mesh: Mesh, state: State, *inputs: Any) -> tuple[State, dict[str, Array]]:
    """Calls what :func:`jit_step` gave, with all that the step takes."""
    treedef = jax.tree.structure(state)
    with jax.set_mesh(mesh):
        leaves, scalars = compiled(state, *inputs)
    return jax.tree.unflatten(treedef, leaves), scalars


def dropout_key(seed: int, prng: str, mesh: Mesh) -> Array:
    """A run's key of dropout, on the mesh."""

    def make() -> Array:
        return named_key(jax.random.key(seed, impl=prng), "dropout")

    return jax.jit(make, out_shardings=whole(mesh))()


def make_eval_step(model: Model) -> Callable[[Tree, Batch], Array]:
    """Makes ``step(params, batch) -> logits``, those of the model, without dropout."""

    def step(params: Tree, batch: Batch) -> Array:
        return model(params, batch).logits

    return step
