"""Writes files atomically.

A file is written to ``NAME.part`` and renamed once it is complete. Devices and pipes such as ``/dev/stdout`` are
written directly, because renaming would replace the device with a file.
"""

import contextlib
import csv
import errno
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from afjax.errors import UserError
from afjax.storage.paths import AnyPath, error_text, is_remote, open_path


@contextlib.contextmanager
def replacing(path: AnyPath) -> Iterator[Path]:
    """Yields a temporary path, and renames it to ``path`` if the block succeeds.

    Args:
      path: A local file. If it is a symbolic link, the link's target is replaced. The path of a device, a pipe or one
        of this process's open files (``/dev/stdout``) is yielded unchanged.

    Raises:
      OSError: The file cannot be written. An existing file is left unchanged.

    Example:
      >>> with replacing("scores.csv") as part:
      ...     _ = part.write_text("task,accuracy\\n")
    """
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _is_written_directly(path):
        yield Path(path)
        return
    target = Path(os.path.realpath(path))
    # After realpath, only a link that points to itself (directly or through other links) is still a link.
    if os.path.islink(target):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    part = target.with_name(target.name + ".part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def write_bytes(path: AnyPath, contents: bytes) -> None:
    """Writes a file atomically, on a disk or an object store.

    Raises:
      OSError: The file cannot be written.
    """
    if is_remote(path):
        open_path(path).write_bytes(contents)
        return
    with replacing(path) as part:
        part.write_bytes(contents)


def write_text(path: AnyPath, text: str) -> None:
    """Writes a UTF-8 file atomically, like :func:`write_bytes`."""
    write_bytes(path, text.encode())


def write_json(path: AnyPath, value: Any) -> None:
    """Writes a JSON file atomically, like :func:`write_bytes`."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_output(path: AnyPath, contents: str | bytes, *, make_folder: bool = False) -> None:
    """Atomically writes an output file chosen by the user.

    Args:
      path: A local file.
      contents: The contents. Text is written as UTF-8.
      make_folder: Whether to create the file's folder if it does not exist.

    Raises:
      UserError: The file cannot be written.
    """
    try:
        if make_folder:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, contents.encode() if isinstance(contents, str) else contents)
    except OSError as error:
        raise _cannot_write(path, error) from None


def write_outputs(contents: Mapping[Path, bytes]) -> None:
    """Writes several output files chosen by the user, like :func:`write_output`.

    The files get their final names only when all are complete. Their folders are created if they do not exist.

    Args:
      contents: The contents by path.

    Raises:
      UserError: A file cannot be written.
    """
    try:
        with contextlib.ExitStack() as stack:
            for path, data in contents.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(replacing(path)).write_bytes(data)
    except OSError as error:
        # The files are renamed together, so the error can be of any of them.
        raise _cannot_write(" or ".join(map(str, contents)), error) from None


def check_output(path: AnyPath, *, make_folder: bool = False) -> None:
    """Raises UserError if :func:`write_output` could not write a file.

    Call this before a long computation.
    """
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{path} is a folder; set --output to a file name.")
    folder = file.absolute().parent
    while make_folder and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise UserError(f"{path} cannot be written: {folder} is not a folder; choose another --output.")
    target = file if _is_written_directly(file) else folder
    if not os.access(target, os.W_OK):
        raise UserError(f"{path} cannot be written: no permission to write to {target}; choose another --output.")


def _cannot_write(path: AnyPath, error: OSError) -> UserError:
    return UserError(f"{path} cannot be written ({error_text(error)}). Free up space or choose another --output.")


def _is_written_directly(path: AnyPath) -> bool:
    """Checks whether a path is a device, a pipe, or one of this process's open files."""
    name = os.path.abspath(path)
    if name in ("/dev/stdout", "/dev/stderr") or name.startswith(("/dev/fd/", "/proc/")):
        return True
    return os.path.exists(path) and not os.path.isfile(path)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    r"""Formats rows as CSV. None becomes an empty field.

    Example:
      >>> csv_text([["task", "accuracy"], ["rte", None]])
      'task,accuracy\nrte,\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
