"""Hugging Face's BERT and RoBERTa checkpoints: config, weights, tensor names."""

import dataclasses
import importlib.util
import json
import pickle
import re
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from afjax.errors import UserError
from afjax.storage.json_files import read_json
from afjax.trees import Tree, flatten, unflatten
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import init_trunk
from afjax.trunk.families import ENCODER_FAMILIES

# Hugging Face's activation -> ours. If an activation has several names, identities record the first one.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Number:
    """A number in ``config.json``.

    Attributes:
      ours: The field of ``TrunkConfig``.
      low, below: The allowed range, ``low <= value < below``, or ``low < value < below`` if ``open_low``.
      open_low: Whether ``low`` itself is excluded.
      whole: Whether the value must be an integer.
      default: The value if ``config.json`` lacks the field. None if the field is required.
    """

    ours: str
    low: float
    below: float
    open_low: bool = False
    whole: bool = False
    default: float | None = None

    @property
    def allowed(self) -> str:
        if self.open_low:
            return f"a finite number above {self.low:g}"
        if self.whole:
            return f"a whole number from {self.low} to {self.below - 1}"
        return f"a number of at least {self.low:g} and below {self.below:g}"

    def allows(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return bool(self.low <= value < self.below) and not (self.open_low and value == self.low)


def _size(field: str, limit: int = 2**31 - 1) -> _Number:
    return _Number(ours=field, low=1, below=limit + 1, whole=True)


# Name in config.json -> allowed values.
_NUMBERS = {
    "vocab_size": _size("vocab_size"),
    "hidden_size": _size("hidden_size"),
    # Far more than any encoder has. Some commands loop over the layers before any weights have been read.
    "num_hidden_layers": _size("num_layers", limit=10_000),
    "num_attention_heads": _size("num_heads"),
    "intermediate_size": _size("intermediate_size"),
    "max_position_embeddings": _size("max_positions"),
    "type_vocab_size": _size("type_vocab_size"),
    "layer_norm_eps": _Number(
        ours="layer_norm_epsilon", low=0, below=float(np.finfo(np.float32).max), open_low=True, default=1e-12
    ),
    "hidden_dropout_prob": _Number(ours="hidden_dropout", low=0, below=1, default=0.1),
    "attention_probs_dropout_prob": _Number(ours="attention_dropout", low=0, below=1, default=0.1),
}
_ADVICE = "fetch the trunk's config.json again, or correct it"

# Hugging Face name -> our path, and whether the matrix is transposed (torch uses [out, in], we use [in, out]).
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
    f"{name}.{kind}": (f"layers/{path}/{leaf}", kind == "weight" and leaf == "kernel")
    for name, path, leaves in (
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
_WEIGHTS = frozenset(_EMBEDDINGS | _POOLER)
_LAYER_NAME = re.compile(r"encoder\.layer\.(\d+)\.")
# Sizes in config.json, each with a tensor and the axis that has this size.
_SIZED = (
    ("vocab_size", "embeddings.word_embeddings.weight", 0),
    ("hidden_size", "embeddings.word_embeddings.weight", 1),
    ("max_position_embeddings", "embeddings.position_embeddings.weight", 0),
    ("type_vocab_size", "embeddings.token_type_embeddings.weight", 0),
    ("intermediate_size", "encoder.layer.0.intermediate.dense.weight", 0),
)


def read_trunk_config(folder: Path) -> TrunkConfig:
    """Reads ``config.json`` of a BERT or RoBERTa checkpoint.

    Raises:
      UserError: The file is missing or malformed, or the architecture is not supported.
    """
    path = folder / "config.json"
    values = read_json(path, advice="fetch the trunk again")
    if values is None:
        raise UserError(f"{path} does not exist; a trunk's folder holds config.json, weights and a tokenizer.")
    return trunk_config(values, where=str(path))


def trunk_config(values: Mapping[str, Any], where: str) -> TrunkConfig:
    """Converts the values of a Hugging Face config to a ``TrunkConfig``, and checks each of them.

    Args:
      values: The contents of ``config.json``. Fields that do not affect an encoder's outputs are ignored.
      where: The file's name, for error messages.

    Raises:
      UserError: A field is missing, has the wrong type or is out of range, or the model is not supported.
    """
    family = values.get("model_type")
    if not isinstance(family, str) or family not in ENCODER_FAMILIES:
        families = " and ".join(f'"{name}"' for name in ENCODER_FAMILIES)
        raise UserError(f'{where} describes a "{family}" model; afjax supports {families} encoders.')
    if values.get("position_embedding_type", "absolute") != "absolute" or values.get("is_decoder"):
        raise UserError(
            f"{where} describes a decoder or relative positions; afjax supports plain BERT/RoBERTa encoders."
        )
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UserError(f'{where} has the activation "{activation}"; afjax supports {", ".join(_ACTIVATIONS)}.')
    numbers = {}
    for name, number in _NUMBERS.items():
        value = values.get(name, number.default)
        if name not in values and value is None:
            raise UserError(f"{where} lacks {name!r}; {_ADVICE}.")
        if not number.allows(value):
            raise UserError(f"{where}: {name} is {_text(value)}; it must be {number.allowed}; {_ADVICE}.")
        numbers[number.ours] = value
    pad_id = values.get("pad_token_id")
    pad_id = ENCODER_FAMILIES[family].default_pad_id if pad_id is None else pad_id
    pad = _Number(ours="pad_id", low=0, below=numbers["vocab_size"], whole=True)
    if not pad.allows(pad_id):
        raise UserError(f"{where}: pad_token_id is {_text(pad_id)}; it must be {pad.allowed}, or null; {_ADVICE}.")
    config = TrunkConfig(family=family, activation=_ACTIVATIONS[activation], pad_id=pad_id, **numbers)
    if config.hidden_size % config.num_heads:
        raise UserError(f"{where}: hidden_size {config.hidden_size} is not a multiple of {config.num_heads} heads.")
    if config.max_length < 1:
        raise UserError(
            f"{where}: max_position_embeddings is {config.max_positions}; a {family} encoder with pad_token_id "
            f"{pad_id} needs more than {pad_id + 1}; {_ADVICE}."
        )
    return config


def config_values(config: TrunkConfig) -> dict[str, Any]:
    """The inverse of :func:`trunk_config`: every field it reads, by its name in ``config.json``.

    Equivalent config files give the same values: defaults are filled in, and an activation with several names gets the
    first one.
    """
    activation = next(name for name, value in _ACTIVATIONS.items() if value == config.activation)
    numbers = {name: getattr(config, number.ours) for name, number in _NUMBERS.items()}
    return {"model_type": config.family, **numbers, "hidden_act": activation, "pad_token_id": config.pad_id}


def _text(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


def read_tensors(
    folder: Path, *, safetensors: str = "model.safetensors", pickled: str = "pytorch_model.bin"
) -> dict[str, np.ndarray]:
    """Reads a folder's tensors by name.

    Prefers the safetensors file to the pickled PyTorch file.

    Raises:
      UserError: The folder has neither file, or the file cannot be read.
    """
    for name in (safetensors, pickled):
        if (folder / name).exists():
            return read_tensor_file(folder / name)
    raise UserError(f"{folder} has no weights; it needs {safetensors} (or {pickled}).")


def read_tensor_file(path: Path) -> dict[str, np.ndarray]:
    """Reads the tensors of one file by name: ``.safetensors``, or else PyTorch's pickle format.

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


def _read_pickled(path: Path) -> dict[str, np.ndarray]:
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{path} is a PyTorch file, and PyTorch is not installed; install it (pip install 'afjax[torch]'), or give "
            "the tensors as safetensors."
        )
    import torch

    try:
        with warnings.catch_warnings():
            # PyTorch warns about unusual pickles. They are either read or refused, so the warnings do not help.
            warnings.simplefilter("ignore")
            # weights_only: nothing in the file is executed.
            tensors = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float().numpy() for name, tensor in tensors.items()}
    except pickle.UnpicklingError:
        # PyTorch's own message recommends loading the file unsafely.
        raise UserError(
            f"{path} cannot be read as plain tensors: it has other contents, which are not executed, or is damaged; "
            "fetch the file again."
        ) from None
    except Exception as error:  # A damaged pickle can make torch.load raise any exception.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path} cannot be read as plain tensors ({reason}); fetch the file again.") from None


def from_hugging_face(tensors: Mapping[str, np.ndarray], config: TrunkConfig, *, where: str) -> Tree:
    """Converts Hugging Face tensors to a trunk's tree, float32.

    Language-model and task heads in ``tensors`` are dropped. The pooler is kept if there is one.

    Raises:
      UserError: Tensors are missing or unknown, or their shapes do not match the config; the message lists them.
    """
    named = {_plain_name(name, config.family): np.asarray(tensor) for name, tensor in tensors.items()}
    # Only weights are checked: buffers such as position_ids are integers.
    integers = [name for name, tensor in named.items() if name in _WEIGHTS and tensor.dtype.kind in "biu"]
    integers += [name for name, tensor in named.items() if _LAYER_NAME.match(name) and tensor.dtype.kind in "biu"]
    if integers:
        raise UserError(
            f"The weights in {where} are not floating-point numbers ({integers[0]}: {named[integers[0]].dtype.name}); "
            "fetch the trunk again."
        )
    check_num_layers(config, {match[1] for name in named if (match := _LAYER_NAME.match(name))}, where)
    table = dict(_EMBEDDINGS)
    if any(name in named for name in _POOLER):
        table |= _POOLER
    layer_names = {f"encoder.layer.{layer}.{name}" for layer in range(config.num_layers) for name in _LAYER}
    missing = [name for name in table if name not in named]
    missing += sorted(layer_names - named.keys())
    extra = sorted(name for name in named if name.startswith("encoder.") and name not in layer_names)
    problems = [f"- {name}" for name in missing] + [f"+ {name}" for name in extra]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UserError(
            f"The weights in {where} do not fit its config (- missing, + unknown): {', '.join(problems[:8])}{more}; "
            f"fetch the trunk again, or check that it is a {config.family} encoder."
        )
    _check_sizes(named, config, where)
    leaves = {path: _convert(named[name], transposed) for name, (path, transposed) in table.items()}
    for name, (path, transposed) in _LAYER.items():
        parts = [_convert(named[f"encoder.layer.{layer}.{name}"], transposed) for layer in range(config.num_layers)]
        if len({part.shape for part in parts}) == 1:
            leaves[path] = np.stack(parts)
    _check_shapes(leaves, config, where)
    check_finite(leaves, where)
    return unflatten(leaves)


def check_num_layers(config: TrunkConfig, layers: Collection[str], where: str) -> None:
    """Refuses a config with more layers than the weights have.

    Called before anything is allocated per layer.

    Args:
      config: The architecture.
      layers: The indices of the layers that have tensors in the file.
      where: The file's name, for error messages.

    Raises:
      UserError: The config has more layers than the weights.
    """
    if config.num_layers > len(layers):
        raise UserError(
            f"The weights in {where} do not fit its config: num_hidden_layers is {config.num_layers}, but the weights "
            f"have {len(layers)} layers; fetch the trunk again, or check that it is a {config.family} encoder."
        )


def check_finite(leaves: Mapping[str, np.ndarray], where: str) -> None:
    """Raises UserError if weights contain NaN or infinity.

    They would turn every prediction into NaN.
    """
    for path, leaf in leaves.items():
        if not np.isfinite(leaf).all():
            raise UserError(
                f"The weights in {where} are damaged: {np.count_nonzero(~np.isfinite(leaf))} of {leaf.size} values in "
                f"{path} are NaN or infinite; fetch the file again."
            )


def _plain_name(name: str, family: str) -> str:
    name = name.removeprefix(f"{family}.")
    # The oldest BERT checkpoints still use TensorFlow's names.
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    return name.removesuffix("beta") + "bias" if name.endswith("LayerNorm.beta") else name


def _convert(tensor: np.ndarray, transposed: bool) -> np.ndarray:
    tensor = tensor.astype(np.float32)
    return np.ascontiguousarray(tensor.T) if transposed else tensor


def _check_sizes(tensors: Mapping[str, np.ndarray], config: TrunkConfig, where: str) -> None:
    """Compares the sizes in config.json with a few tensors, before arrays of these sizes are allocated."""
    for name, tensor_name, axis in _SIZED:
        shape, size = tensors[tensor_name].shape, getattr(config, _NUMBERS[name].ours)
        if len(shape) != 2 or shape[axis] != size:
            raise UserError(
                f"The weights in {where} have other shapes than its config.json says: {tensor_name} is {list(shape)}, "
                f"but {name} is {size}; fetch the trunk again."
            )


def _check_shapes(leaves: Mapping[str, np.ndarray], config: TrunkConfig, where: str) -> None:
    expected = flatten(jax.eval_shape(lambda: init_trunk(jax.random.key(0), config)))
    wrong = [
        f"{path} {list(leaves[path].shape) if path in leaves else 'uneven'} (config: {list(leaf.shape)})"
        for path, leaf in expected.items()
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
