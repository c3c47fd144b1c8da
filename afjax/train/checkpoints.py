"""A run's checkpoints: all that is needed to go on as if it had never stopped."""

import json
from pathlib import Path
from typing import Any

import jax

from afjax.errors import UserError
from afjax.trees import Tree


class RunCheckpoints:
    """Orbax checkpoints of ``{"state", "best", "progress"}`` in a folder, the newest two.

    ``state`` is the training state, ``best`` the trained tree with the best dev metric so far, and ``progress`` plain
    JSON. A checkpoint appears whole or not at all, so a killed run finds the last complete one.
    """

    def __init__(self, folder: Path) -> None:
        import orbax.checkpoint as ocp

        self._ocp = ocp
        options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(
            folder.absolute(), options=options, item_names=("state", "best", "progress")
        )

    def save(self, step: int, state: Any, best: Tree, progress: dict[str, Any]) -> None:
        """Writes a checkpoint; does nothing where that step has one."""
        if self._manager.latest_step() == step:
            return
        args = self._ocp.args
        try:
            self._manager.save(
                step,
                args=args.Composite(
                    state=args.StandardSave(state), best=args.StandardSave(best), progress=args.JsonSave(progress)
                ),
            )
        except OSError as error:
            raise UserError(
                f"The checkpoint of step {step} could not be written to {self._manager.directory} ({error}); make room "
                "or give another --workdir, then start the same command again."
            ) from error

    def restore(self, state: Any, best: Tree) -> tuple[Any, Tree, dict[str, Any]] | None:
        """The newest checkpoint, or None. The arguments tell shapes and dtypes.

        Raises:
          UserError: It cannot be read.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        args = self._ocp.args
        try:
            restored = self._manager.restore(
                step,
                args=args.Composite(
                    state=args.StandardRestore(jax.tree.map(_abstract, state)),
                    best=args.StandardRestore(jax.tree.map(_abstract, best)),
                    progress=args.JsonRestore(),
                ),
            )
        except (OSError, ValueError, KeyError, json.JSONDecodeError) as error:
            raise UserError(
                f"The checkpoint {self._manager.directory / str(step)} cannot be read ({error}); remove it to go on "
                "from the one before."
            ) from error
        return restored["state"], restored["best"], restored["progress"]

    def close(self) -> None:
        self._manager.close()


def _abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
