"""Reads and writes files of cached arrays. Callers name a file by a digest of everything that its arrays depend on."""

import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from afjax.errors import UserError


def read_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Reads the arrays that :func:`write_arrays` wrote. Returns None if the file is missing or damaged."""
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays to a temporary file and renames it to ``path``, so that readers never see a partial file.

    Raises:
      UserError: The file cannot be written, for example because the folder is not writable or the disk is full.
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
            f"Token ids cannot be cached in {path.parent} ({error.strerror}); free space there or give another folder."
        ) from error
