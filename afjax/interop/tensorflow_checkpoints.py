"""Reads TensorFlow checkpoints. Only this module imports TensorFlow itself."""

import importlib.util
import os
from pathlib import Path

import numpy as np

from afjax.errors import UserError
from afjax.storage.paths import AnyPath, fetched

_INDEX = ".index"


def read_variables(source: AnyPath) -> dict[str, np.ndarray]:
    """Reads all variables of a checkpoint, by name.

    Args:
      source: The checkpoint (``model.ckpt-343``, with or without ``.index``), or a folder that contains exactly one
        checkpoint. Local or ``gs://``.

    Raises:
      UserError: There is no checkpoint or more than one, it is damaged, or TensorFlow is not installed.
    """
    prefix = find_checkpoint(source)
    if importlib.util.find_spec("tensorflow") is None:
        raise UserError(
            f"{prefix} is a TensorFlow checkpoint, and TensorFlow is not installed; run pip install 'afjax[tf]'."
        )
    # Silences TensorFlow's messages about the instruction set that it was built for.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow

    try:
        reader = tensorflow.train.load_checkpoint(str(prefix))
        return {name: np.asarray(reader.get_tensor(name)) for name in sorted(reader.get_variable_to_shape_map())}
    except Exception as error:  # A damaged file raises many types, not only TensorFlow's.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"{prefix} cannot be read as a TensorFlow checkpoint ({reason}); it needs its .index and all of its .data "
            "files: copy them again."
        ) from error


def find_checkpoint(source: AnyPath) -> Path:
    """Returns the path of a checkpoint's files, without their suffixes.

    Raises:
      UserError: There is no checkpoint, or the folder contains more than one.
    """
    path = fetched(source)
    if path.is_dir():
        checkpoints = sorted(entry.name.removesuffix(_INDEX) for entry in path.iterdir() if entry.name.endswith(_INDEX))
        if len(checkpoints) > 1:
            raise UserError(f"{source} holds several checkpoints: {', '.join(checkpoints)}; give one of them.")
        if checkpoints:
            return path / checkpoints[0]
    prefix = path.with_name(path.name.removesuffix(_INDEX))
    if path.is_dir() or not prefix.with_name(prefix.name + _INDEX).is_file():
        raise UserError(
            f"There is no TensorFlow checkpoint {source}; give the path of its files without their endings "
            "(bert_model.ckpt of bert_model.ckpt.index), or their folder."
        )
    return prefix
