"""Caches token ids in files, which are named by a digest of everything that the ids depend on."""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from jaxtyping import Shaped

from afjax.data.pieces import check_fast
from afjax.data.splits import AnyRows
from afjax.errors import UserError
from afjax.storage.paths import error_text

Arrays = dict[str, Shaped[np.ndarray, "..."]]


def cached_arrays(
    rows: AnyRows, tokenizer: Any, version: str, settings: str, make: Callable[[], Arrays], cache_dir: Path | None
) -> Arrays:
    """Loads a split's arrays from the cache. If they are missing or damaged, makes and saves them.

    Args:
      rows: The split.
      tokenizer: A fast transformers tokenizer.
      version: The version of the arrays. Increment it when their names or their computation change.
      settings: All settings that the arrays depend on, such as the maximum length.
      make: Makes the arrays.
      cache_dir: The cache folder, or None to make the arrays without saving them.

    Raises:
      UserError: The tokenizer is not fast, or the file cannot be written.
    """
    check_fast(tokenizer)
    if cache_dir is None:
        return make()
    path = cache_dir / f"{token_digest(version, settings, tokenizer, rows.texts_digest())}.npz"
    arrays = read_arrays(path)
    if arrays is None:
        arrays = make()
        write_arrays(path, arrays)
    return arrays


def token_digest(version: str, settings: str, tokenizer: Any, texts_digest: str) -> str:
    """Returns the SHA-256 (hex) of everything that a split's token ids depend on.

    Args:
      version: The version of the arrays.
      settings: All settings, such as the maximum length.
      tokenizer: A fast transformers tokenizer.
      texts_digest: A digest of the split's texts.
    """
    names = ",".join(tokenizer.model_input_names)
    tokenizer_digest = hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest()
    # to_str does not contain this setting.
    special = " encode_special_tokens" if tokenizer.backend_tokenizer.encode_special_tokens else ""
    everything = f"{version} {tokenizers.__version__} {settings}{special} {names} {tokenizer_digest} {texts_digest}"
    return hashlib.sha256(everything.encode()).hexdigest()


def read_arrays(path: Path) -> Arrays | None:
    """Loads arrays saved by :func:`write_arrays`.

    Returns None if the file is missing or damaged.
    """
    try:
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    # zipfile raises RuntimeError, or its subclass NotImplementedError, for unknown flags and versions in a header.
    except (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile):
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
                # After an interrupt, the file may already be renamed.
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise UserError(
            f"Token ids cannot be cached in {path.parent} ({error_text(error)}); free up space there, or choose "
            "another folder with the environment variable AFJAX_CACHE (cache_dir in Python)."
        ) from error
