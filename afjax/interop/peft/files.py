"""Reads and writes folders in PEFT's format.

A folder contains three files::

    adapter_config.json          the settings
    adapter_model.safetensors    the tensors: LoRA, and the modules that were trained with it
    afjax.json                   task, labels and head; only in folders exported by afjax

PEFT ignores ``afjax.json``. Tensor names consist of ``base_model.model.`` and the base model's module name. They do
not include the adapter's name.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from afjax.errors import UserError
from afjax.interop.tensors import Shapes
from afjax.storage import json_files
from afjax.trunk.hugging_face import check_finite

CONFIG, TENSORS, RECORD = "adapter_config.json", "adapter_model.safetensors", "afjax.json"
PICKLED = "adapter_model.bin"
ROOT = "base_model.model."
# Maximum size of a JSON file. PEFT's are far smaller, even if they list every dense layer (all-linear).
_MAX_JSON_BYTES = 4 * 2**20
_DTYPES = ("F64", "F32", "F16", "BF16")
# A tensor of VeLoRA, which saves memory in training and does not change the adapter.
_UNUSED = ".lora_velora_embed"
_LORA = re.compile(r"(.+)\.lora_(A|B)\.weight")
_ADVICE = "download the folder again"


class Header(NamedTuple):
    """Tensor names and shapes in a safetensors file. Names omit ``base_model.model.``.

    Attributes:
      path: Path of the file.
      lora: Shapes of A ``[rank, inputs]`` and B ``[outputs, rank]``, by module.
      saved: Shapes of the other tensors.
    """

    path: Path
    lora: Mapping[str, Mapping[str, tuple[int, ...]]]
    saved: Shapes


def read_object(path: Path) -> dict[str, Any] | None:
    """Loads a JSON object from a file, or returns None if the file does not exist.

    Raises:
      UserError: The file is too large, cannot be read, or does not contain a JSON object.
    """
    if os.path.isfile(path) and (size := path.stat().st_size) > _MAX_JSON_BYTES:
        raise UserError(
            f"{path} has {size} bytes, more than the limit of {_MAX_JSON_BYTES}; check that it really comes from PEFT."
        )
    return json_files.read_json(path, advice=_ADVICE)


def read_header(folder: Path) -> Header:
    """Reads the names and shapes of a folder's tensors without loading the tensors.

    Raises:
      UserError: The file is missing, damaged, a pickle or not a PEFT file, contains no LoRA, or has tensors of an
        unsupported dtype.
    """
    from safetensors import SafetensorError, safe_open

    path = folder / TENSORS
    if not path.exists():
        if (folder / PICKLED).exists():
            raise UserError(
                f"{folder / PICKLED} is a pickle, which can run code when loaded; afjax only loads {TENSORS}. To write "
                "that file, load the adapter with PEFT and call save_pretrained."
            )
        raise UserError(
            f"{path} does not exist; {_ADVICE}. If there is only {PICKLED}, which is a pickle, load the adapter with "
            "PEFT and call save_pretrained."
        )
    lora: dict[str, dict[str, tuple[int, ...]]] = {}
    saved: dict[str, tuple[int, ...]] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            for key in file.keys():  # noqa: SIM118  (the file is not a mapping)
                part = file.get_slice(key)
                if not key.startswith(ROOT):
                    raise UserError(
                        f"{path} has the tensor {key}, but PEFT's tensor names start with {ROOT}; {_ADVICE}."
                    )
                if part.get_dtype() not in _DTYPES:
                    raise UserError(
                        f"{path}: {key} has the dtype {part.get_dtype()}; save the adapter as one of "
                        f"{', '.join(_DTYPES)}."
                    )
                if key.endswith(_UNUSED):
                    continue
                name, shape = key.removeprefix(ROOT), tuple(part.get_shape())
                match = _LORA.fullmatch(name)
                if match:
                    lora.setdefault(match[1], {})[match[2]] = shape
                else:
                    saved[name] = shape
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors ({error}); {_ADVICE}.") from None
    if not lora:
        raise UserError(f"{path} has no LoRA tensors (lora_A, lora_B); {_ADVICE}.")
    return Header(path, lora, saved)


def tensors_digest(path: Path) -> str:
    """Computes the digest of a file of tensors, which :func:`write_folder` records."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_tensors(header: Header, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Loads tensors as float32.

    Names omit ``base_model.model.``, both in ``names`` and in the result.

    Raises:
      UserError: The file is damaged, or a tensor contains NaN or infinity.
    """
    import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(header.path, framework="numpy") as file:
            tensors = {name: file.get_tensor(ROOT + name).astype(np.float32) for name in names}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{header.path} cannot be read as safetensors ({error}); {_ADVICE}.") from None
    check_finite(tensors, str(header.path))
    return tensors


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray], record: Mapping[str, Any]
) -> None:
    """Writes an adapter's files. Names in ``tensors`` omit ``base_model.model.``.

    The record gets the digest of the tensors' file, so that an import notices if they were trained again.
    """
    from safetensors.numpy import save

    arrays = {ROOT + name: np.ascontiguousarray(tensor, np.float32) for name, tensor in sorted(tensors.items())}
    # Serialize in memory. On a full disk, safetensors' own writer does not raise an OSError.
    contents = save(arrays, metadata={"format": "pt"})
    (folder / TENSORS).write_bytes(contents)
    digest = {"tensors_sha256": hashlib.sha256(contents).hexdigest()}
    for name, values in ((CONFIG, config), (RECORD, {**record, **digest})):
        (folder / name).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
