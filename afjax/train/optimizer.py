"""The optimizer and the learning rate schedule.

The learning rate, the weight decay and the clipping threshold are inputs of the step, so runs that differ only in these
share one compiled program.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jaxtyping import Float, Int

from afjax.config.training import TrainConfig
from afjax.errors import UserError
from afjax.trees import LEAF_AXES, AnyArray, Tree, map_with_path


def learning_rate(config: TrainConfig, step: int, num_steps: int) -> float:
    """Computes the learning rate of a step.

    The rate rises linearly over the first ``warmup * num_steps`` steps, then decays linearly to zero. If
    ``config.decay_from`` is ``start``, it decays as if there had been no warm-up, so it drops when the warm-up ends.

    Args:
      config: The schedule. Its ``learning_rate`` must be set.
      step: The step, counted from 0. It cannot be traced.
      num_steps: The total number of steps.

    Returns:
      The learning rate of the step.

    Raises:
      UserError: The learning rate is not set.

    Example:
      >>> from afjax import TrainConfig, learning_rate
      >>> config = TrainConfig(learning_rate=1e-3, warmup=0.5)
      >>> [learning_rate(config, step, num_steps=4) for step in range(4)]
      [0.0, 0.0005, 0.001, 0.0005]
    """
    if config.learning_rate is None:
        raise UserError("The config has no learning_rate; set one, such as TrainConfig(learning_rate=1e-3).")
    warmup = round(config.warmup * num_steps)
    if config.decay_from == "warmup" or num_steps == 1:
        # The last step is not a part of the warm-up, so the rate reaches its peak, also in a run of one step.
        warmup = min(warmup, num_steps - 1)
    if step < warmup:
        return config.learning_rate * step / warmup
    begin = warmup if config.decay_from == "warmup" else 0
    return config.learning_rate * max(0.0, (num_steps - step) / (num_steps - begin))


class StepSettings(NamedTuple):
    """Settings passed to the compiled step as inputs.

    If one program computes a step for several runs, each run has its own settings.

    Attributes:
      learning_rate: The learning rate of the step.
      weight_decay: The weight decay.
      clip_norm: The maximum gradient norm. Not used if clipping is disabled.
      num_outputs: The head's number of outputs without padding (see :mod:`afjax.train.padded_heads`). None if the head
        is not padded.
      class_weights: The loss weight of each output of the head, ``[outputs]``. None for an unweighted loss.
    """

    learning_rate: Float[AnyArray, "*runs"]
    weight_decay: Float[AnyArray, "*runs"]
    clip_norm: Float[AnyArray, "*runs"]
    num_outputs: Int[AnyArray, "*runs"] | None = None
    class_weights: Float[AnyArray, "*runs outputs"] | None = None


def step_settings(
    config: TrainConfig,
    rate: float,
    *,
    num_outputs: int | None = None,
    class_weights: Float[AnyArray, "outputs"] | None = None,
) -> StepSettings:
    """Converts a step's settings to float32 and int32 arrays.

    Args:
      config: The weight decay and the maximum gradient norm.
      rate: The learning rate of the step.
      num_outputs, class_weights: See :class:`StepSettings`.
    """
    return StepSettings(
        learning_rate=np.asarray(rate, np.float32),
        weight_decay=np.asarray(config.weight_decay, np.float32),
        clip_norm=np.asarray(config.clip_norm, np.float32),
        num_outputs=None if num_outputs is None else np.asarray(num_outputs, np.int32),
        class_weights=None if class_weights is None else np.asarray(class_weights, np.float32),
    )


def without_inputs(config: TrainConfig) -> TrainConfig:
    """Resets all settings that the compiled step does not depend on to their defaults.

    The step receives them as :class:`StepSettings` or through batch shapes, or does not use them. The label smoothing,
    and whether gradients are clipped, are compiled into the step and therefore kept.
    """
    names = (
        *("learning_rate", "epochs", "max_steps", "warmup", "decay_from", "weight_decay"),
        *("batch_size", "max_length", "buckets"),
        *("eval_every", "patience", "checkpoint_every"),
        "class_weights",
    )
    defaults = TrainConfig()
    settings = {name: getattr(defaults, name) for name in names}
    return dataclasses.replace(config, **settings, clip_norm=defaults.clip_norm if config.clip_norm else 0.0)


def make_optimizer(config: TrainConfig, trained: Tree) -> optax.GradientTransformationExtraArgs:
    """Builds the optimizer: gradient clipping, then AdamW without a learning rate.

    The optimizer covers only the trained tree. Multiply its updates by the learning rate and subtract them from the
    leaves. Its ``update`` also accepts ``weight_decay`` and ``clip_norm``, which override the config's values.

    Args:
      config: Clipping, Adam's settings and the weight decay. The learning rate and the schedule are not used.
      trained: The trained tree. Only its paths are used.

    Returns:
      An optax transformation of gradients with the structure of ``trained``.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from afjax import TrainConfig, make_optimizer
      >>> trained = {"up": {"kernel": jnp.ones((2, 2)), "bias": jnp.zeros(2)}}
      >>> gradients = {"up": {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}}
      >>> optimizer = make_optimizer(TrainConfig(), trained)
      >>> updates, state = jax.jit(optimizer.update)(gradients, optimizer.init(trained), trained)
      >>> trained = jax.tree.map(lambda leaf, update: leaf - 1e-3 * update, trained, updates)
      >>> round(float(trained["up"]["bias"][0]), 6)
      -0.001

    Reference:
      Loshchilov & Hutter 2019, *Decoupled Weight Decay Regularization*, algorithm 2.
    """
    return optax.chain(make_clipping(config), make_adamw(config, trained))


def make_adamw(config: TrainConfig, trained: Tree) -> optax.GradientTransformationExtraArgs:
    """Builds AdamW without clipping or a learning rate.

    Its ``update`` also accepts ``weight_decay``, which overrides the config's value.

    Args:
      config: Adam's settings, and the weight decay.
      trained: The trained tree. Only its paths are used.
    """

    scale_by_adam = optax.scale_by_adam if config.adam_bias_correction else scale_by_uncorrected_adam

    def adamw(decay: optax.GradientTransformation) -> optax.GradientTransformation:
        return optax.chain(scale_by_adam(b1=config.adam_b1, b2=config.adam_b2, eps=config.adam_epsilon), decay)

    labels = map_with_path(lambda path, _: "kernel" if decays(path, config) else "other", trained)
    kernel, other = add_decayed_weights(config.weight_decay), optax.add_decayed_weights(0.0)
    return optax.partition({"kernel": adamw(kernel), "other": adamw(other)}, labels)


def add_decayed_weights(weight_decay: float) -> optax.GradientTransformationExtraArgs:
    """Builds ``optax.add_decayed_weights`` with an overridable ``weight_decay``.

    Its ``update`` accepts ``weight_decay``.
    """

    def update(
        directions: optax.Updates,
        state: optax.EmptyState,
        params: Any = None,
        *,
        weight_decay: AnyArray | float = weight_decay,
        **_: Any,
    ) -> tuple[optax.Updates, optax.EmptyState]:
        return optax.add_decayed_weights(weight_decay).update(directions, state, params)

    return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)


def decays(path: str, config: TrainConfig) -> bool:
    """Whether weight decay applies to a leaf; see ``TrainConfig.weight_decay_on``."""
    *parents, name = path.split("/")
    if config.weight_decay_on == "kernels":
        return name == "kernel"
    if len(parents) > 1 and parents[0] in ("adapters", "fusion", "heads"):
        del parents[1]  # The user-chosen name.
    in_layer_norm = "layer_norms" in parents or any(parent.startswith("norm") for parent in parents[-1:])
    return name != "bias" and not in_layer_norm


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
    """Builds Adam without bias correction, as in BERT's original optimizer."""

    def init(params: optax.Params) -> optax.ScaleByAdamState:
        # The moments need separate buffers because steps donate them.
        mu, nu = jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)
        return optax.ScaleByAdamState(count=jnp.zeros((), jnp.int32), mu=mu, nu=nu)

    def update(
        gradients: optax.Updates, state: optax.ScaleByAdamState, _: Any = None
    ) -> tuple[optax.Updates, optax.ScaleByAdamState]:
        mu = jax.tree.map(lambda moment, gradient: b1 * moment + (1 - b1) * gradient, state.mu, gradients)
        nu = jax.tree.map(lambda moment, gradient: b2 * moment + (1 - b2) * gradient * gradient, state.nu, gradients)
        directions = jax.tree.map(lambda first, second: first / (jnp.sqrt(second) + eps), mu, nu)
        return directions, optax.ScaleByAdamState(count=state.count + 1, mu=mu, nu=nu)

    return optax.GradientTransformation(init, update)


def make_clipping(config: TrainConfig) -> optax.GradientTransformationExtraArgs:
    """Builds the gradient clipping selected in the config.

    Its ``update`` also accepts ``clip_norm``, which overrides the config's value unless clipping is disabled.
    """
    if not config.clip_norm:
        return optax.with_extra_args_support(optax.identity())
    clip = {"all": clip_by_global_norm, "tensor": clip_by_tensor_norm}[config.clip_by]

    def update(
        gradients: optax.Updates,
        state: Any,
        _: Any = None,
        *,
        clip_norm: AnyArray | float = config.clip_norm,
        **__: Any,
    ) -> tuple[optax.Updates, Any]:
        return clip(gradients, clip_norm), state

    return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)


def clip_by_global_norm(gradients: Tree, clip_norm: AnyArray | float) -> Tree:
    """Clips by the global norm, like optax, but computes the scaling factor once.

    optax divides every entry, which takes an additional pass over memory.
    """
    factor = _clip_factor(optax.tree.norm(gradients), clip_norm)
    return jax.tree.map(lambda gradient: gradient * factor.astype(gradient.dtype), gradients)


def clip_by_tensor_norm(gradients: Tree, clip_norm: AnyArray | float) -> Tree:
    """Clips each tensor by its own norm.

    In a stacked leaf, each layer's (and task's) slice is clipped separately. A leaf with a name that afjax does not use
    is one tensor.
    """

    def clip(path: tuple[Any, ...], gradient: Array) -> Array:
        axes = tuple(range(-LEAF_AXES.get(getattr(path[-1], "key", ""), gradient.ndim), 0))
        norm = jnp.sqrt(jnp.square(gradient).sum(axes, keepdims=True))
        return gradient * _clip_factor(norm, clip_norm).astype(gradient.dtype)

    return jax.tree_util.tree_map_with_path(clip, gradients)


def _clip_factor(norm: Array, clip_norm: AnyArray | float) -> Array:
    return jnp.where(norm < clip_norm, 1.0, clip_norm / norm)
