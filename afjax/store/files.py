"""Replaces folders atomically, on disks and on object stores (``gs://``).

Readers see a folder completely or not at all, even if a writer is killed. While a writer runs, or after it was killed,
there may be two more folders next to the folder NAME:

    .NAME,new    the new contents while they are written (disks only)
    .NAME,old    the previous contents while NAME is replaced

Artifact names never contain a comma or begin with a dot, so they cannot collide with these names. A folder is complete
if it has a manifest, which is written last. Readers use NAME if it is complete, and .NAME,old otherwise.
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence

from etils import epath

from afjax.storage.paths import AnyPath, is_remote

MANIFEST = "manifest.json"


def read_current(folder: epath.Path) -> tuple[epath.Path, bytes] | None:
    """Finds the current contents of ``folder``: NAME, or else .NAME,old.

    Returns:
      The folder with the contents, and its manifest; None if neither folder is complete.
    """
    # A writer may swap the folders between the two reads. The next iteration then finds the new folder.
    for _ in range(3):
        for candidate in (folder, _sibling(folder, "old")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                return candidate, (candidate / MANIFEST).read_bytes()
    return None


def folder_names(parent: epath.Path, *, incomplete: bool) -> list[str]:
    """Lists the names of the complete folders in ``parent``, sorted.

    With ``incomplete``, incomplete folders are included.
    """
    if not parent.exists():
        return []
    # .NAME,new and .NAME,old count too: during a swap, a listing may show only these.
    names = {entry.name.removeprefix(".").partition(",")[0] for entry in parent.iterdir()}
    return sorted(name for name in names if read_current(parent / name) or (incomplete and (parent / name).is_dir()))


@contextlib.contextmanager
def only_writer(store: epath.Path) -> Iterator[None]:
    """Locks the store within the block, and creates the store if it does not exist.

    Waits until no other process is writing to the store. The system releases the lock if the process is killed. Object
    stores and some network disks have no locks, so two processes may write the same name at the same time there.

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
    """Yields new folders, which replace ``folders`` if the block succeeds.

    The caller must hold the lock of :func:`only_writer`, and the block must write each manifest last. At any time, even
    if the process is killed, ``read_current`` returns either the old or the new contents of each folder. After an
    error, it returns the old contents of all folders.

    Raises:
      OSError: A file could not be written.
    """
    replace = _replaced_on_object_store if folders and is_remote(folders[0]) else _replaced_on_disk
    with replace(folders) as targets:
        yield targets


def copy(source: epath.Path, target: epath.Path) -> None:
    """Copies a folder. The manifest is copied last."""
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name == MANIFEST):
        if entry.is_dir():
            copy(entry, target / entry.name)
        else:
            entry.copy(target / entry.name)


@contextlib.contextmanager
def _replaced_on_disk(folders: Sequence[epath.Path]) -> Iterator[list[epath.Path]]:
    new_folders = [_sibling(folder, "new") for folder in folders]
    created = [parent for parent in dict.fromkeys(folder.parent for folder in folders) if not parent.exists()]
    for folder in folders:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new, old = _sibling(folder, "new"), _sibling(folder, "old")
        if old.exists() and not folder.exists():  # A writer was killed between the two renames below.
            os.rename(old, folder)
        for leftover in (new, old):
            if leftover.exists():
                shutil.rmtree(leftover)
    try:
        for new in new_folders:
            new.mkdir()
        yield new_folders
        for new in new_folders:
            _sync(new)
        _swap(folders)
    except BaseException:
        for new in new_folders:
            shutil.rmtree(new, ignore_errors=True)
        for parent in created:
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    for folder in folders:
        _sync_one(folder.parent)
        shutil.rmtree(_sibling(folder, "old"), ignore_errors=True)


def _swap(folders: Sequence[epath.Path]) -> None:
    """Renames each NAME to ``.NAME,old``, and ``.NAME,new`` to NAME.

    After an error, all renames are undone.
    """
    started = []
    try:
        for folder in folders:
            started.append(folder)
            # POSIX cannot rename a folder onto a non-empty folder, so between the two renames NAME does not exist.
            if folder.exists():
                os.rename(folder, _sibling(folder, "old"))
            os.rename(_sibling(folder, "new"), folder)
    except BaseException:
        for folder in reversed(started):
            new, old = _sibling(folder, "new"), _sibling(folder, "old")
            if not new.exists() and folder.exists():
                os.rename(folder, new)
            if old.exists():
                os.rename(old, folder)
        raise


@contextlib.contextmanager
def _replaced_on_object_store(folders: Sequence[epath.Path]) -> Iterator[list[epath.Path]]:
    for folder in folders:
        old = _sibling(folder, "old")
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
        _sibling(folder, "old").rmtree(missing_ok=True)


def _sibling(folder: epath.Path, role: str) -> epath.Path:
    return folder.parent / f".{folder.name},{role}"


def _sync(folder: epath.Path) -> None:
    """Flushes a folder and all its contents to disk."""
    for parent, _, files in os.walk(folder):
        for file in files:
            _sync_one(os.path.join(parent, file))
        _sync_one(parent)


def _sync_one(path: AnyPath) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
