"""Compiles a run's training and evaluation steps for devices that need not exist."""

import contextlib
import functools
import math
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh

from afjax.data.over_rows import jit_eval_step
from afjax.distributed.sharding import batch_sharding, replicated, stacked, tree_sharding
from afjax.tasks.kinds import TASK_KINDS
from afjax.tpu.plan import Plan
from afjax.train.multitask_step import (
    STEP_GROUPS,
    TaskTable,
    init_multitask_state,
    label_dtype,
    make_multitask_eval_step,
    make_multitask_step,
    stack_tasks,
)
from afjax.train.optimizer import make_optimizer, step_settings
from afjax.train.run_params import split_params, without_trunk
from afjax.train.stack import jit_step_together
from afjax.train.step import State, init_state, jit_step, make_eval_step, make_train_step
from afjax.trees import Tree, merge


def compile_train_step(plan: Plan, mesh: Mesh) -> tuple[jax.stages.Compiled, float]:
    """Compiles the training step.

    With several slots, this is the joint step of several runs.

    Args:
      plan: The run.
      mesh: The device mesh. Its devices need not exist: a description (:func:`afjax.tpu.chips.get_topology`) is enough.

    Returns:
      The compiled step, and the seconds spent tracing and compiling.
    """
    begin = time.perf_counter()
    state, frozen = step_shapes(plan, mesh)
    batch = _batch(plan, mesh, training=True)
    if plan.multitask:
        group = next(group for group in STEP_GROUPS if plan.kinds[0] in group)
        step = make_multitask_step(plan.model, plan.settings, TaskTable(plan.kinds, plan.outputs), state, group)
    else:
        optimizer = make_optimizer(plan.settings, state["trained"])
        step = make_train_step(plan.model, optimizer, plan.kinds[0], dropout=plan.settings.dropout)
    key = jax.eval_shape(lambda: jax.random.key(0, impl=plan.settings.prng))
    rate = jax.ShapeDtypeStruct((), jnp.float32)
    settings = rate if plan.multitask else jax.eval_shape(lambda: step_settings(plan.settings, 0.0, num_outputs=2))
    with jax.set_mesh(mesh):
        if plan.slots > 1:
            jitted = jit_step_together(step, state, mesh)
            per_run = (jax.tree.leaves(state), without_trunk(frozen), batch, _placed(key, replicated(mesh)))
            states, others, batches, keys = (_stacked(each, plan.slots) for each in per_run)
            active = jax.ShapeDtypeStruct((), bool)
            per_slot = (
                jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((plan.slots, *leaf.shape), leaf.dtype), each)
                for each in (settings, active)
            )
            inputs: Any = (states, frozen["trunk"], others, batches, keys, *per_slot)
        else:
            jitted = jit_step(step, state, mesh)
            inputs = (state, frozen, batch, *(_on_mesh(each, mesh) for each in (key, settings)))
        with no_compilation_cache():
            compiled = jitted.lower(*inputs).compile()
    return compiled, time.perf_counter() - begin


def compile_eval_step(plan: Plan, mesh: Mesh) -> tuple[jax.stages.Compiled, float]:
    """Compiles the evaluation step.

    Arguments and result are as in :func:`compile_train_step`.
    """
    begin = time.perf_counter()
    state, frozen = step_shapes(plan, mesh)
    batch = _batch(plan, mesh, training=False)
    if plan.multitask:
        task = _placed(jax.ShapeDtypeStruct((), jnp.int32), replicated(mesh))
        inputs: Any = {"trained": state["trained"], "frozen": frozen, "task": task}
        step: Any = make_multitask_eval_step(plan.model)
    else:
        folded = jax.eval_shape(plan.model.fold, merge(state["trained"], frozen))
        inputs, step = _on_mesh(folded, mesh), make_eval_step(plan.model)
    with jax.set_mesh(mesh), no_compilation_cache():
        compiled = jit_eval_step(step, mesh).lower(inputs, batch).compile()
    return compiled, time.perf_counter() - begin


@contextlib.contextmanager
def no_compilation_cache() -> Iterator[None]:
    """Disables JAX's persistent compilation cache.

    Without a TPU, JAX can write compiled TPU programs to the cache, but it cannot read them, and warns about each.
    """
    enabled = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    # JAX reads the setting when it compiles its first program, and then only after a reset.
    compilation_cache.reset_cache()
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def trained_bytes(plan: Plan, mesh: Mesh) -> int:
    """Computes the size of one step's gradients in bytes.

    A step in a multi-task run has gradients for the shared parameters and for one task's parameters.
    """
    trained = step_shapes(plan, mesh)[0]["trained"]
    if plan.multitask:
        task_bytes = [leaf.size // len(plan.kinds) * leaf.dtype.itemsize for leaf in jax.tree.leaves(trained["own"])]
        return sum(task_bytes) + sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trained["shared"]))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(trained))


def best_bytes(plan: Plan, mesh: Mesh) -> int:
    """Computes the size of one run's best parameters so far on one chip, in bytes.

    A run keeps this copy of its trained parameters in addition to its state.
    """
    leaves = jax.tree.leaves(step_shapes(plan, mesh)[0]["trained"])
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in leaves)


@functools.lru_cache(maxsize=4)
def step_shapes(plan: Plan, mesh: Mesh) -> tuple[State, Tree]:
    """Computes shapes and shardings of the initial state and frozen parameters."""
    params = plan.params()
    if plan.multitask:
        task_params = jax.eval_shape(stack_tasks, [plan.own(task) for task in range(len(plan.kinds))])
        params = {"trunk": params["trunk"], **task_params, "fusion": {}}
    trained, frozen = jax.eval_shape(functools.partial(split_params, plan.setup), params)
    if plan.multitask:
        shared = {"trunk": trained.pop("trunk")} if "trunk" in trained else {}
        init = functools.partial(init_multitask_state, config=plan.settings)
        state = jax.eval_shape(init, {"shared": shared, "own": trained})
    else:
        optimizer = make_optimizer(plan.settings, trained)
        state = jax.eval_shape(functools.partial(init_state, optimizer=optimizer), trained)
    return _on_mesh(state, mesh), _on_mesh(frozen, mesh)


def _batch(plan: Plan, mesh: Mesh, *, training: bool) -> dict[str, jax.ShapeDtypeStruct]:
    kind, rows = TASK_KINDS[plan.kinds[0]], plan.settings.batch_size
    # Assume four choices per multiple-choice row, as in HellaSwag and Cosmos QA.
    shape = (rows, 4, plan.length) if kind.has_choices else (rows, plan.length)
    batch = {
        "tokens": jax.ShapeDtypeStruct(shape, jnp.int32),
        "types": jax.ShapeDtypeStruct(shape, jnp.int32),
        "mask": jax.ShapeDtypeStruct(shape, bool),
    }
    if training:
        # In multi-task runs, class labels and regression targets have the same dtype so that they can share a program.
        label_shape = kind.label_shape(max(plan.outputs), plan.length)
        dtype = label_dtype(kind.name) if plan.multitask else kind.label_dtype
        batch["labels"] = jax.ShapeDtypeStruct((rows, *label_shape), dtype)
        batch["weights"] = jax.ShapeDtypeStruct((rows,), jnp.float32)
    placed = {name: _placed(array, batch_sharding(mesh)) for name, array in batch.items()}
    if training and plan.multitask:
        placed["task"] = _placed(jax.ShapeDtypeStruct((), jnp.int32), replicated(mesh))
    return placed


def _on_mesh(tree: Any, mesh: Mesh) -> Any:
    return jax.tree.map(_placed, tree, tree_sharding(tree, mesh))


def _stacked(tree: Any, slots: int) -> Any:
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((slots, *leaf.shape), leaf.dtype, sharding=stacked(leaf.sharding)), tree
    )


def _placed(shape: Any, sharding: jax.sharding.NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)
