"""The training loop, resumable at any moment. A run says what a step is and what to look at."""

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from etils import epath
from jax.sharding import Mesh

from afjax.config.training import TrainConfig
from afjax.data.batches import Batch
from afjax.distributed.hosts import is_first_host, together
from afjax.distributed.preemption import Preemption
from afjax.errors import PreemptionError, UserError
from afjax.storage.paths import absolute
from afjax.train.checkpoints import RunCheckpoints
from afjax.train.logs import RunLog, SilentLog
from afjax.train.optimizer import learning_rate
from afjax.train.record import CHECKPOINTS, SHAPES, note, only_process
from afjax.train.step import State
from afjax.train.usage import Usage
from afjax.trees import Tree


class Run(Protocol):
    """What the loop trains.

    Attributes:
      mesh: The devices.
      start: The state in front of the first step; the run's steps donate it.
      num_steps: Steps of the whole run.
      eval_every: Steps between evaluations of the dev split.
      main_metric: The dev metric, of those that ``look`` gives, that early stopping follows.
      shown_metrics: Those that the line of an evaluation shows, the main metric among them.
    """

    mesh: Mesh
    start: State
    num_steps: int
    eval_every: int
    main_metric: str
    shown_metrics: tuple[str, ...]

    def batches(self, step: int) -> Iterator[Batch]:
        """The batches from step 0, 1, ... on; it may end, and is then asked again."""
        ...

    def step(self, state: State, batch: Batch, learning_rate: float) -> tuple[State, dict[str, Any]]:
        """One step, compiled; as of ``make_train_step``."""
        ...

    def look(self, trained: Tree) -> dict[str, float]:
        """Every dev metric of a trained tree."""
        ...

    def note(self, batch: Batch) -> dict[str, float]:
        """What to log of a batch, beside loss, gradient and rate."""
        ...


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run leaves.

    Attributes:
      trained: The trained tree with the best dev metric.
      metrics: Every dev metric of that tree, and ``step``, the step it is from.
    """

    trained: Tree
    metrics: dict[str, float]


@dataclasses.dataclass
class _Progress:
    """Where a run is, beside its parameters; goes into checkpoints as JSON."""

    best: dict[str, float] = dataclasses.field(default_factory=dict)
    looks_since_best: int = 0
    stopped: bool = False


@dataclasses.dataclass(frozen=True)
class _Pending:
    """A step that the device is at work on."""

    step: int
    batch: Batch
    rate: float
    scalars: dict[str, Any]
    stop: Any


def run_loop(run: Run, config: TrainConfig, *, inputs: Mapping[str, str], folder: epath.Path, title: str) -> Trained:
    """Trains a run, and keeps the parameters with the best dev metric.

    The same arguments on the same machine give the same bits, however often the run was killed and resumed. On several
    hosts all call this alike; the first one logs.

    Args:
      run: What to train.
      config: Schedule, patience and checkpoints are read.
      inputs: ``{what: digest}`` of what the run begins with. Checkpoints that began with something else are refused.
      folder: The run's folder: checkpoints, ``metrics.jsonl``, TensorBoard files, ``usage.json``. If it holds an
        unfinished run, that run is resumed.
      title: The name in the progress bar and in messages.

    Raises:
      UserError: A loss or gradient that is not finite, a checkpoint that cannot be read or belongs to another run, or a
        folder that cannot be written.
      PreemptionError: SIGTERM came to any host. Every finished step is in the checkpoint.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The run lets go of its start, or a resumed run would hold two states.
        state, run.start = run.start, {}
        with only_process(folder):
            return _loop(run, config, state, inputs, folder, title)
    except OSError as error:
        raise UserError(
            f"The run's folder {folder} cannot be written ({error.strerror or error}); make room there or give "
            "another workdir, then start the same run again."
        ) from error


def _loop(
    run: Run, config: TrainConfig, state: State, inputs: Mapping[str, str], folder: epath.Path, title: str
) -> Trained:
    """The loop of :func:`run_loop`, in a folder that belongs to this process."""
    num_steps, eval_every = run.num_steps, run.eval_every
    checkpoint_every = config.checkpoint_every or eval_every
    checkpoints = RunCheckpoints(folder / CHECKPOINTS, {**inputs, SHAPES: _shapes_digest(state)})
    best, progress = _copy(state["trained"]), _Progress()
    if (found := checkpoints.restore(state, best)) is not None:
        state, best, progress = found[0], found[1], _read_progress(found[2], run.main_metric, folder)
    step = int(state["step"])
    if step >= num_steps or progress.stopped:
        note(
            f"The run of {title} in {folder} is finished and is not trained again ({run.main_metric} "
            f"{progress.best[run.main_metric]:.4f}). To train it again, choose another workdir or pass "
            "options=RunOptions(overwrite=True)."
        )
    log = RunLog(folder, title, num_steps, step) if is_first_host() else SilentLog()
    if 0 < step < num_steps and not progress.stopped:
        log.say(f"resumes after step {step} of {num_steps}")
    usage = Usage(folder, step)
    pending: _Pending | None = None
    compiled: set[tuple[int, ...]] = set()
    preempted = False

    def settle() -> None:
        """Waits for the step that is under way, logs it, and stops the run if it failed."""
        nonlocal pending, preempted
        if pending is not None:
            done, pending = pending, None
            if bool(done.scalars["failed"]):
                raise _not_finite(done, state, run.note(done.batch), folder)
            loss = float(done.scalars["loss"])
            log.advance(loss, done.rate)
            scalars = {"loss": loss, "gradient_norm": float(done.scalars["gradient_norm"]), "learning_rate": done.rate}
            log.write(done.step, {**scalars, **run.note(done.batch)})
            preempted = preempted or preemption.answer(done.stop)

    def save() -> None:
        settle()
        log.flush()
        checkpoints.save(step, state, best, dataclasses.asdict(progress))
        if is_first_host():
            usage.write(step)

    with checkpoints, contextlib.closing(log), Preemption(run.mesh) as preemption:
        while step < num_steps and not progress.stopped:
            for batch in run.batches(step):
                rate = learning_rate(config, step, num_steps)
                if (shape := batch["tokens"].shape) in compiled:
                    # The next batch is built while the device is at work on this one.
                    state, scalars = run.step(state, batch, rate)
                else:
                    with log.during(f"compiling for {shape[-1]} tokens"):
                        state, scalars = run.step(state, batch, rate)
                    compiled.add(shape)
                settle()
                step += 1
                pending = _Pending(step, batch, rate, scalars, preemption.ask())
                looking = step % eval_every == 0 or step == num_steps
                if looking:
                    settle()
                    try:
                        scores = run.look(state["trained"])
                    except UserError as error:  # The last update has made the dev rows' outputs NaN or infinite.
                        raise UserError(f"{title}, dev rows after step {step}: {error}") from error
                    log.write(step, {f"dev/{name}": value for name, value in scores.items()})
                    if not progress.best or scores[run.main_metric] > progress.best[run.main_metric]:
                        # A copy: the step donates the state's buffers.
                        best = _copy(state["trained"])
                        progress = _Progress({**scores, "step": step})
                    else:
                        progress.looks_since_best += 1
                        progress.stopped = 0 < config.patience <= progress.looks_since_best
                    shown = {name: scores[name] for name in run.shown_metrics}
                    log.evaluated(step, shown, progress.best, run.main_metric)
                    if progress.stopped:
                        log.say(f"stops early: {config.patience} evaluations without a better {run.main_metric}")
                if looking or step % checkpoint_every == 0:
                    save()
                if preempted or step == num_steps or progress.stopped:
                    break
            if preempted:
                break
        save()
        checkpoints.wait()
        if preempted or preemption.answer(preemption.ask()):
            raise PreemptionError(
                f"{title} was told to stop, and has saved its state behind step {step} of {num_steps}; the same "
                "command goes on from there."
            )
    return Trained(best, progress.best)


def _read_progress(values: Mapping[str, Any], main_metric: str, folder: epath.Path) -> _Progress:
    """The progress that a checkpoint holds.

    Raises:
      UserError: It is not what :class:`_Progress` writes.
    """
    best = values.get("best")
    numbers = isinstance(best, dict) and all(isinstance(score, int | float | None) for score in best.values())
    valid = (
        values.keys() == {field.name for field in dataclasses.fields(_Progress)}
        and numbers
        and (not best or {main_metric, "step"} <= best.keys())
        and type(values["looks_since_best"]) is int
        and isinstance(values["stopped"], bool)
    )
    if not valid:
        raise UserError(
            f"The newest checkpoint in {folder / CHECKPOINTS} is damaged (its progress is not what afjax writes). "
            "Remove it to resume from the previous one."
        )
    return _Progress(**values)


def _shapes_digest(state: State) -> str:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    shapes = [f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}" for path, leaf in leaves]
    return hashlib.sha256("\n".join(shapes).encode()).hexdigest()


def _copy(tree: Tree) -> Tree:
    return jax.tree.map(jnp.copy, tree)


def _not_finite(done: _Pending, state: State, note: dict[str, float], folder: epath.Path) -> UserError:
    """Saves the state in front of the step that failed, and says so."""
    import orbax.checkpoint as ocp

    loss = float(done.scalars["loss"])
    target = folder / f"not_finite_step_{done.step}"
    rows = [int(row) for row in done.batch["rows"] if row >= 0]
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(absolute(target / "state"), state, force=True)
    report = {"step": done.step, "loss": repr(loss), "train_rows": rows, **note}
    with together():
        if is_first_host():
            (target / "report.json").write_text(json.dumps(report, indent=1) + os.linesep)
    return UserError(
        f"The loss or a gradient stopped being finite at step {done.step} (loss {loss}); the batch's train rows and "
        f"the state in front of that step are in {target}: lower train.learning_rate, or look at those rows."
    )
