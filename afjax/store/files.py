"""Folders that are replaced whole, on disks and on object stores (``gs://``).

Readers find a folder complete or not at all, whenever a writer is killed. Beside the folder NAME
there are, while a writer runs or after it was killed,

    .NAME,new    what is being written (disks only)
    .NAME,old    the former contents, while NAME is being replaced

Artefact names hold no comma and no dot in front, so these never meet one. A folder counts as
complete when it has a manifest, which is written last; readers take NAME where it is complete, else
.NAME,old.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator

from etils import epath

from afjax.errors import UserError
from afjax.paths import is_remote

MANIFEST = "manifest.json"


def read_current(folder: epath.Path) -> tuple[epath.Path, bytes] | None:
    """Where the contents of ``folder`` are now, and their manifest; None: there are none."""
    # A writer may swap folders between one look and the next; then the second round finds the new one.
    for _ in range(3):
        for place in (folder, _beside(folder, "old")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return place, (place / MANIFEST).read_bytes()
    return None


def folder_names(parent: epath.Path, *, incomplete: bool) -> list[str]:
    """The sorted names of the complete folders in ``parent``, or of all that do not begin with a dot."""
    if not parent.exists():
        return []
    # .NAME,new and .NAME,old count too: in the midst of a swap they may be all that a listing shows.
    found = {entry.name.removeprefix(".").partition(",")[0] for entry in parent.iterdir()}
    return sorted(name for name in found if read_current(parent / name) or (incomplete and (parent / name).is_dir()))


@contextlib.contextmanager
def replaced(folder: epath.Path, *, overwrite: bool) -> Iterator[epath.Path]:
    """Gives a folder to write to, which takes the place of ``folder`` when the block ends without error.

    The block writes the manifest last. At every moment, also when the process is killed,
    ``read_current`` gives either the old contents or the new; after an error in the block, the old.

    Raises:
      UserError: ``folder`` is there and ``overwrite`` is False.
      OSError: Something could not be written.
    """
    replace = _replaced_on_object_store if is_remote(folder) else _replaced_on_disk
    with replace(folder, overwrite) as target:
        yield target


def copy(source: epath.Path, target: epath.Path) -> None:
    """Copies a folder, its manifest last."""
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name == MANIFEST):
        if entry.is_dir():
            copy(entry, target / entry.name)
        else:
            entry.copy(target / entry.name)


@contextlib.contextmanager
def _replaced_on_disk(folder: epath.Path, overwrite: bool) -> Iterator[epath.Path]:
    new, old = _beside(folder, "new"), _beside(folder, "old")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_writer(folder.parent.parent):
        if old.exists() and not folder.exists():  # A writer was killed between the two renames below.
            os.rename(old, folder)
        _refuse_existing(folder, folder.exists() and not overwrite)
        for leftover in (new, old):
            if leftover.exists():
                shutil.rmtree(leftover)
        try:
            new.mkdir()
            yield new
            _sync(new)
            # POSIX renames no folder onto a full one, so there is a moment with .NAME,old alone.
            if folder.exists():
                os.rename(folder, old)
            try:
                os.rename(new, folder)
            except OSError:
                if old.exists():
                    os.rename(old, folder)
                raise
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        _sync_one(folder.parent)
        shutil.rmtree(old, ignore_errors=True)


@contextlib.contextmanager
def _replaced_on_object_store(folder: epath.Path, overwrite: bool) -> Iterator[epath.Path]:
    old = _beside(folder, "old")
    if (folder / MANIFEST).exists():
        _refuse_existing(folder, not overwrite)
        old.rmtree(missing_ok=True)
        copy(folder, old)
        (folder / MANIFEST).unlink()
    elif (old / MANIFEST).exists():
        _refuse_existing(folder, not overwrite)
    folder.rmtree(missing_ok=True)
    try:
        folder.mkdir(parents=True)
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            folder.rmtree(missing_ok=True)
        raise
    old.rmtree(missing_ok=True)


def _refuse_existing(folder: epath.Path, refuse: bool) -> None:
    if refuse:
        raise UserError(
            f"{folder} is there already and stays as it is; save under another name, or say that it may be overwritten."
        )


def _beside(folder: epath.Path, role: str) -> epath.Path:
    return folder.parent / f".{folder.name},{role}"


@contextlib.contextmanager
def _only_writer(store: epath.Path) -> Iterator[None]:
    """Waits until no other process writes to the store; the lock of a killed process is gone with it."""
    with open(store / ".lock", "a") as lock:
        # Some network disks have no locks; there, two writers of one name at one time are the user's to avoid.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sync(folder: epath.Path) -> None:
    """Waits until a folder and all in it are on the disk."""
    for parent, _, files in os.walk(folder):
        for file in files:
            _sync_one(os.path.join(parent, file))
        _sync_one(parent)


def _sync_one(path: str | os.PathLike[str]) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
