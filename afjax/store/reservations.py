"""Reserves names in a store for unfinished training runs.

A second run that would save the same names fails before it trains. ``STORE/.runs/KIND-NAME.json`` holds ``{"run": ...,
"workdir": ...}``. A reservation is valid while ``WORKDIR/store.json`` exists and names the same ``run`` and store, so
deleting a workdir frees its names. Saving an artifact removes its reservation; from then on, the artifact's manifest
records the run.
"""

import os

from etils import epath

from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.storage.paths import AnyPath, absolute, is_remote, open_path
from afjax.storage.writing import write_json
from afjax.store.artifacts import store_folder

# The file in a workdir that holds the run's store and identifier (see ``afjax.train.workdir``).
WORKDIR_FILE = "store.json"
_FOLDER = ".runs"


def check(store: AnyPath, kind: str, name: str, run: str = "") -> None:
    """Raises UserError if another unfinished run has reserved a name, or if the reservation is damaged."""
    root = store_folder(store)
    path = _path(root, kind, name)
    advice = "delete that file if no run is training for this store"
    reservation = read_json(path, advice=advice)
    if reservation is None:
        return
    workdir, other = reservation.get("workdir"), reservation.get("run")
    if not isinstance(workdir, str) or not isinstance(other, str):
        raise UserError(f"{path} is damaged (it does not name a run and a workdir); {advice}.")
    if other != run and _is_run_of(workdir, other, root):
        raise UserError(
            f"The run in {workdir} is unfinished and will save {kind}/{name} to the store {store}. Resume that run, "
            "wait for it, or delete its workdir. Alternatively, choose another name (--config.name=NAME for a run) or "
            f"another --store. If that run no longer exists, delete {path}."
        )


def write(store: epath.Path, kind: str, name: str, *, run: str, workdir: AnyPath) -> None:
    """Reserves a name for a run.

    The caller must have checked that no other run has reserved it.

    Raises:
      OSError: The store cannot be written.
    """
    path = _path(store, kind, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"run": run, "workdir": os.fspath(absolute(open_path(workdir)))})


def release(store: epath.Path, kind: str, name: str) -> None:
    """Removes the reservation of a name, if any."""
    _path(store, kind, name).unlink(missing_ok=True)


def _is_run_of(workdir: str, run: str, store: epath.Path) -> bool:
    """Whether a workdir holds a run that saves to a store.

    False if the folder is not a workdir or does not exist. True if it cannot be read, as in another user's private
    folder, because a run may be training in it.
    """
    try:
        record = read_json(open_path(workdir) / WORKDIR_FILE) or {}
        named = record.get("store")
        if not isinstance(named, str) or record.get("run") != run:
            return False
        if is_remote(store) or is_remote(named):
            return str(absolute(store)) == named
        # A path in the file is relative to the workdir.
        return os.path.realpath(os.path.join(os.path.realpath(workdir), named)) == os.path.realpath(store)
    except UserError as error:
        return isinstance(error.__cause__, OSError)  # Otherwise, the file is damaged, and its run cannot be resumed.
    except ValueError:  # The text is not a path.
        return False


def _path(store: epath.Path, kind: str, name: str) -> epath.Path:
    return store / _FOLDER / f"{kind}-{name}.json"
