"""Hugging Face's BERT and RoBERTa checkpoints: config.json, weights, and the table between their names and ours."""

import importlib.util
import json
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from afjax.errors import UserError
from afjax.model.encoder import TrunkConfig, init_trunk
from afjax.trees import Tree, flatten, unflatten

_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}

# Hugging Face name -> ours, and whether the matrix is transposed (torch keeps [out, in], we [in, out]).
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": ("embeddings/word", False),
    "embeddings.position_embeddings.weight": ("embeddings/position", False),
    "embeddings.token_type_embeddings.weight": ("embeddings/type", False),
    "embeddings.LayerNorm.weight": ("embeddings/norm/scale", False),
    "embeddings.LayerNorm.bias": ("embeddings/norm/bias", False),
}
_POOLER = {
    "pooler.dense.weight": ("pooler/kernel", True),
    "pooler.dense.bias": ("pooler/bias", False),
}
_LAYER = {
    f"{theirs}.{kind}": (f"layers/{ours}/{leaf}", kind == "weight" and leaf == "kernel")
    for theirs, ours, leaves in (
        ("attention.self.query", "attention/query", ("kernel", "bias")),
        ("attention.self.key", "attention/key", ("kernel", "bias")),
        ("attention.self.value", "attention/value", ("kernel", "bias")),
        ("attention.output.dense", "attention/output", ("kernel", "bias")),
        ("attention.output.LayerNorm", "attention/norm", ("scale", "bias")),
        ("intermediate.dense", "ffn/intermediate", ("kernel", "bias")),
        ("output.dense", "ffn/output", ("kernel", "bias")),
        ("output.LayerNorm", "ffn/norm", ("scale", "bias")),
    )
    for kind, leaf in zip(("weight", "bias"), leaves, strict=True)
}


def read_trunk_config(folder: Path) -> TrunkConfig:
    """Reads ``config.json`` of a BERT or RoBERTa checkpoint.

    Raises:
      UserError: Missing or malformed, or an architecture that is not supported.
    """
    path = folder / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist; a trunk's folder holds config.json, weights and a tokenizer."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({error}); fetch the trunk again.") from None
    return trunk_config(values, where=str(path))


def trunk_config(values: Mapping[str, Any], where: str) -> TrunkConfig:
    """Our architecture from a Hugging Face config's values."""
    family = values.get("model_type")
    if family not in ("bert", "roberta"):
        raise UserError(f'{where} describes a "{family}" model; afjax takes "bert" and "roberta" encoders.')
    if values.get("position_embedding_type", "absolute") != "absolute" or values.get("is_decoder"):
        raise UserError(f"{where} describes a decoder or relative positions; afjax takes plain BERT/RoBERTa encoders.")
    activation = values.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS:
        raise UserError(f'{where} has the activation "{activation}"; afjax knows {", ".join(_ACTIVATIONS)}.')
    try:
        config = TrunkConfig(
            family=family,
            vocab_size=values["vocab_size"],
            hidden_size=values["hidden_size"],
            num_layers=values["num_hidden_layers"],
            num_heads=values["num_attention_heads"],
            intermediate_size=values["intermediate_size"],
            max_positions=values["max_position_embeddings"],
            type_vocab_size=values["type_vocab_size"],
            layer_norm_epsilon=values.get("layer_norm_eps", 1e-12),
            activation=_ACTIVATIONS[activation],
            hidden_dropout=values.get("hidden_dropout_prob", 0.1),
            attention_dropout=values.get("attention_probs_dropout_prob", 0.1),
            pad_id=values.get("pad_token_id", 0 if family == "bert" else 1),
        )
    except KeyError as error:
        raise UserError(f"{where} lacks {error.args[0]!r}; fetch the trunk's config.json again.") from None
    if config.hidden_size % config.num_heads:
        raise UserError(f"{where}: hidden_size {config.hidden_size} is not a multiple of {config.num_heads} heads.")
    return config


def read_tensors(
    folder: Path, *, safetensors: str = "model.safetensors", pickled: str = "pytorch_model.bin"
) -> dict[str, np.ndarray]:
    """The tensors of a folder's file of safetensors, else of its file that PyTorch has pickled, by their own names.

    Raises:
      UserError: Neither is there, or it cannot be read.
    """
    for name in (safetensors, pickled):
        if (folder / name).exists():
            return read_tensor_file(folder / name)
    raise UserError(f"{folder} has no weights; it needs {safetensors} (or {pickled}).")


def read_tensor_file(path: Path) -> dict[str, np.ndarray]:
    """The tensors of one file by their names: ``.safetensors``, or else PyTorch's own format.

    Raises:
      UserError: It cannot be read, or holds anything but tensors, or PyTorch is needed and not installed.
    """
    return _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickled(path)


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    import ml_dtypes  # noqa: F401  (lets NumPy hold bfloat16 tensors)
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors ({error}); fetch the file again.") from None


def _read_pickled(path: Path) -> dict[str, np.ndarray]:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{path} is a PyTorch file, and PyTorch is not installed; install it (pip install 'afjax[torch]'), or give "
            "the tensors as safetensors."
        )
    import torch

    try:
        with warnings.catch_warnings():
            # Of unusual pickles, which are read or refused all the same.
            warnings.simplefilter("ignore")
            # weights_only: nothing in the file is executed.
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in tensors.items()}
    except pickle.UnpicklingError:
        # PyTorch's own words advise to read it unsafely.
        raise UserError(
            f"{path} cannot be read as plain tensors: it holds something else, which is not run, or is damaged; fetch "
            "the file again."
        ) from None
    except Exception as error:  # torch.load raises whatever the damaged pickle makes it raise.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read as plain tensors ({reason}); fetch the file again.") from None


def from_hugging_face(tensors: Mapping[str, np.ndarray], config: TrunkConfig, *, where: str) -> Tree:
    """Maps Hugging Face tensors to a trunk's tree, float32.

    Language-model and task heads in ``tensors`` are left out; the pooler is taken where there is one.

    Raises:
      UserError: Lists the tensors that are missing, superfluous, or of another shape than the config says.
    """
    named = {_plain_name(name, config.family): np.asarray(tensor) for name, tensor in tensors.items()}
    table = dict(_EMBEDDINGS)
    if any(name in named for name in _POOLER):
        table |= _POOLER
    missing = [name for name in table if name not in named]
    leaves = {path: _convert(named[name], transposed) for name, (path, transposed) in table.items() if name in named}
    for name, (path, transposed) in _LAYER.items():
        names = [f"encoder.layer.{layer}.{name}" for layer in range(config.num_layers)]
        missing += [name for name in names if name not in named]
        parts = [_convert(named[name], transposed) for name in names if name in named]
        if len({part.shape for part in parts}) == 1:
            leaves[path] = np.stack(parts)
    layer_names = {f"encoder.layer.{layer}.{name}" for layer in range(config.num_layers) for name in _LAYER}
    extra = sorted(name for name in named if name.startswith("encoder.") and name not in layer_names)
    problems = [f"- {name}" for name in missing] + [f"+ {name}" for name in extra]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UserError(
            f"The weights in {where} do not fit its config (- missing, + unknown): {', '.join(problems[:8])}{more}; "
            f"fetch the trunk again, or check that it is a {config.family} encoder."
        )
    _check_shapes(leaves, config, where)
    return unflatten(leaves)


def _plain_name(name: str, family: str) -> str:
    name = name.removeprefix(f"{family}.")
    # The oldest BERT checkpoints still carry TensorFlow's names.
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    return name.removesuffix("beta") + "bias" if name.endswith("LayerNorm.beta") else name


def _convert(tensor: np.ndarray, transposed: bool) -> np.ndarray:
    tensor = tensor.astype(np.float32)
    return np.ascontiguousarray(tensor.T) if transposed else tensor


def _check_shapes(leaves: Mapping[str, np.ndarray], config: TrunkConfig, where: str) -> None:
    wanted = flatten(jax.eval_shape(lambda: init_trunk(jax.random.key(0), config)))
    wrong = [
        f"{path} {list(leaves[path].shape) if path in leaves else 'uneven'} (config: {list(leaf.shape)})"
        for path, leaf in wanted.items()
        if not (path.startswith("pooler/") and path not in leaves)
        and (path not in leaves or leaves[path].shape != leaf.shape)
    ]
    if wrong:
        raise UserError(f"The weights in {where} have other shapes than its config.json says: {', '.join(wrong[:4])}.")


def to_hugging_face(params: Tree) -> dict[str, np.ndarray]:
    """The inverse of :func:`from_hugging_face`: Hugging Face names and torch's layout."""
    leaves = flatten(params)
    tensors = {}
    for name, (path, transposed) in (_EMBEDDINGS | _POOLER).items():
        if path in leaves:
            tensors[name] = np.asarray(leaves[path]).T if transposed else np.asarray(leaves[path])
    for name, (path, transposed) in _LAYER.items():
        for layer, part in enumerate(np.asarray(leaves[path])):
            tensors[f"encoder.layer.{layer}.{name}"] = part.T if transposed else part
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
