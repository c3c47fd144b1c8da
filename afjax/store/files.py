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
from collections.abc import Iterator, Sequence

from etils import epath

from afjax.storage.paths import is_remote

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
def only_writer(store: epath.Path) -> Iterator[None]:
    """Waits until no other process writes to the store; creates a store that does not exist.

    The lock of a killed process is gone with it. Object stores and some network disks have no locks: there, nothing
    keeps two writers of one name from writing at the same time.

    Raises:
      OSError: The store cannot be written.
    """
    if is_remote(store):
        yield
        return
    store.mkdir(parents=True, exist_ok=True)
    with open(store / ".lock", "a") as lock:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def replaced(folders: Sequence[epath.Path]) -> Iterator[list[epath.Path]]:
    """Gives folders to write to, which take the places of ``folders`` when the block ends without error.

    The caller holds :func:`only_writer`. The block writes each manifest last. At every moment, also when the process is
    killed, ``read_current`` gives either the old contents or the new of each folder; after an error, the old of all of
    them.

    Raises:
      OSError: Something could not be written.
    """
    replace = _replaced_on_object_store if folders and is_remote(folders[0]) else _replaced_on_disk
    with replace(folders) as targets:
        yield targets


def copy(source: epath.Path, target: epath.Path) -> None:
    """Copies a folder, its manifest last."""
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name == MANIFEST):
        if entry.is_dir():
            copy(entry, target / entry.name)
        else:
            entry.copy(target / entry.name)


@contextlib.contextmanager
def _replaced_on_disk(folders: Sequence[epath.Path]) -> Iterator[list[epath.Path]]:
    news = [_beside(folder, "new") for folder in folders]
    made = [parent for parent in dict.fromkeys(folder.parent for folder in folders) if not parent.exists()]
    for folder in folders:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new, old = _beside(folder, "new"), _beside(folder, "old")
        if old.exists() and not folder.exists():  # A writer was killed between the two renames below.
            os.rename(old, folder)
        for leftover in (new, old):
            if leftover.exists():
                shutil.rmtree(leftover)
    try:
        for new in news:
            new.mkdir()
        yield news
        for new in news:
            _sync(new)
        _swap(folders)
    except BaseException:
        for new in news:
            shutil.rmtree(new, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    for folder in folders:
        _sync_one(folder.parent)
        shutil.rmtree(_beside(folder, "old"), ignore_errors=True)


def _swap(folders: Sequence[epath.Path]) -> None:
    """Puts each ``.NAME,new`` in the place of NAME, which becomes ``.NAME,old``. An error undoes all of them."""
    begun = []
    try:
        for folder in folders:
            begun.append(folder)
            # POSIX renames no folder onto a full one, so there is a moment with .NAME,old alone.
            if folder.exists():
                os.rename(folder, _beside(folder, "old"))
            os.rename(_beside(folder, "new"), folder)
    except BaseException:
        for folder in reversed(begun):
            new, old = _beside(folder, "new"), _beside(folder, "old")
            if not new.exists() and folder.exists():
                os.rename(folder, new)
            if old.exists():
                os.rename(old, folder)
        raise


@contextlib.contextmanager
def _replaced_on_object_store(folders: Sequence[epath.Path]) -> Iterator[list[epath.Path]]:
    for folder in folders:
        old = _beside(folder, "old")
        if (folder / MANIFEST).exists():
            old.rmtree(missing_ok=True)
            copy(folder, old)
            (folder / MANIFEST).unlink()
        folder.rmtree(missing_ok=True)
    try:
        for folder in folders:
            folder.mkdir(parents=True)
        yield list(folders)
    except BaseException:
        for folder in folders:
            with contextlib.suppress(OSError):
                folder.rmtree(missing_ok=True)
        raise
    for folder in folders:
        _beside(folder, "old").rmtree(missing_ok=True)


def _beside(folder: epath.Path, role: str) -> epath.Path:
    return folder.parent / f".{folder.name},{role}"


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
