"""Writes host arrays as Orbax checkpoints, and reads them with strict checks.

Neither :func:`write` nor :func:`read` synchronizes with other processes of a multi-host run.
"""

import contextlib
import errno
import hashlib
import logging
import math
import os
import re
import shutil
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from afjax.errors import UserError
from afjax.storage.paths import error_text, is_remote
from afjax.store.manifest import REPAIR, Manifest, describe, names_difference
from afjax.trees import Tree, flatten, map_with_path


def write(folder: epath.Path, params: Tree) -> dict[str, str]:
    """Writes a tree of host arrays to a new folder.

    Returns:
      ``{path in folder: SHA-256}`` for all files written.

    Raises:
      OSError: A file could not be written.
    """
    import orbax.checkpoint as ocp

    size = sum(leaf.nbytes for leaf in flatten(params).values())
    check_free_space(folder.parent, size)
    try:
        with quiet_orbax():
            _checkpointer().save(folder, args=ocp.args.PyTreeSave(params))
    except OSError:
        raise
    except Exception as error:  # TensorStore raises ValueError for any system error.
        raise OSError(system_reason(error)) from error
    return {path: _file_digest(folder / path) for path in _files(folder)}


def read(folder: epath.Path, manifest: Manifest, where: str) -> Tree:
    """Reads a checkpoint as NumPy arrays and checks it against the manifest.

    Args:
      folder: The checkpoint's folder.
      manifest: The artifact's manifest.
      where: The name of the artifact in error messages.

    Raises:
      UserError: A leaf or file is missing (``-``), extra (``+``) or unreadable, or its bytes, shape or dtype differ
        from the manifest.
    """
    import orbax.checkpoint as ocp

    try:
        # Check the files first, because Orbax prints tracebacks from its threads for damaged files.
        _check_files(folder, manifest, where)
        with quiet_orbax():
            checkpointer = _checkpointer()
            metadata = checkpointer.metadata(folder).item_metadata.tree
            # Check the shapes before allocating any array: a damaged or forged shape could exhaust memory.
            _check_shapes(flatten(metadata), manifest, where)
            # Restore NumPy arrays, which do not depend on the devices used for training.
            as_numpy = map_with_path(lambda path, leaf: ocp.RestoreArgs(restore_type=np.ndarray), metadata)
            params = checkpointer.restore(folder, args=ocp.args.PyTreeRestore(restore_args=as_numpy))
    except UserError:
        raise
    except Exception as error:  # Orbax and TensorStore raise various exceptions for unreadable files.
        # Not error_text, which would leave out the path of an OSError.
        reason = str(error).partition("\n")[0]
        raise UserError(f"{where} cannot be read ({reason}); {REPAIR}.") from error
    _check_leaves(params, manifest, where)
    return params


def _check_files(folder: epath.Path, manifest: Manifest, where: str) -> None:
    leaf_of_folder = {path.replace("/", "."): path for path in manifest.leaves}

    def part(file: str) -> str:
        first = file.partition("/")[0]
        return leaf_of_folder.get(first, first)

    existing = _files(folder)
    missing = {part(file) for file in manifest.files.keys() - set(existing)}
    extra = {part(file) for file in set(existing) - manifest.files.keys()}
    if missing or extra:
        difference = names_difference(missing, extra)
        raise UserError(f"{where} has the wrong leaves or files (- missing, + unexpected): {difference}; {REPAIR}.")
    for file in existing:
        if _file_digest(folder / file) != manifest.files[file]:
            raise UserError(
                f'{where}: "{part(file)}" was changed after it was written (the SHA-256 of {folder / file} does '
                f"not match the manifest); {REPAIR}."
            )


def _check_shapes(metadata: dict[str, Any], manifest: Manifest, where: str) -> None:
    """Raises UserError if a checkpoint's leaves or shapes differ from the manifest.

    Only the checkpoint's metadata is read.
    """
    difference = names_difference(manifest.leaves, metadata)
    if difference:
        raise UserError(f"{where} has the wrong leaves (- missing, + not in the manifest): {difference}; {REPAIR}.")
    for path, leaf in metadata.items():
        shape = manifest.leaves[path]["shape"]
        # A leaf is stored as one chunk. Reading allocates the full chunk, even if the leaf is smaller.
        chunk = getattr(leaf.storage, "chunk_shape", None) or leaf.shape
        if list(leaf.shape) != shape or math.prod(chunk) > max(math.prod(shape), 1):
            raise UserError(
                f'{where}: the leaf "{path}" has shape {list(leaf.shape)}, but the manifest has {shape}; {REPAIR}.'
            )


def _check_leaves(params: Tree, manifest: Manifest, where: str) -> None:
    for path, leaf in flatten(params).items():
        for key, value in describe(np.asarray(leaf)).items():
            if value != manifest.leaves[path][key]:
                raise UserError(
                    f'{where}: the leaf "{path}" has {key} {value}, but the manifest has '
                    f"{manifest.leaves[path][key]}; {REPAIR}."
                )


def _checkpointer() -> Any:
    """Returns an Orbax checkpointer that writes one folder per leaf.

    It does not synchronize with other processes.
    """
    import orbax.checkpoint as ocp

    this = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=this, active_processes={this}, barrier_sync_key_prefix=f"afjax_store_{this}"
    )
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False, multiprocessing_options=options)
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def check_free_space(folder: epath.Path, size: int) -> None:
    """Raises OSError if a local disk has less free space than ``size`` bytes.

    Call this before Orbax writes, because its threads print tracebacks if the disk is full.
    """
    if not is_remote(folder) and shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def system_reason(error: Exception) -> str:
    """Extracts why Orbax or TensorStore failed.

    This is the system's error message if its code is known.
    """
    code = re.search(r"os_error_code='(\d+)'", str(error))
    return os.strerror(int(code[1])) if code else error_text(error)


@contextlib.contextmanager
def quiet_orbax() -> Iterator[None]:
    """Silences Orbax's log messages within the block.

    Errors are still raised as exceptions.
    """

    def not_orbax(record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    logger = logging.getLogger("absl")
    logger.addFilter(not_orbax)
    try:
        yield
    finally:
        logger.removeFilter(not_orbax)


def _files(folder: epath.Path) -> list[str]:
    """Lists the relative paths of all files below ``folder``, sorted."""
    paths: list[str] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            paths.extend(f"{entry.name}/{path}" for path in _files(entry))
        else:
            paths.append(entry.name)
    return sorted(paths)


def _file_digest(file: epath.Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
