"""Runs a routed model's batches on the device."""

import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from afjax.serve.program import RoutedPlan, all_outputs, attention_outputs, routed_outputs
from afjax.serve.requests import Sequences, ServedTask
from afjax.trees import Tree

# The kinds of programs: "rows" runs each row with its own task, "all" runs each row with several tasks, and "attention"
# computes each row's attention over adapters.
ProgramKind = Literal["rows", "all", "attention"]
_STEPS: Mapping[ProgramKind, Callable[..., Any]] = {
    "rows": routed_outputs,
    "all": all_outputs,
    "attention": attention_outputs,
}


class Runner:
    """Runs a routed model's batches.

    The runner owns everything on the device: the trunk, the tasks' entries in banks, and the compiled programs. Its
    methods are thread-safe.

    Attributes:
      num_places: The number of places in each bank.
      tasks_per_row: The number of tasks that an "all" program computes for each row.
    """

    def __init__(
        self, plan: RoutedPlan, trunk_params: Tree, banks: Sequence[Bank], mesh: Mesh, *, tasks_per_row: int
    ) -> None:
        """Creates a runner without compiled programs.

        Args:
          plan: The static part of the programs.
          trunk_params: The trunk's parameters on the mesh, with one tree per layer.
          banks: The banks of adapters and fusions, followed by the banks of heads.
          mesh: The devices that a batch's rows are sharded across.
          tasks_per_row: The number of tasks that an "all" program computes for each row.
        """
        self._plan, self._trunk_params, self._banks, self._mesh = plan, trunk_params, tuple(banks), mesh
        # These limit the number of tasks in a batch, because all of a batch's entries are on the device at once.
        self.num_places = tuple(bank.places.num_places for bank in banks)
        self.tasks_per_row = tasks_per_row
        self._programs: dict[tuple[int, int, ProgramKind], Any] = {}
        self._lock = threading.Lock()

    def check(self, name: str, entries: Mapping[int, Tree]) -> None:
        """Raises UserError unless a task's entries match their banks' shapes and dtypes.

        Args:
          name: The task's name.
          entries: The task's entry in each bank that it uses.
        """
        for number, entry in entries.items():
            self._banks[number].check(name, entry)

    def bytes_per_task(self, task: ServedTask) -> int:
        """Computes the memory in bytes that a task's entries take on each device."""
        return sum(self._banks[number].bytes_per_entry for number in task.entries)

    def params(self) -> Tree:
        """Returns the programs' arrays; see :meth:`afjax.RoutedModel.params`."""
        return {"trunk": self._trunk_params, "banks": [bank.arrays for bank in self._banks]}

    def place(self, tasks: Sequence[ServedTask | None]) -> list[list[int]]:
        """Copies tasks' entries to the device.

        Args:
          tasks: The tasks. None has no entries.

        Returns:
          Each task's place in each bank, or 0 if the task does not use the bank.

        Raises:
          UserError: There are more tasks than places.
        """
        if num_fitting(tasks, self.num_places) < len(tasks):
            raise UserError(
                f"The {len(tasks)} tasks do not all fit on the device; create the model with a larger "
                "capacity.resident."
            )
        with self._lock:
            return self._place(tasks)

    def compile(self, batch_sizes: Iterable[int], lengths: Sequence[int], kinds: Sequence[ProgramKind]) -> None:
        """Compiles the programs for all combinations of batch size, length and kind."""
        with self._lock:
            for batch_size in batch_sizes:
                for length in lengths:
                    for kind in kinds:
                        self._program(batch_size, length, kind)

    def run(
        self,
        parts: Sequence[Sequences],
        jobs: Iterable[tuple[RoutedBatch, Sequence[ServedTask | None]]],
        kind: ProgramKind = "rows",
    ) -> Iterator[Any]:
        """Computes batches.

        Args:
          parts: The sequences of the batches.
          jobs: Batches with their tasks: one task per row or, for the kind ``"all"``, the tasks to run on all rows.
          kind: The kind of program.

        Yields:
          The results of each batch, on the host.
        """
        previous = None
        for batch, tasks in jobs:
            inputs = batch.inputs(parts, self._plan.trunk.pad_id)
            with self._lock:
                started = self._start(inputs, tasks, kind)
            # Results are fetched one batch late, so that the host builds the next batch while the device computes.
            if previous is not None:
                yield jax.device_get(previous)
            previous = started
        if previous is not None:
            yield jax.device_get(previous)

    def _start(self, inputs: Batch, tasks: Sequence[ServedTask | None], kind: ProgramKind) -> Any:
        """Copies the entries of a batch's tasks to the device, then starts the batch."""
        batch_size, length = inputs["tokens"].shape
        places = np.zeros((self.tasks_per_row if kind == "all" else batch_size, len(self._banks)), np.int32)
        places[: len(tasks)] = self._place(tasks)
        program = self._program(batch_size, length, kind)
        placed = jax.device_put(places, replicated(self._mesh) if kind == "all" else batch_sharding(self._mesh))
        return program(self.params(), shard_batch(inputs, batch_size, self._mesh), placed)

    def _place(self, tasks: Sequence[ServedTask | None]) -> list[list[int]]:
        """Copies tasks' entries to the device, and returns each task's places.

        All of the entries must fit at once.
        """
        places = [[0] * len(self._banks) for _ in tasks]
        for number, bank in enumerate(self._banks):
            bank.load({task.number: task.entries[number] for task in tasks if task and number in task.entries})
            for row, task in enumerate(tasks):
                if task and number in task.entries:
                    places[row][number] = bank.places.place_of(task.number)
        return places

    def _program(self, batch_size: int, length: int, kind: ProgramKind) -> Any:
        """Returns the compiled program of a kind for a shape, compiling it if necessary.

        Compiled programs are cached here, because a jitted function could silently recompile.
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
