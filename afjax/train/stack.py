"""Computes the steps of several runs in one program.

The states of the runs stay stacked between steps. A state has about a hundred arrays, so passing each run's arrays
separately would take the host longer than a small step takes the device.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh
from jaxtyping import Bool

from afjax.data.batches import Batch
from afjax.distributed.sharding import batch_sharding, replicated, stacked, tree_sharding
from afjax.train.optimizer import StepSettings
from afjax.train.run_params import without_trunk
from afjax.train.single_run import SingleRun
from afjax.train.step import SlotState, State, TrainStep, state_tree
from afjax.train.task_batches import device_arrays
from afjax.trees import Tree, merge

Scalars = Mapping[str, Any]
# A run, its state, its batch and its learning rate.
StepInputs = tuple[SingleRun, State | SlotState, Batch, float]


def jit_step_together(pure_step: TrainStep, state: State, mesh: Mesh) -> Any:
    """Compiles one step for several runs with the same structure and shapes.

    Args:
      pure_step: The step of one run.
      state: The state of one run, or its shapes.
      mesh: The devices.

    Returns:
      The jitted ``step(states, trunk, frozen, batches, keys, settings, active)``. ``states`` is the list of the state's
      leaves and ``frozen`` is the frozen tree without the trunk. All leaves except the trunk's have a leading axis with
      one entry per run. The function returns the new ``states``, and the metrics with the same leading axis. Runs that
      are not ``active`` keep their state. The function donates ``states``.
    """
    structure = jax.tree.structure(state)
    shardings = [stacked(sharding) for sharding in jax.tree.leaves(tree_sharding(state, mesh))]

    def one_run(
        leaves: list[Array],
        trunk: Tree,
        frozen: Tree,
        batch: Any,
        key: Array,
        settings: StepSettings,
        active: Bool[Array, ""],
    ) -> tuple[list[Array], dict[str, Array]]:
        state = jax.tree.unflatten(structure, leaves)
        new, scalars = pure_step(state, merge({"trunk": trunk}, frozen), batch, key, settings)
        return [jnp.where(active, *pair) for pair in zip(jax.tree.leaves(new), leaves, strict=True)], scalars

    step = jax.vmap(one_run, in_axes=(0, None, 0, 0, 0, 0, 0))
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, replicated(mesh)))


@dataclasses.dataclass(frozen=True, eq=False)
class StackPrograms:
    """The compiled functions of a stack.

    Attributes:
      step: See :func:`jit_step_together`.
      fill: Makes a stack with the same values in each slot.
      set: Sets the values of a slot. Donates the stack.
      get: Returns the leaves of a slot's state.
    """

    step: Any
    fill: Any
    set: Any
    get: Any

    @classmethod
    def compile(cls, run: SingleRun, state: State, slots: int) -> "StackPrograms":
        """Compiles the functions for runs with the same programs."""
        mesh = run.mesh
        own = (
            jax.tree.leaves(tree_sharding(state, mesh)),
            tree_sharding(without_trunk(run.frozen), mesh),
            replicated(mesh),
        )
        placed = jax.tree.map(stacked, own)

        def fill(values: Any) -> Any:
            return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (slots, *leaf.shape)), values)

        def set_slot(stack: Any, values: Any, slot: Array) -> Any:
            return jax.tree.map(lambda leaf, value: leaf.at[slot].set(value), stack, values)

        def get_slot(states: list[Array], slot: Array) -> list[Array]:
            return [leaf[slot] for leaf in states]

        return cls(
            step=jit_step_together(run.programs.pure_step, state, mesh),
            fill=jax.jit(fill, out_shardings=placed),
            set=jax.jit(set_slot, donate_argnums=0, out_shardings=placed),
            get=jax.jit(get_slot, out_shardings=own[0]),
        )


class Stack:
    """The stacked states, frozen parameters and keys of runs with the same programs and trunk.

    Args:
      run: The first run.
      state: Its state.
      slots: The number of runs in a compiled step.
      once: Returns the compiled functions, given a function that compiles them.
    """

    def __init__(
        self,
        run: SingleRun,
        state: State | SlotState,
        slots: int,
        once: Callable[[Callable[[], StackPrograms]], StackPrograms],
    ) -> None:
        own = run.without_names(state_tree(state))
        self._programs = once(lambda: StackPrograms.compile(run, own, slots))
        # The states' leaves, the frozen trees and the keys. All slots begin with the first run's.
        with jax.set_mesh(run.mesh):
            self._arrays: tuple[list[Array], Tree, Array] = self._programs.fill(_values(run, own))
        self.runs = [run, *[None] * (slots - 1)]
        # The number of steps that each slot has computed.
        self._steps = [0] * slots

    @property
    def lost(self) -> bool:
        """Whether a failed step has donated the states."""
        return any(leaf.is_deleted() for leaf in self._arrays[0])

    def free_except(self, runs: Collection[int]) -> None:
        """Frees the slots of all runs except the given ones, which are identified by ``id``."""
        self.runs = [run if id(run) in runs else None for run in self.runs]

    def step(self, requests: Sequence[StepInputs]) -> list[tuple[SlotState, Scalars]]:
        """Computes a step of some runs. The others keep their state.

        A run without a slot gets a free one.

        Returns:
          Each run's new state and metrics, in the order of the requests.
        """
        slots = [self._slot(run, state) for run, state, _, _ in requests]
        by_slot = dict(zip(slots, requests, strict=True))
        # A slot without a request computes the first request's step, and discards it.
        inputs = [by_slot.get(slot, requests[0]) for slot in range(len(self.runs))]
        first = requests[0][0]
        states, frozen, keys = self._arrays
        batches = jax.tree.map(lambda *parts: np.stack(parts), *(device_arrays(batch) for _, _, batch, _ in inputs))
        settings = jax.tree.map(lambda *parts: np.stack(parts), *(run.settings(rate) for run, _, _, rate in inputs))
        active = np.array([slot in by_slot for slot in range(len(self.runs))])
        with jax.set_mesh(first.mesh):
            states, metrics = self._programs.step(
                states,
                first.frozen["trunk"],
                frozen,
                jax.device_put(batches, stacked(batch_sharding(first.mesh))),
                keys,
                settings,
                active,
            )
        self._arrays = (states, frozen, keys)
        # The metrics of all runs are fetched from the device together, on first use.
        fetch = functools.cache(functools.partial(jax.device_get, metrics))
        results: list[tuple[SlotState, Scalars]] = []
        for slot, (run, *_) in zip(slots, requests, strict=True):
            self._steps[slot] += 1
            read = functools.partial(self._read, slot, run, self._steps[slot])
            results.append((SlotState(read), _SlotMetrics(fetch, slot)))
        return results

    def _slot(self, run: SingleRun, state: State | SlotState) -> int:
        """Returns the slot of a run. A run without one is added."""
        for slot, each in enumerate(self.runs):
            if each is run:
                return slot
        slot = self.runs.index(None)
        values = _values(run, run.without_names(state_tree(state)))
        with jax.set_mesh(run.mesh):
            self._arrays = self._programs.set(self._arrays, values, slot)
        self.runs[slot] = run
        return slot

    def _read(self, slot: int, run: SingleRun, step: int) -> State:
        assert self.runs[slot] is run, "the run has left its slot"
        assert self._steps[slot] == step, "the run has computed another step"
        with jax.set_mesh(run.mesh):
            return run.with_names(self._programs.get(self._arrays[0], slot))


def _values(run: SingleRun, state: State) -> tuple[list[Array], Tree, Array]:
    """Returns the contents of a slot: the state's leaves, the frozen parameters and the key."""
    return jax.tree.leaves(state), without_trunk(run.frozen), run.key


class _SlotMetrics(Mapping[str, Any]):
    """The metrics of one run."""

    def __init__(self, fetch: Callable[[], Mapping[str, np.ndarray]], slot: int) -> None:
        self._fetch, self._slot = fetch, slot

    def __getitem__(self, name: str) -> Any:
        return self._fetch()[name][self._slot]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fetch())

    def __len__(self) -> int:
        return len(self._fetch())
