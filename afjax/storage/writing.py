"""Writes files that appear complete or not at all.

A file is written under another name, ``NAME.part``, and renamed when it is complete. Devices and pipes, such as
``/dev/stdout``, are written directly: a rename would replace the device itself with a file.
"""

import contextlib
import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from afjax.paths import is_remote, open_path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the path to write to; renames it to ``path`` when the block ends without an exception.

    Args:
      path: A local file. A symbolic link is followed, so the file that it points to is replaced. A device or a pipe is
        yielded itself.

    Raises:
      OSError: The file cannot be written. A file that was there before is unchanged.

    Example:
      >>> with replacing("scores.csv") as part:  # doctest: +SKIP
      ...     part.write_text("task,accuracy\\n")
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        yield target
        return
    part = target.with_name(target.name + ".part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def write_bytes(path: str | os.PathLike[str], contents: bytes) -> None:
    """Writes a file completely or not at all; local, or on an object store, where this always holds.

    Raises:
      OSError: The file cannot be written.
    """
    if is_remote(path):
        open_path(path).write_bytes(contents)
        return
    with replacing(path) as part:
        part.write_bytes(contents)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a UTF-8 file as :func:`write_bytes` does."""
    write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes a JSON file as :func:`write_bytes` does."""
    write_text(path, json.dumps(value, indent=1) + "\n")
