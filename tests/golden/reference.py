"""Draws random weights and padded batches for golden files, and checks that rounding hardly affects outputs.

Only the ``make_*.py`` scripts in this folder import this module. They run in their own virtual environments.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

FOLDER = Path(__file__).parent
VOCABULARY_SIZE = 97
LENGTHS = (12, 7, 1)

TRUNK = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
    "attn_implementation": "eager",
}


def randomize(module: nn.Module, seed: int, scale: float = 0.2) -> None:
    """Redraws every parameter of a module, from ``seed`` and the parameter's name.

    Kernels and embeddings are N(0, scale), biases N(0, 0.2), LayerNorm scales 1 + N(0, 0.3). These values are large
    enough that an error in any of them changes the outputs, and small enough that float32 rounding does not matter.
    They are rounded to float16, so that the files compress well.
    """
    norms = [name for name, part in module.named_modules() if isinstance(part, nn.LayerNorm)]
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(parameter.shape)
            owner, _, leaf = name.rpartition(".")
            if leaf == "bias":
                noise = 0.2 * noise
            elif owner in norms:
                noise = 1 + 0.3 * noise
            else:
                noise = scale * noise
            parameter.copy_(torch.from_numpy(noise.astype(np.float16)))


def padded_batch(
    pad_id: int, num_types: int, vocabulary_size: int = VOCABULARY_SIZE, lengths: Sequence[int] = LENGTHS
) -> dict[str, np.ndarray]:
    """Draws int32 ``tokens``, ``types`` and ``mask``, each [rows, max(lengths)], for rows of these lengths.

    All types are 0 if ``num_types`` is 0 or 1.
    """
    generator = np.random.default_rng(0)
    mask = (np.arange(max(lengths)) < np.array(lengths)[:, None]).astype(np.int32)
    tokens = generator.integers(5, vocabulary_size, mask.shape, dtype=np.int32)
    types = generator.integers(0, max(1, num_types), mask.shape, dtype=np.int32)
    return {"tokens": np.where(mask == 1, tokens, pad_id), "types": types * mask, "mask": mask}


def model_inputs(batch: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Converts the batch to torch tensors with Hugging Face's names."""
    names = {"input_ids": "tokens", "token_type_ids": "types", "attention_mask": "mask"}
    return {name: torch.from_numpy(batch[ours].astype(np.int64)) for name, ours in names.items()}


def state_arrays(module: nn.Module, *parts: str) -> dict[str, np.ndarray]:
    """Returns ``{"state/<torch key>": float32 array}`` for keys that contain any of ``parts`` (default: all keys)."""
    state = module.state_dict()
    return {f"state/{key}": state[key].numpy() for key in state if not parts or any(part in key for part in parts)}


def run_checked(model: nn.Module, compute: Callable[[], dict[str, np.ndarray]], limit: float) -> dict[str, np.ndarray]:
    """Runs ``compute()`` in float32, and checks that it differs from float64 by at most a third of ``limit``.

    This leaves a test with tolerance ``limit`` a margin for afjax's own rounding.
    """
    model.eval()
    with torch.no_grad():
        single = {name: np.array(value) for name, value in compute().items()}
        model.double()
        double = compute()
        for name, value in single.items():
            error = float(np.abs(value - double[name]).max())
            assert error < limit / 3, f"{name} is ill-conditioned: float32 is {error:.1e} from float64"
            assert value.dtype == np.float32, (name, value.dtype)
    model.float()
    return single


def save(name: str, arrays: Mapping[str, Any]) -> None:
    """Writes ``<name>.npz`` to this folder. Strings become scalar arrays."""
    path = FOLDER / f"{name}.npz"
    np.savez_compressed(path, **{key: np.asarray(value) for key, value in arrays.items()})
    print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB, {len(arrays)} arrays")
