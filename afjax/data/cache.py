"""Caches arrays in files.

Callers derive the file name from a digest of everything the arrays depend on.
"""

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from afjax.errors import UserError


def read_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Loads arrays saved by :func:`write_arrays`.

    Returns None if the file is missing or damaged.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Saves arrays atomically.

    The arrays are written to a temporary file, which is then renamed to ``path``.

    Raises:
      UserError: The file cannot be written, for example if the folder is read-only or the disk is full.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as file:
            try:
                np.savez(file, allow_pickle=False, **arrays)
                file.close()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
    except OSError as error:
        raise UserError(
            f"Token ids cannot be cached in {path.parent} ({error.strerror}); free some space or choose another folder."
        ) from error
