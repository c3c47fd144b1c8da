"""Loads TensorFlow checkpoints. No other module imports TensorFlow."""

import glob
import importlib.util
import os
from pathlib import Path

import numpy as np

from afjax.errors import UserError
from afjax.storage.paths import AnyPath, error_text, fetched

_INDEX = ".index"
_DATA = ".data-"


def read_variables(source: AnyPath) -> dict[str, np.ndarray]:
    """Loads all variables of a checkpoint, by name.

    Args:
      source: The checkpoint (``model.ckpt-343``, with or without ``.index``), or a folder that contains exactly one
        checkpoint. On ``gs://``, it must be a folder, because a checkpoint consists of several files.

    Raises:
      UserError: There is no checkpoint, more than one, or a damaged one, or TensorFlow is not installed.
    """
    prefix = find_checkpoint(source)
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            f"{prefix} is a TensorFlow checkpoint, but TensorFlow is not installed; run pip install 'afjax[tf]'."
        )
    # Silence TensorFlow's log messages about CPU instruction sets.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow

    try:
        reader = tensorflow.train.load_checkpoint(str(prefix))
        return {name: np.asarray(reader.get_tensor(name)) for name in sorted(reader.get_variable_to_shape_map())}
    except Exception as error:  # Damaged files raise many exception types, not only TensorFlow's.
        raise UserError(
            f"{prefix} cannot be read as a TensorFlow checkpoint ({error_text(error)}); copy its .index and all .data "
            "files again."
        ) from error


def find_checkpoint(source: AnyPath) -> Path:
    """Finds a checkpoint and returns its path without the file suffixes.

    Raises:
      UserError: There is no checkpoint, or the folder contains more than one.
    """
    path = fetched(source)
    if path.is_dir():
        checkpoints = sorted(entry.name.removesuffix(_INDEX) for entry in path.iterdir() if entry.name.endswith(_INDEX))
        if len(checkpoints) > 1:
            raise UserError(f"{source} contains several checkpoints: {', '.join(checkpoints)}; choose one of them.")
        if checkpoints:
            return path / checkpoints[0]
    prefix = path.with_name(path.name.removesuffix(_INDEX))
    if path.is_dir() or not prefix.with_name(prefix.name + _INDEX).is_file():
        parts = path.glob(f"*{_DATA}*") if path.is_dir() else prefix.parent.glob(f"{glob.escape(prefix.name)}{_DATA}*")
        if found := sorted(part.name.partition(_DATA)[0] for part in parts):
            raise UserError(
                f"The checkpoint {source} has no file {found[0]}{_INDEX}; copy all files of the checkpoint again."
            )
        raise UserError(
            f"There is no TensorFlow checkpoint {source}; use the path of its files without their suffixes "
            "(bert_model.ckpt for bert_model.ckpt.index), or their folder."
        )
    return prefix
