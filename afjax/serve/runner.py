"""Runs the batches of a routed model on the device, with its banks and compiled programs."""

import functools
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from afjax.data.batches import Batch
from afjax.distributed.sharding import batch_sharding, replicated, shard_batch
from afjax.errors import UserError
from afjax.serve.bank import Bank
from afjax.serve.batching import RoutedBatch, num_fitting
from afjax.serve.program import Plan, all_outputs, attention_outputs, routed_outputs
from afjax.serve.requests import Sequences, ServedTask
from afjax.trees import Tree

# The kinds of programs: "rows" computes each row with its own task, "all" computes each row with several tasks, and
# "attention" computes each row's attention over adapters.
ProgramKind = Literal["rows", "all", "attention"]
_STEPS: Mapping[ProgramKind, Callable[..., Any]] = {
    "rows": routed_outputs,
    "all": all_outputs,
    "attention": attention_outputs,
}


class Runner:
    """Runs batches with the programs of a routed model.

    It has all that is on the device: the trunk, the entries of tasks in banks, and the compiled programs. Methods can
    be called from several threads.

    Attributes:
      num_places: The number of places of each bank.
      tasks_per_row: The number of tasks that a program of the kind "all" computes for each row.
    """

    def __init__(
        self, plan: Plan, trunk_params: Tree, banks: Sequence[Bank], mesh: Mesh, *, tasks_per_row: int
    ) -> None:
        """Makes a runner without programs.

        Args:
          plan: The static part of the programs.
          trunk_params: The trunk's parameters on the mesh, with a tree per layer.
          banks: The banks of adapters and fusions, and after them the banks of heads.
          mesh: The devices, which share the rows of a batch.
          tasks_per_row: The number of tasks that a program of the kind "all" computes for each row.
        """
        self._plan, self._trunk_params, self._banks, self._mesh = plan, trunk_params, tuple(banks), mesh
        # The numbers of places limit the tasks of a batch, because all entries of a batch are on the device at once.
        self.num_places = tuple(bank.places.num_places for bank in banks)
        self.tasks_per_row = tasks_per_row
        self._programs: dict[tuple[int, int, ProgramKind], Any] = {}
        self._lock = threading.Lock()

    def check(self, name: str, entries: Mapping[int, Tree]) -> None:
        """Raises UserError if a task's entries do not have their banks' shapes and dtypes.

        Args:
          name: The task's name.
          entries: The task's entry in each bank that it uses.
        """
        for number, entry in entries.items():
            self._banks[number].check(name, entry)

    def bytes_per_task(self, task: ServedTask) -> int:
        """Returns the memory of a task's entries on each device, in bytes."""
        return sum(self._banks[number].bytes_per_entry for number in task.entries)

    def params(self) -> Tree:
        """Returns the arrays of the programs, as :meth:`afjax.RoutedModel.params` does."""
        return {"trunk": self._trunk_params, "banks": [bank.arrays for bank in self._banks]}

    def place(self, tasks: Sequence[ServedTask | None]) -> list[list[int]]:
        """Copies the entries of tasks to the device.

        Args:
          tasks: The tasks. None uses no entry.

        Returns:
          The place of each task in all banks. It is 0 in banks that the task does not use.

        Raises:
          UserError: There are more tasks than places.
        """
        if num_fitting(tasks, self.num_places) < len(tasks):
            raise UserError(
                f"Not all of the {len(tasks)} tasks have a place on the device; make the model with a larger "
                "capacity.resident."
            )
        with self._lock:
            return self._place(tasks)

    def compile(self, batch_sizes: Iterable[int], lengths: Sequence[int], kinds: Sequence[ProgramKind]) -> None:
        """Compiles the programs of all of these batch sizes, padded lengths and kinds."""
        with self._lock:
            for batch_size in batch_sizes:
                for length in lengths:
                    for kind in kinds:
                        self._program(batch_size, length, kind)

    def run(
        self,
        parts: Sequence[Sequences],
        jobs: Iterable[tuple[RoutedBatch, Sequence[ServedTask | None]]],
        store: Callable[[RoutedBatch, Sequence[ServedTask | None], Any], None],
        *,
        kind: ProgramKind = "rows",
    ) -> None:
        """Computes batches.

        Args:
          parts: The sequences of the batches.
          jobs: Batches with their tasks: one task per row, or tasks for all of the rows if the kind is ``"all"``.
          store: Called with each batch, its tasks and the results on the host.
          kind: The kind of program.
        """
        under_way: list[tuple[RoutedBatch, Sequence[ServedTask | None], Any]] = []

        def fetch() -> None:
            batch, tasks, results = under_way.pop(0)
            store(batch, tasks, jax.device_get(results))

        for batch, tasks in jobs:
            inputs = batch.inputs(parts, self._plan.trunk.pad_id)
            with self._lock:
                under_way.append((batch, tasks, self._start(inputs, tasks, kind)))
            # Fetching one batch late lets the host build the next one while the device computes.
            if len(under_way) > 1:
                fetch()
        while under_way:
            fetch()

    def _start(self, inputs: Batch, tasks: Sequence[ServedTask | None], kind: ProgramKind) -> Any:
        """Starts a batch on the device, after copying the entries of its tasks there."""
        batch_size, length = inputs["tokens"].shape
        places = np.zeros((self.tasks_per_row if kind == "all" else batch_size, len(self._banks)), np.int32)
        places[: len(tasks)] = self._place(tasks)
        program = self._program(batch_size, length, kind)
        placed = jax.device_put(places, replicated(self._mesh) if kind == "all" else batch_sharding(self._mesh))
        return program(self.params(), shard_batch(inputs, batch_size, self._mesh), placed)

    def _place(self, tasks: Sequence[ServedTask | None]) -> list[list[int]]:
        """Copies the entries of tasks to the device, and returns each task's place in all banks.

        There must be room for all of the entries together.
        """
        places = [[0] * len(self._banks) for _ in tasks]
        for number, bank in enumerate(self._banks):
            bank.bring({task.number: task.entries[number] for task in tasks if task and number in task.entries})
            for row, task in enumerate(tasks):
                if task and number in task.entries:
                    places[row][number] = bank.places.place_of(task.number)
        return places

    def _program(self, batch_size: int, length: int, kind: ProgramKind) -> Any:
        """Returns the compiled program of a kind for a shape, and compiles it if necessary.

        Compiled programs are kept here, because a jitted function could compile again without notice.
        """
        shape = (batch_size, length, kind)
        if shape not in self._programs:
            by_rows, everywhere = batch_sharding(self._mesh), replicated(self._mesh)
            batch = {
                name: jax.ShapeDtypeStruct((batch_size, length), dtype, sharding=by_rows)
                for name, dtype in (("tokens", jnp.int32), ("types", jnp.int32), ("mask", jnp.bool_))
            }
            places = jax.ShapeDtypeStruct(
                (self.tasks_per_row if kind == "all" else batch_size, len(self._banks)),
                jnp.int32,
                sharding=everywhere if kind == "all" else by_rows,
            )
            step = functools.partial(_STEPS[kind], self._plan)
            run = jax.jit(step, out_shardings=everywhere)
            self._programs[shape] = run.lower(self.params(), batch, places).compile()
        return self._programs[shape]
