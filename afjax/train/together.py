"""Trains several runs in one process.

Steps with the same compiled program and shapes are computed together (:mod:`afjax.train.stack`). Everything else, from
early stopping to checkpoints, works as in a single run.
"""

import contextlib
import dataclasses
import functools
import traceback
import types
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeGuard, TypeVar

from afjax.errors import PreemptionError, UserError, is_out_of_memory
from afjax.train.loop import Run, StepRequest, Training
from afjax.train.shared import Shared
from afjax.train.single_run import SingleRun
from afjax.train.stack import Stack
from afjax.train.step import SlotState, State, state_tree

T = TypeVar("T")


def run_together(
    trainings: Iterable[Training[T]],
    *,
    slots: int,
    shared: Shared,
    within: Callable[[int], contextlib.AbstractContextManager[Any]] | None = None,
    requested: Callable[[int, StepRequest], None] | None = None,
    ended: Callable[[int, T | Exception], None] | None = None,
) -> list[T | Exception]:
    """Trains several runs, and computes their steps together where possible.

    At most ``slots`` runs train at a time. When one ends, the next one starts. Each round computes the step that most
    runs wait for. A failed run does not affect the others, unless the failed step was computed for several runs. A
    step that fails on the device can also end runs with the same program that wait for another padded length.

    A run's results do not depend on the other runs. With one slot, they are bit-identical to a separate run's.

    Args:
      trainings: Trainings that have not begun and that all use ``shared``. Each is taken from the iterable when it
        starts.
      slots: The number of runs that train at a time, which is also the number of runs in a compiled step.
      shared: The values that the trainings share.
      within: Takes a training's number and returns a context manager, in which the training's code runs.
      requested: Called with a training's number and its request whenever it requests a step.
      ended: Called with a training's number and outcome when it ends.

    Returns:
      Each training's result, or the exception that ended it.

    Raises:
      PreemptionError: SIGTERM was received. All runs that were training have saved their state.
    """
    within = within or (lambda number: contextlib.nullcontext())
    requested, ended = requested or (lambda number, request: None), ended or (lambda number, outcome: None)
    queue = _Queue(iter(trainings), slots, shared, within, requested, ended)
    try:
        queue.run()
    finally:
        queue.close()
    return [queue.outcomes[number] for number in range(len(queue.begun))]


@dataclasses.dataclass
class _Queue(Generic[T]):
    """The trainings of :func:`run_together`, by number.

    Attributes:
      waiting, slots, shared, within, requested, ended: The arguments of :func:`run_together`.
      begun: The trainings that have begun.
      active: The step that each active training waits for.
      stacks: The stacks with the active runs' states.
      outcomes: The outcomes of the trainings that have ended.
      preempted: The error of a training that was stopped by SIGTERM.
    """

    waiting: Iterator[Training[T]]
    slots: int
    shared: Shared
    within: Callable[[int], contextlib.AbstractContextManager[Any]]
    requested: Callable[[int, StepRequest], None]
    ended: Callable[[int, T | Exception], None]
    begun: list[Training[T]] = dataclasses.field(default_factory=list)
    active: dict[int, StepRequest] = dataclasses.field(default_factory=dict)
    stacks: dict[Hashable, Stack] = dataclasses.field(default_factory=dict)
    outcomes: dict[int, T | Exception] = dataclasses.field(default_factory=dict)
    preempted: PreemptionError | None = None

    def run(self) -> None:
        while True:
            while len(self.active) < self.slots and not self.preempted:
                if (training := next(self.waiting, None)) is None:
                    break
                self.begun.append(training)
                self._advance(len(self.begun) - 1, functools.partial(next, training))
            if not self.active:
                break
            self._compute()
        if self.preempted:
            raise self.preempted

    def close(self) -> None:
        """Ends all trainings that have begun and not ended."""
        with contextlib.ExitStack() as stack:
            for training in self.begun:
                stack.callback(training.close)

    def _compute(self) -> None:
        """Computes the step that most active trainings wait for."""
        self._free_slots()
        groups: dict[Hashable, list[int]] = {}
        for number, request in self.active.items():
            groups.setdefault(_group(number, request, self.slots), []).append(number)
        # Ties go to the first group, so the choice does not depend on timing.
        numbers = max(groups.values(), key=len)
        requests = [self.active[number] for number in numbers]
        # Such a step always has all slots, even if only one run takes part.
        is_shared = _can_share(requests[0].run, self.slots)
        try:
            results = _step_together(requests, self.slots, self.shared, self.stacks)
        except Exception as error:  # The step fails to compile or runs out of memory.
            numbers = self._with_lost_runs(numbers)
            if is_shared and is_out_of_memory(error):
                error = _too_many_slots(error, self.slots)
            for number in numbers:
                self._advance(number, functools.partial(self.begun[number].throw, error))
        else:
            # The requests refer to earlier states.
            del requests
            for number, result in zip(numbers, results, strict=True):
                self._advance(number, functools.partial(self.begun[number].send, result))

    def _with_lost_runs(self, numbers: Sequence[int]) -> list[int]:
        """Adds the trainings whose states were lost in a failed step.

        A step that fails after it has started has donated the states of all runs in the stack.
        """
        run = self.active[numbers[0]].run
        stack = self.stacks.get(_stack_key(run)) if _can_share(run, self.slots) else None
        lost = {id(each) for each in stack.runs} if stack and stack.lost else set()
        return [number for number, request in self.active.items() if number in numbers or id(request.run) in lost]

    def _free_slots(self) -> None:
        """Frees the slots of runs that have ended, and drops stacks without runs."""
        training = {id(request.run) for request in self.active.values()}
        for stack in self.stacks.values():
            stack.free_except(training)
        self.stacks = {key: stack for key, stack in self.stacks.items() if any(stack.runs)}

    def _advance(self, number: int, proceed: Callable[[], StepRequest]) -> None:
        """Continues a training until it requests its next step or ends."""
        self.active.pop(number, None)
        outcome: T | Exception
        try:
            with self.within(number):
                request = proceed()
        except StopIteration as stop:
            outcome = stop.value
        except PreemptionError as error:
            self.preempted = error
            return
        except Exception as error:
            self.begun[number].close()
            # Otherwise, the error would keep the run's arrays in memory.
            for cause in _causes(error):
                cause.__traceback__ = _without_own_frames(cause.__traceback__)
                traceback.clear_frames(cause.__traceback__)
            outcome = error
        else:
            self.active[number] = request
            self.requested(number, request)
            return
        self.outcomes[number] = outcome
        self._free_slots()
        self.ended(number, outcome)


def _too_many_slots(error: Exception, slots: int) -> UserError:
    reason = str(error).partition("\n")[0]
    return UserError(
        f"The common step of {slots} runs does not fit into device memory ({reason}). Use fewer slots. For a TPU, "
        f"afjax tpu --slots={slots} reports how many fit."
    )


def _without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Removes this module's frames from a traceback.

    They are still running, so they cannot be cleared.
    """
    entries = [(entry.tb_frame, entry.tb_lasti, entry.tb_lineno) for entry in _entries(trace)]
    kept = None
    for frame, instruction, line in reversed(entries):
        if frame.f_code.co_filename != __file__:
            kept = types.TracebackType(kept, frame, instruction, line)
    return kept


def _entries(trace: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and the errors that it was raised from or while handling."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        cause = waiting.pop()
        if cause not in seen:
            seen.append(cause)
            yield cause
            waiting += [earlier for earlier in (cause.__cause__, cause.__context__) if earlier is not None]


def _can_share(run: Run, slots: int) -> TypeGuard[SingleRun]:
    """Whether a run's step can be computed together with other runs' steps."""
    return slots > 1 and isinstance(run, SingleRun) and run.shares_steps


def _stack_key(run: SingleRun) -> Hashable:
    """Returns a key that is equal for runs whose states can be stacked."""
    return run.programs, id(run.frozen["trunk"])


def _group(number: int, request: StepRequest, slots: int) -> Hashable:
    """Returns a key that is equal for requests whose steps can be computed together."""
    run = request.run
    if not _can_share(run, slots):
        return number
    shapes = tuple((name, array.shape, array.dtype) for name, array in sorted(request.batch.items()))
    return _stack_key(run), shapes


def _step_together(
    requests: Sequence[StepRequest], slots: int, shared: Shared, stacks: dict[Hashable, Stack]
) -> Sequence[tuple[State | SlotState, Mapping[str, Any]]]:
    """Computes the next step of all runs in a group."""
    first = requests[0].run
    if not _can_share(first, slots):
        [request] = requests
        return [first.step(state_tree(request.state), request.batch, request.learning_rate)]
    inputs = [
        (request.run, request.state, request.batch, request.learning_rate)
        for request in requests
        if _can_share(request.run, slots)
    ]
    key = _stack_key(first)
    if key not in stacks:
        once = functools.partial(shared.once, "step together", (first.programs, slots))
        stacks[key] = Stack(first, requests[0].state, slots, once)
    return stacks[key].step(inputs)
