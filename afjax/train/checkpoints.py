"""A run's checkpoints, with everything needed to resume bit-identically."""

import contextlib
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import jax
from etils import epath

from afjax.distributed.hosts import is_runtime_error, several_hosts
from afjax.distributed.preemption import delayed_interrupt
from afjax.errors import UserError
from afjax.storage.paths import absolute, file_error
from afjax.store.checkpoint import check_free_space, quiet_orbax, system_reason
from afjax.train.record import RECORD_DIGEST, input_differences
from afjax.trees import Tree

# Upper bound on the bytes that Orbax writes in addition to the arrays.
ORBAX_FILES = 1_000_000

# Longest time in seconds to wait for Orbax's other threads after a save failed.
WRITES_TIMEOUT = 10.0


class RunCheckpoints:
    """Saves ``{"state", "best", "progress"}`` with Orbax and keeps the newest two.

    ``state`` is the training state, ``best`` is the trained tree with the best dev metric so far, and ``progress`` is a
    JSON object. Checkpoints are atomic, so a killed run resumes from the last complete one. All hosts must call
    :meth:`save` and :meth:`restore`. Saving is asynchronous, but the state may be donated as soon as :meth:`save`
    returns. :meth:`save` and :meth:`wait` are called within a ``with`` block, which silences Orbax's log messages.

    Args:
      folder: The folder of the run's checkpoints.
      inputs: ``{name: digest}`` of the run's inputs, saved with every checkpoint. Restoring a checkpoint with different
        inputs raises an error.
    """

    def __init__(self, folder: epath.Path, inputs: Mapping[str, str]) -> None:
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self._inputs, self._quiet = dict(inputs), contextlib.ExitStack()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, create=True, async_options=ocp.AsyncOptions(barrier_sync_fn=_wait_unless_failed)
        )
        names = ("state", "best", "progress")
        # If a run was killed while deleting an old checkpoint, Orbax warns about the leftover files.
        with quiet_orbax():
            self._manager = ocp.CheckpointManager(absolute(folder), options=options, item_names=names)

    def save(self, step: int, state: Any, best: Tree, progress: dict[str, Any]) -> None:
        """Starts writing a checkpoint, unless this step already has one.

        Raises:
          UserError: This checkpoint or the previous one could not be written. Complete checkpoints are kept.
        """
        if self.latest_step() == step:
            return
        args = self._ocp.args
        items = args.Composite(
            state=args.StandardSave(state),
            best=args.StandardSave(best),
            progress=args.JsonSave({"inputs": self._inputs, "progress": progress}),
        )
        size = sum(leaf.nbytes for leaf in jax.tree.leaves((state, best))) + ORBAX_FILES
        with self._explained_write_errors():
            check_free_space(self._manager.directory, size)
            # An interrupt during this call would make Orbax's threads print tracebacks at exit.
            with delayed_interrupt():
                self._manager.save(step, args=items)

    def wait(self) -> None:
        """Waits until the pending checkpoint is written.

        Raises:
          UserError: The checkpoint could not be written.
        """
        with self._explained_write_errors():
            self._manager.wait_until_finished()

    def _explained_write_errors(self) -> contextlib.AbstractContextManager[None]:
        # The previous checkpoint may have failed in the background, so the message does not name a step.
        return _explained_errors(
            f"A checkpoint could not be written to {self._manager.directory}",
            "Free up space or repair the folder, then run the same command again.",
        )

    def latest_step(self) -> int | None:
        """Returns the step of the newest checkpoint, or None if there is none."""
        step: int | None = self._manager.latest_step()
        return step

    def restore(self, state: Tree, best: Tree) -> tuple[Tree, Tree, dict[str, Any]]:
        """Restores the newest checkpoint, which must exist.

        Args:
          state, best: Trees of :func:`shapes_of`, with the shapes, dtypes and shardings to restore.

        Returns:
          ``(state, best, progress)``.

        Raises:
          UserError: The checkpoint cannot be read or belongs to a different run.
        """
        step = self.latest_step()
        assert step is not None, "there is a checkpoint"
        args = self._ocp.args
        # Check the inputs before loading the arrays, because a different model's arrays may not have the same shapes.
        saved = self._read(step, args.Composite(progress=args.JsonRestore()))["progress"]
        recorded = saved.get("inputs", {}) if isinstance(saved, dict) else None
        if not (isinstance(recorded, dict) and isinstance(saved.get("progress"), dict)):
            raise UserError(
                f"The checkpoint {self._manager.directory / str(step)} is damaged (its progress record is "
                "invalid); remove it to resume from the previous one."
            )
        # Inputs that an earlier version did not record are reported when run.json is checked.
        known = {name: value for name, value in recorded.items() if name != RECORD_DIGEST or name in self._inputs}
        changed, _ = input_differences(known, self._inputs)
        if changed or not recorded:
            raise UserError(
                f"The checkpoint {self._manager.directory / str(step)} belongs to a different run "
                f"({'; '.join(changed) or 'it does not record its inputs'}). Restore this run's checkpoints, or choose "
                "another workdir."
            )
        arrays = self._read(step, args.Composite(state=args.StandardRestore(state), best=args.StandardRestore(best)))
        return arrays["state"], arrays["best"], saved["progress"]

    def _read(self, step: int, items: Any) -> Any:
        problem = f"The checkpoint {self._manager.directory / str(step)} cannot be read"
        # Orbax's other reads are still running and print tracebacks when they fail. Wait so that our error is last.
        with _explained_errors(problem, "Remove it to resume from the previous one.", wait=1.0), quiet_orbax():
            return self._manager.restore(step, args=items)

    def __enter__(self) -> "RunCheckpoints":
        # Orbax also logs from its own threads, between calls.
        self._quiet.enter_context(quiet_orbax())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._quiet:
            if kind is None:
                with self._explained_write_errors():
                    self._close()
            # After an error, closing would wait for a save that the other hosts may never finish.
            elif not several_hosts() or not self._manager.is_saving_in_progress():
                # A failed background save must not replace the block's error, which may be an interrupt.
                with contextlib.suppress(Exception):
                    self._close()

    def _close(self) -> None:
        try:
            self._manager.close()
        finally:
            # If one of a save's threads failed, the others still write, and print tracebacks when they fail.
            # (The join of Orbax's own class would raise their errors.)
            end = time.monotonic() + WRITES_TIMEOUT
            for thread in threading.enumerate():
                if type(thread).__module__.startswith("orbax."):
                    threading.Thread.join(thread, max(0.0, end - time.monotonic()))


@contextlib.contextmanager
def _explained_errors(problem: str, advice: str, *, wait: float = 0.0) -> Iterator[None]:
    """Raises errors of Orbax and TensorStore as UserErrors, after ``wait`` seconds."""
    try:
        yield
    except Exception as error:  # TensorStore raises ValueError for system errors, and Orbax raises many other types.
        if is_runtime_error(error):  # Another host was lost.
            raise
        time.sleep(wait)
        raise file_error(problem, error, cause=system_reason(error), advice=advice) from error


def _wait_unless_failed(*, key: str, timeout_ms: int) -> None:
    """Waits at Orbax's barrier for all hosts, or raises if this host's write failed.

    After a failed write, this host would otherwise wait at a different barrier from the others, until both time out
    after 20 minutes.
    """
    from orbax.checkpoint import multihost

    if (failed := sys.exc_info()[1]) is not None:
        raise failed
    multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def shapes_of(tree: Tree) -> Tree:
    """Replaces the arrays of a tree by their shapes, dtypes and shardings."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree)
