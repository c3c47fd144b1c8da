"""The training loop, which resumes bit-identically.

A :class:`Run` defines its steps and its evaluation. The loop is a generator that yields each step as a
:class:`StepRequest` and receives the result from its caller, so that one caller can train several runs and compute
their steps together. :func:`run_alone` is the caller for a single run.
"""

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Protocol, TypeVar

import jax
import numpy as np
from etils import epath
from jax.sharding import Mesh

from afjax.config.training import TrainConfig
from afjax.data.batches import Batch
from afjax.distributed.hosts import is_first_host, is_runtime_error
from afjax.distributed.notes import note
from afjax.distributed.preemption import Preemption
from afjax.errors import PreemptionError, UserError
from afjax.storage.paths import absolute
from afjax.storage.writing import write_json
from afjax.store.checkpoint import quiet_orbax, system_reason
from afjax.train.checkpoints import RunCheckpoints, shapes_of
from afjax.train.logs import RunLog, SilentLog
from afjax.train.optimizer import learning_rate
from afjax.train.progress import RunProgress, copy_tree
from afjax.train.record import CHECKPOINTS, SHAPES, check_record, folder_error, only_process
from afjax.train.step import SlotState, State, state_tree
from afjax.train.usage import Usage
from afjax.trees import Tree
from afjax.trunk.program_cost import RunSeconds


class Run(Protocol):
    """A run that the loop can train. Subclasses implement the methods that have no body here.

    Attributes:
      mesh: The devices.
      start: The state before the first step. The first step donates it, or copies it to a stack.
      num_steps: Total number of steps.
      eval_every: Steps between evaluations of the dev split.
      main_metric: The dev metric used for early stopping.
      shown_metrics: The metrics to print after an evaluation, including the main metric.
      compiled: The batch shapes that the step has been compiled for, as tuples with one shape per array.
      estimate: The estimated time of the run.
    """

    mesh: Mesh
    start: State
    num_steps: int
    eval_every: int
    main_metric: str
    shown_metrics: tuple[str, ...]
    compiled: set[tuple[tuple[int, ...], ...]]
    estimate: RunSeconds

    def batches(self, step: int) -> Iterator[Batch]:
        """Yields the batches of all steps from a step onwards."""
        ...

    def to_checkpoint(self, tree: Tree) -> Tree:
        """Converts a state or trained tree to checkpoint shapes, without head padding. By default, these are equal."""
        return tree

    def from_checkpoint(self, tree: Tree) -> Tree:
        """Converts a state or trained tree from checkpoint shapes to training shapes. By default, these are equal."""
        return tree

    def step(self, state: State, batch: Batch, learning_rate: float) -> tuple[State, dict[str, Any]]:
        """Runs one compiled step; see ``make_train_step``."""
        ...

    def evaluate(self, trained: Tree) -> dict[str, float]:
        """Computes all dev metrics of a trained tree."""
        ...

    def extra_metrics(self, batch: Batch) -> dict[str, float]:
        """Returns additional metrics of a batch for the log.

        Loss, gradient norm and learning rate are always logged.
        """
        return {}

    def train_rows(self, batch: Batch) -> list[int]:
        """Returns the indices of a batch's train rows, without padding and repetitions."""
        ...


@dataclasses.dataclass(frozen=True)
class LoopResult:
    """The result of a finished run.

    Attributes:
      trained: The trained tree with the best dev metric.
      metrics: All dev metrics of this tree, and ``step``, the number of steps before the evaluation.
    """

    trained: Tree
    metrics: dict[str, float]


@dataclasses.dataclass(frozen=True)
class StepRequest:
    """A step for the loop's caller to compute.

    Attributes:
      run: The run, whose method ``step`` computes the result.
      done: Number of finished steps.
      state, batch, learning_rate: The arguments of ``run.step``.
    """

    run: Run
    done: int
    state: State | SlotState
    batch: Batch
    learning_rate: float


T = TypeVar("T")
# Yields step requests, receives the results of ``run.step`` and returns a T. A device may still be computing a result
# when it is sent.
Training = Generator[StepRequest, tuple[State | SlotState, Mapping[str, Any]], T]


@dataclasses.dataclass(frozen=True)
class _PendingStep:
    """A step that the device is computing.

    Attributes:
      number: The number of finished steps once this step is done.
      batch: The step's batch.
      rate: The step's learning rate.
      scalars: The step's metrics, which may still be computing.
      stop: The result of ``Preemption.ask`` after the step was requested.
    """

    number: int
    batch: Batch
    rate: float
    scalars: Mapping[str, Any]
    stop: Any


def run_alone(training: Training[T]) -> T:
    """Runs a single training to its end and returns its result."""
    with contextlib.closing(training):
        try:
            request = next(training)
            while True:
                try:
                    done = request.run.step(state_tree(request.state), request.batch, request.learning_rate)
                except BaseException as error:
                    # Raise the error where the step was requested, so that the training can handle it.
                    request = training.throw(error)
                else:
                    request = training.send(done)
        except StopIteration as stop:
            return stop.value


def run_loop(
    run: Run, config: TrainConfig, *, inputs: Mapping[str, str], folder: epath.Path, title: str
) -> Training[LoopResult]:
    """Trains a run and keeps the parameters with the best dev metric.

    The same arguments on the same machine give bit-identical results, however often the run is killed and resumed. All
    hosts call this with the same arguments; only the first host logs.

    Args:
      run: The run to train.
      config: The schedule, patience and checkpoint interval.
      inputs: ``{name: digest}`` of the run's inputs, from ``claim_run``. Checkpoints with different inputs raise an
        error.
      folder: The run's folder, for checkpoints, ``metrics.jsonl``, TensorBoard files and ``usage.json``. An unfinished
        run in it is resumed.
      title: The run's name in the progress bar and in messages.

    Raises:
      UserError: The loss or a gradient is not finite, a checkpoint cannot be read or belongs to a different run, or the
        folder cannot be written.
      PreemptionError: A host received SIGTERM. The last checkpoint contains every finished step.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with only_process(folder) as check_folder:
            check_record(folder, inputs)
            return (yield from _Loop(run, config, inputs, folder, title, check_folder).train())
    except BrokenPipeError:  # The program that reads the output has exited. The folder is fine.
        raise
    except OSError as error:
        raise folder_error(folder, error) from error


class _Loop:
    """The loop of :func:`run_loop`. The caller holds the folder's lock."""

    def __init__(
        self,
        run: Run,
        config: TrainConfig,
        inputs: Mapping[str, str],
        folder: epath.Path,
        title: str,
        check_folder: Callable[[], None],
    ) -> None:
        # Drop the run's reference to its initial state; otherwise a resumed run would hold two states in memory.
        state, run.start = run.start, {}
        self.run, self.config, self.folder, self.title, self.check_folder = run, config, folder, title, check_folder
        self.checkpoint_every = config.checkpoint_every or run.eval_every
        self.progress = RunProgress(run.main_metric, config.patience, copy_tree(state["trained"]))
        digest = _shapes_digest(run.to_checkpoint(state))
        self.checkpoints = RunCheckpoints(folder / CHECKPOINTS, {**inputs, SHAPES: digest})
        self.state: State | SlotState = state
        self.step = 0
        self.pending: _PendingStep | None = None
        self.preempted = False

    def train(self) -> Training[LoopResult]:
        """Runs all remaining steps."""
        with self.checkpoints:
            self._restore()
            return (yield from self._train())

    def _restore(self) -> None:
        """Restores the newest checkpoint, if there is one."""
        if self.checkpoints.latest_step() is None:
            return
        run, progress = self.run, self.progress
        state, best = map(shapes_of, self._checkpoint())
        # Drop the initial values, so that the devices do not hold two states.
        self.state = progress.best_params = {}
        saved_state, saved_best, values = self.checkpoints.restore(state, best)
        self.state = run.from_checkpoint(saved_state)
        progress.restore(values, run.from_checkpoint(saved_best), str(self.folder / CHECKPOINTS))
        self.step = int(self.state["step"])

    def _checkpoint(self) -> tuple[Tree, Tree]:
        """Returns the state and the best parameters in the form of a checkpoint."""
        return self.run.to_checkpoint(state_tree(self.state)), self.run.to_checkpoint(self.progress.best_params)

    def _train(self) -> Training[LoopResult]:
        run, progress = self.run, self.progress
        if self.finished:
            note(
                f"The run {self.title} in {self.folder} has already finished ({run.main_metric} "
                f"{progress.best_scores[run.main_metric]:.4f}). To train again, choose another workdir (in Python, "
                "overwrite=True in RunOptions also does)."
            )
        logs = is_first_host() and not self.finished
        self.log = RunLog(self.folder, self.title, run.num_steps, self.step) if logs else SilentLog()
        if self.step:
            self.log.say(f"resumes after step {self.step:,} of {run.num_steps:,}")
        self.usage = Usage(self.folder, self.step)
        with contextlib.closing(self.log), Preemption(run.mesh) as self.preemption:
            batches = run.batches(self.step)
            while not (self.finished or self.preempted):
                yield from self._start_step(next(batches))
                evaluates = self.step % run.eval_every == 0 or self.step == run.num_steps
                if evaluates:
                    self._finish_pending_step()
                    self._evaluate()
                if evaluates or self.step % self.checkpoint_every == 0:
                    self._save()
            self._save()
            with self._in_place():
                self.checkpoints.wait()
            if self.finished:
                self.log.finished()
            if self.preempted or self.preemption.answer(self.preemption.ask()):
                raise PreemptionError(
                    f"{self.title} was stopped by SIGTERM and saved its state after step {self.step:,} of "
                    f"{run.num_steps:,}. Run the same command again to resume."
                )
        if not isinstance(self.state, SlotState):
            # Free device memory even if the caller keeps a reference to the last state.
            for leaf in jax.tree.leaves(self.state):
                leaf.delete()
        return LoopResult(run.to_checkpoint(progress.best_params), progress.best_scores)

    @property
    def finished(self) -> bool:
        return self.step >= self.run.num_steps or self.progress.stopped

    def _start_step(self, batch: Batch) -> Training[None]:
        """Requests a step, then finishes the previous step.

        The caller sends the result before the device has computed it, so the host can build the next batch meanwhile.
        """
        rate = learning_rate(self.config, self.step, self.run.num_steps)
        request = StepRequest(self.run, self.step, self.state, batch, rate)
        # Tasks of different kinds have programs of their own. Most differ in the shapes of their labels.
        shapes = tuple(np.shape(batch[name]) for name in sorted(batch))
        if shapes in self.run.compiled:
            self.state, scalars = yield request
        else:
            with self.log.compiling(f"for {batch['tokens'].shape[-1]} tokens"):
                self.state, scalars = yield request
            self.run.compiled.add(shapes)
        self._finish_pending_step()
        self.step += 1
        self.pending = _PendingStep(self.step, batch, rate, scalars, self.preemption.ask())

    def _finish_pending_step(self) -> None:
        """Waits for the step that the device is computing, and logs it.

        Raises:
          UserError: The step's loss or gradient is not finite.
        """
        if self.pending is None:
            return
        done, self.pending = self.pending, None
        extra = self.run.extra_metrics(done.batch)
        if bool(done.scalars["failed"]):
            report = {"train_rows": self.run.train_rows(done.batch), **extra}
            raise _not_finite(done, self.run.to_checkpoint(state_tree(self.state)), report, self.folder)
        loss, norm = float(done.scalars["loss"]), float(done.scalars["gradient_norm"])
        self.log.advance(loss)
        self.log.write(done.number, {"loss": loss, "gradient_norm": norm, "learning_rate": done.rate, **extra})
        self.preempted = self.preempted or self.preemption.answer(done.stop)

    def _evaluate(self) -> None:
        run, progress, step, trained = self.run, self.progress, self.step, state_tree(self.state)["trained"]
        try:
            with self.log.evaluating():
                scores = run.evaluate(trained)
        except UserError as error:  # Some outputs for the dev rows are NaN or infinite.
            raise UserError(f"{self.title}, dev rows after step {step}: {error}") from error
        self.log.write(step, {f"dev/{name}": value for name, value in scores.items()})
        progress.record(step, scores, trained)
        shown_scores = {name: scores[name] for name in run.shown_metrics}
        self.log.evaluated(step, shown_scores, progress.best_scores, run.main_metric)
        if progress.stopped and step < run.num_steps:
            self.log.say(f"stops early: {self.config.patience} evaluations without a better {run.main_metric}")

    def _save(self) -> None:
        self._finish_pending_step()
        state, best = self._checkpoint()
        with self._in_place():
            self.log.flush()
            self.checkpoints.save(self.step, state, best, self.progress.to_json())
            if is_first_host():
                self.usage.write(self.step)

    @contextlib.contextmanager
    def _in_place(self) -> Iterator[None]:
        """Checks that the folder is still there before and after something is written to it.

        If it was moved, this is the error, instead of one from the writer.
        """
        self.check_folder()
        try:
            yield
        except (UserError, OSError):
            self.check_folder()
            raise
        self.check_folder()


def _shapes_digest(state: State) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    shapes = [f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}" for path, leaf in leaves]
    return hashlib.sha256("\n".join(shapes).encode()).hexdigest()


def _not_finite(done: _PendingStep, state: State, report: dict[str, Any], folder: epath.Path) -> UserError:
    """Saves the state before the failed step and a report about its batch, if possible.

    Returns the error to raise. It is raised on all hosts.
    """
    import orbax.checkpoint as ocp

    loss = float(done.scalars["loss"])
    target = folder / f"not_finite_step_{done.number}"
    advice = (
        f"The batch's train rows and the state before that step are in {target}. Lower train.learning_rate, or inspect "
        "those rows."
    )
    try:
        with quiet_orbax(), ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(absolute(target / "state"), state, force=True)
        if is_first_host():
            write_json(target / "report.json", {"step": done.number, "loss": repr(loss), **report})
    except Exception as error:  # TensorStore raises ValueError for system errors.
        if is_runtime_error(error):  # Another host was lost.
            raise
        advice = (
            f"The batch's train rows and the state could not be saved completely to {target} ({system_reason(error)}). "
            "Lower train.learning_rate."
        )
    return UserError(f"The loss or a gradient stopped being finite at step {done.number} (loss {loss}). {advice}")
