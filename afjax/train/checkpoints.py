"""A run's checkpoints: all that is needed to go on as if it had never stopped."""

import errno
import os
import shutil
import sys
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import jax
from etils import epath

from afjax.distributed.hosts import is_runtime_error, several_hosts
from afjax.errors import UserError
from afjax.storage.paths import absolute, is_remote
from afjax.store.checkpoint import quiet_orbax, system_reason
from afjax.train.record import input_differences
from afjax.trees import Tree

# Bytes that Orbax writes beside the arrays, and more than enough.
ORBAX_FILES = 1_000_000


class RunCheckpoints:
    """Orbax checkpoints of ``{"state", "best", "progress"}`` in a folder, the newest two.

    ``state`` is the training state, ``best`` the trained tree with the best dev metric so far, and ``progress`` plain
    JSON. A checkpoint appears whole or not at all, so a killed run finds the last complete one. On several hosts all
    save and restore together. Writing goes on in the background; the state itself may be donated at once.

    Args:
      folder: The run's own.
      inputs: ``{what: digest}`` of what the run trains, which its checkpoints carry: those of another are refused.
    """

    def __init__(self, folder: epath.Path, inputs: Mapping[str, str]) -> None:
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self._inputs = dict(inputs)
        options = ocp.CheckpointManagerOptions(
            max_to_keep=2, create=True, async_options=ocp.AsyncOptions(barrier_sync_fn=_wait_unless_failed)
        )
        names = ("state", "best", "progress")
        # A run that was killed while it removed an old checkpoint leaves a part of it, which Orbax warns of.
        with quiet_orbax():
            self._manager = ocp.CheckpointManager(absolute(folder), options=options, item_names=names)

    def save(self, step: int, state: Any, best: Tree, progress: dict[str, Any]) -> None:
        """Begins to write a checkpoint; does nothing where that step has one.

        Raises:
          UserError: It, or the one before it, cannot be written. Those that were complete are still there.
        """
        if self._manager.latest_step() == step:
            return
        args = self._ocp.args
        items = args.Composite(
            state=args.StandardSave(state),
            best=args.StandardSave(best),
            progress=args.JsonSave({"inputs": self._inputs, "progress": progress}),
        )
        size = sum(leaf.nbytes for leaf in jax.tree.leaves((state, best))) + ORBAX_FILES
        try:
            # Asked first, as Orbax prints tracebacks from its threads when it finds out by itself.
            folder = self._manager.directory
            if not is_remote(folder) and shutil.disk_usage(folder).free < size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with quiet_orbax():
                self._manager.save(step, args=items)
        except Exception as error:  # TensorStore raises ValueError, whatever the system said.
            if is_runtime_error(error):  # Another host was lost.
                raise
            raise self._not_written(error) from error

    def wait(self) -> None:
        """Waits until what was begun is written.

        Raises:
          UserError: It cannot be.
        """
        try:
            with quiet_orbax():
                self._manager.wait_until_finished()
        except Exception as error:  # As above.
            if is_runtime_error(error):  # Another host was lost.
                raise
            raise self._not_written(error) from error

    def _not_written(self, error: Exception) -> UserError:
        # It may be the one before that failed in the background.
        return UserError(
            f"A checkpoint could not be written to {self._manager.directory} ({system_reason(error)}); make room, then "
            "start the same command again."
        )

    def restore(self, state: Any, best: Tree) -> tuple[Any, Tree, dict[str, Any]] | None:
        """The newest checkpoint, or None. The arguments tell shapes and dtypes.

        Raises:
          UserError: It cannot be read, or is of another run.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        args = self._ocp.args
        # First: the arrays of another model would not even have these shapes.
        saved = self._read(step, args.Composite(progress=args.JsonRestore()))["progress"]
        recorded = saved.get("inputs", {}) if isinstance(saved, dict) else None
        if not (isinstance(recorded, dict) and isinstance(saved.get("progress"), dict)):
            raise UserError(
                f"The checkpoint {self._manager.directory / str(step)} is damaged (its progress is not what afjax "
                "writes); remove it to resume from the one before."
            )
        # The run's own record says which inputs an earlier version did not know of.
        changed, _ = input_differences(recorded, self._inputs)
        if changed or not recorded:
            raise UserError(
                f"The checkpoint {self._manager.directory / str(step)} is of another run "
                f"({'; '.join(changed) or 'it does not say of which'}). Bring back the checkpoints of this run, or "
                "choose another workdir."
            )
        arrays = self._read(
            step,
            args.Composite(
                state=args.StandardRestore(jax.tree.map(_abstract, state)),
                best=args.StandardRestore(jax.tree.map(_abstract, best)),
            ),
        )
        return arrays["state"], arrays["best"], saved["progress"]

    def _read(self, step: int, items: Any) -> Any:
        try:
            with quiet_orbax():
                return self._manager.restore(step, args=items)
        except Exception as error:  # Whatever Orbax and TensorStore raise on files they cannot read.
            if is_runtime_error(error):  # Another host was lost.
                raise
            # Orbax leaves other reads under way, which print tracebacks as they end; the sentence is to be the last.
            time.sleep(1)
            raise UserError(
                f"The checkpoint {self._manager.directory / str(step)} cannot be read ({system_reason(error)}); remove "
                "it to go on from the one before."
            ) from error

    def __enter__(self) -> "RunCheckpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Of several hosts the others may have failed to write, or wait for this one to train on.
        if kind is None or not several_hosts() or not self._manager.is_saving_in_progress():
            self._manager.close()


def _wait_unless_failed(*, key: str, timeout_ms: int) -> None:
    """Orbax's barrier of all hosts, but for a host whose write failed: that raises at once.

    Orbax has it wait for the others, which wait for it at another barrier, for 20 minutes.
    """
    from orbax.checkpoint import multihost

    if (failed := sys.exc_info()[1]) is not None:
        raise failed
    multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


def _abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
