"""Reads tensors of Hugging Face checkpoints, from safetensors or PyTorch files."""

import importlib.util
import os
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.storage.json_files import read_json, short_json

# The suffix of a file that lists the shards of the weights. It follows the name of the unsplit file.
INDEX = ".index.json"
_FETCH_AGAIN = "fetch the file again"


def read_tensors(
    folder: Path, *, safetensors: str = "model.safetensors", pickled: str = "pytorch_model.bin"
) -> dict[str, np.ndarray]:
    """Reads the tensors in a folder.

    A safetensors file has precedence over a pickled PyTorch file. Either can be split into shards. The name of the file
    that lists the shards is the name of the unsplit file with the suffix ``INDEX``.

    Args:
      folder: The folder.
      safetensors: The name of the safetensors file.
      pickled: The name of the pickled PyTorch file.

    Returns:
      ``{name: tensor}``.

    Raises:
      UserError: The folder has none of these files, or a file cannot be read.
    """
    for name in (safetensors, pickled):
        if (folder / name).exists():
            return read_tensor_file(folder / name)
        if (folder / f"{name}{INDEX}").exists():
            return _read_shards(folder / f"{name}{INDEX}")
    raise UserError(
        f"{folder} has no weights; it needs {safetensors} (or {pickled}), or {safetensors}{INDEX} with its shards."
    )


def _read_shards(path: Path) -> dict[str, np.ndarray]:
    """Reads the tensors that an index lists.

    Args:
      path: The index. Its ``weight_map`` maps the tensors' names to the shards' file names.

    Raises:
      UserError: The index is malformed, or a shard is not in the index's folder, cannot be read or lacks a tensor.
    """
    index = read_json(path, advice=_FETCH_AGAIN) or {}
    shard_of = index.get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise UserError(f"{path} needs a weight_map with the file of each tensor; {_FETCH_AGAIN}.")
    ending = Path(path.name.removesuffix(INDEX)).suffix
    for tensor, shard in shard_of.items():
        if not isinstance(shard, str) or os.path.basename(shard) != shard or not shard.endswith(ending):
            raise UserError(
                f"{path}: the file of {short_json(tensor)} is {short_json(shard)}, but it must be a {ending} file in "
                f"the same folder; {_FETCH_AGAIN}."
            )
    shards = sorted(set(shard_of.values()))
    # os.path.exists also returns False for names that no file can have.
    missing = [shard for shard in shards if not os.path.exists(path.parent / shard)]
    if missing:
        raise UserError(
            f"{path.parent} lacks {len(missing)} of {len(shards)} shards that {path.name} lists: "
            f"{', '.join(map(short_json, missing[:4]))}; fetch them."
        )
    tensors: dict[str, np.ndarray] = {}
    for shard in shards:
        in_shard = read_tensor_file(path.parent / shard)
        expected = [name for name, file in shard_of.items() if file == shard]
        lacking = [name for name in expected if name not in in_shard]
        if lacking:
            raise UserError(
                f"{path.parent / shard} lacks {len(lacking)} of {len(expected)} tensors that {path.name} lists, such "
                f"as {short_json(lacking[0])}; {_FETCH_AGAIN}."
            )
        tensors |= {name: in_shard[name] for name in expected}
    return tensors


def read_tensor_file(path: Path) -> dict[str, np.ndarray]:
    """Reads the tensors in one file.

    A file whose name does not end in ``.safetensors`` is read as a pickled PyTorch file.

    Returns:
      ``{name: tensor}``.

    Raises:
      UserError: The file cannot be read or contains anything other than tensors, or PyTorch is needed but not
        installed.
    """
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickled(path)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors ({error}); fetch the file again.") from None
    except (AttributeError, KeyError, TypeError) as error:  # NumPy lacks the dtype, such as float8.
        raise UserError(
            f"{path} has tensors of a dtype that NumPy cannot read ({error}); convert the weights to float32, float16 "
            "or bfloat16."
        ) from None


def _read_pickled(path: Path) -> dict[str, np.ndarray]:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{path} is a PyTorch file, but PyTorch is not installed; run pip install 'afjax[torch]', or convert the "
            "file to safetensors."
        )
    import torch

    try:
        with warnings.catch_warnings():
            # PyTorch warns about unusual pickles. They are either read or refused below, so ignore the warnings.
            warnings.simplefilter("ignore")
            # With weights_only, nothing in the file is executed.
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        problem = _not_tensors(tensors)
        if not problem:
            return {name: _to_numpy(tensor) for name, tensor in tensors.items()}
    except pickle.UnpicklingError:
        # PyTorch's own message recommends loading the file unsafely.
        raise UserError(
            f"{path} cannot be read as plain tensors. Either the file is damaged, or it has other contents, which are "
            "not executed. Fetch the file again."
        ) from None
    except Exception as error:  # A damaged pickle can make torch.load raise any exception.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read as plain tensors ({reason}); fetch the file again.") from None
    raise UserError(
        f"{path} contains {problem}, but it must map names to tensors. If it is a checkpoint of a training run, save "
        "the model's state_dict() to a separate file."
    )


def _not_tensors(values: Any) -> str:
    """Describes contents of a pickled file that are not named tensors.

    Returns an empty string if the file only contains named tensors.
    """
    import torch

    if not isinstance(values, Mapping):
        return f"a value of the type {type(values).__name__}"
    wrong = [(name, value) for name, value in values.items() if not isinstance(value, torch.Tensor)]
    wrong += [(name, value) for name, value in values.items() if not isinstance(name, str)]
    entries = [f"{short_json(name)} ({type(value).__name__})" for name, value in wrong]
    return f"entries that are not tensors: {first_of(entries, 4)}" if wrong else ""


def _to_numpy(tensor: Any) -> np.ndarray:
    """Converts a PyTorch tensor to float32.

    The tensor may require gradients, and it may have any layout and any floating-point type.
    """
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    array: np.ndarray = tensor.float().numpy()
    return array
