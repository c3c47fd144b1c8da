"""Converts Hugging Face checkpoints to trunks, and trunks to checkpoints."""

import dataclasses
import importlib.util
import json
import os
import pickle
import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from afjax.trunk.family import EncoderFamily, Weight

# Maps Hugging Face's names of activations to afjax's. If Hugging Face has several names for one activation, trunk
# identities record the first one.
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Number:
    """The constraints on a number in ``config.json``.

    Attributes:
      low, below: The allowed range, ``low <= value < below``, or ``low < value < below`` if ``open_low``.
      open_low: Whether ``low`` itself is excluded.
      whole: Whether the value must be an integer.
      default: The value if ``config.json`` lacks the field. None if the field is required.
    """

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


def _size(limit: int = 2**31 - 1) -> _Number:
    return _Number(low=1, below=limit + 1, whole=True)


# The allowed values of each numeric field of TrunkConfig.
_NUMBERS = {
    "vocab_size": _size(),
    "hidden_size": _size(),
    "embedding_size": _size(),
    # The limit is far above the depth of real encoders. It is needed because some commands loop over the layers before
    # they read any weights.
    "num_layers": _size(limit=10_000),
    "num_heads": _size(),
    "intermediate_size": _size(),
    "max_positions": _size(),
    "type_vocab_size": _size(),
    "position_buckets": _Number(low=2, below=2**31, whole=True),
    # A value below 1 means that this field equals max_positions.
    "max_relative_positions": _Number(low=-1, below=2**31, whole=True, default=-1),
    "layer_norm_epsilon": _Number(low=0, below=float(np.finfo(np.float32).max), open_low=True, default=1e-12),
    "hidden_dropout": _Number(low=0, below=1, default=0.1),
    "attention_dropout": _Number(low=0, below=1, default=0.1),
    "embedding_dropout": _Number(low=0, below=1),
    "global_every": _size(),
    "window": _size(),
    "rotary_theta": _Number(low=0, below=float(np.finfo(np.float32).max), open_low=True),
    "local_rotary_theta": _Number(low=0, below=float(np.finfo(np.float32).max), open_low=True),
}
# Boolean fields of TrunkConfig.
_FLAGS = ("attention_bias", "ffn_bias", "norm_bias")
# The suffix of a file that lists the shards of the weights. It follows the name of the unsplit file.
INDEX = ".index.json"
_FETCH_AGAIN = "fetch the file again"
_ADVICE = "Fetch the trunk's config.json again, or correct it."
# The first components of the names of trunks' tensors. All other tensors belong to heads.
_TRUNK_SCOPES = frozenset().union(*(family.weight_names.scopes for family in ENCODER_FAMILIES.values()))
# Constants that old versions of transformers saved together with the weights.
_BUFFERS = frozenset({"embeddings.position_ids", "embeddings.token_type_ids"})
# Sizes in TrunkConfig that are compared with a tensor's shape. The tensor is given by its leaf, followed by the axis.
_SIZED = (
    ("vocab_size", "embeddings/word", 0),
    ("hidden_size", "attention/query/kernel", 1),
    ("embedding_size", "embeddings/word", 1),
    ("max_positions", "embeddings/position", 0),
    ("type_vocab_size", "embeddings/type", 0),
    ("intermediate_size", "ffn/output/kernel", 1),
)


def read_trunk_config(folder: Path) -> TrunkConfig:
    """Reads a checkpoint's ``config.json``.

    Raises:
      UserError: The file is missing or malformed, or the architecture is not supported.
    """
    path = folder / "config.json"
    values = read_json(path, advice="fetch the trunk again")
    if values is None:
        raise UserError(f"{path} does not exist; a trunk's folder contains config.json, weights and a tokenizer.")
    return trunk_config(values, where=str(path))


def trunk_config(values: Mapping[str, Any], where: str) -> TrunkConfig:
    """Checks a Hugging Face config and converts it to a ``TrunkConfig``.

    Args:
      values: The contents of ``config.json``. Fields that do not affect an encoder's outputs are ignored.
      where: The file's name, for error messages.

    Returns:
      The architecture.

    Raises:
      UserError: A field is missing, has the wrong type or is out of range, or the model is not supported.
    """
    name = values.get("model_type")
    if name is None:
        raise UserError(
            f"{where} lacks model_type, the encoder's family; afjax supports {_quoted(ENCODER_FAMILIES)}. If you know "
            "the family, set model_type."
        )
    if not isinstance(name, str) or name not in ENCODER_FAMILIES:
        raise UserError(f'{where} describes a "{name}" model; afjax supports {_quoted(ENCODER_FAMILIES)} encoders.')
    family = ENCODER_FAMILIES[name]
    if family.plain_config is not None:
        values = family.plain_config(values, where)
    if values.get("is_decoder"):
        raise UserError(f"{where} describes a decoder (is_decoder); afjax supports plain {name} encoders.")
    # Families without a table of positions ignore this setting.
    kind = values.get("position_embedding_type", "absolute")
    if kind != "absolute" and family.position_embeddings is not None:
        raise UserError(f"{where}: position_embedding_type is {_text(kind)}; afjax only supports absolute positions.")
    for field, supported in family.required.items():
        if values.get(field, supported) != supported:
            raise UserError(
                f"{where}: {field} is {_text(values[field])}; for {name} encoders, afjax only supports "
                f"{_text(supported)}."
            )
    for field, supported in family.declared.items():
        if field not in values or values[field] not in supported:
            given = f"is {_text(values[field])}" if field in values else "is missing"
            raise UserError(
                f"{where}: {field} {given}; for {name} encoders, afjax only supports "
                f"{' or '.join(map(_text, supported))}."
            )
    activation = values.get(family.config_names["activation"], "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS:
        raise UserError(f'{where} has the activation "{activation}"; afjax supports {", ".join(_ACTIVATIONS)}.')
    numbers = {}
    for ours, number in _NUMBERS.items():
        if ours not in family.config_names:
            continue
        field = family.config_names[ours]
        value = values.get(field, family.defaults.get(ours, number.default))
        if field not in values and value is None:
            raise UserError(f"{where} lacks {field!r}. {_ADVICE}")
        if not number.allows(value):
            raise UserError(f"{where}: {field} is {_text(value)}; it must be {number.allowed}. {_ADVICE}")
        numbers[ours] = value
    flags = {ours: _flag(values, family, ours, where) for ours in _FLAGS if ours in family.config_names}
    pad_id = _pad_id(values, family, numbers["vocab_size"], where)
    if numbers.get("max_relative_positions", 1) < 1:
        numbers["max_relative_positions"] = numbers["max_positions"]
    fields = {**numbers, **flags, **family.constants}
    config = TrunkConfig(family=name, activation=_ACTIVATIONS[activation], pad_id=pad_id, **fields)
    names = family.config_names
    if config.hidden_size % config.num_heads:
        raise UserError(
            f"{where}: {names['hidden_size']} is {config.hidden_size}; it must be a multiple of the number of heads "
            f"({config.num_heads})."
        )
    if config.rotary_theta is not None and config.head_size % 2:
        raise UserError(
            f"{where}: {names['hidden_size']} is {config.hidden_size}, so each of {config.num_heads} heads has size "
            f"{config.head_size}; rotary positions need heads of an even size."
        )
    if config.max_length < 1:
        raise UserError(
            f"{where}: {names['max_positions']} is {config.max_positions}; a {name} encoder with pad_token_id {pad_id} "
            f"needs more than {family.first_position(pad_id)}. {_ADVICE}"
        )
    for field, ours in family.implied.items():
        needed = getattr(config, ours)
        if values.get(field, needed) != needed:
            raise UserError(
                f"{where}: {field} is {_text(values[field])}; for {name} encoders of this size, afjax only supports "
                f"{needed}."
            )
    buckets = config.relative_buckets
    if buckets is not None and buckets.num_buckets // 2 >= buckets.max_distance - 1:
        raise UserError(
            f"{where}: position_buckets is {buckets.num_buckets}; with {buckets.max_distance} relative positions it "
            f"must be below {2 * (buckets.max_distance - 1)}. {_ADVICE}"
        )
    return config


def _pad_id(values: Mapping[str, Any], family: EncoderFamily, vocab_size: int, where: str) -> int:
    """Reads the padding token's id.

    Attention ignores padding, so the id only matters for families whose positions depend on padding. For other
    families, an id outside the vocabulary is replaced by 0.
    """
    pad_id = values.get(family.config_names["pad_id"])
    pad_id = family.default_pad_id if pad_id is None else pad_id
    pad = _Number(low=0, below=vocab_size, whole=True)
    if pad.allows(pad_id):
        return int(pad_id)
    if type(pad_id) is int and family.first_position(0) == family.first_position(1):
        return 0
    raise UserError(f"{where}: pad_token_id is {_text(pad_id)}; it must be {pad.allowed}, or null. {_ADVICE}")


def _flag(values: Mapping[str, Any], family: EncoderFamily, ours: str, where: str) -> bool:
    """Reads a boolean field of ``config.json``."""
    field = family.config_names[ours]
    value = values.get(field, family.defaults.get(ours, True))
    if not isinstance(value, bool):
        raise UserError(f"{where}: {field} is {_text(value)}; it must be true or false. {_ADVICE}")
    return value


def _quoted(names: Iterable[str]) -> str:
    *others, last = (f'"{name}"' for name in names)
    return f"{', '.join(others)} and {last}"


def config_values(config: TrunkConfig) -> dict[str, Any]:
    """Converts a ``TrunkConfig`` back to fields of Hugging Face's ``config.json``.

    Equivalent config files give the same values, because defaults are filled in, and an activation with several names
    gets the first name.
    """
    names = config.encoder_family.config_names
    activation = next(name for name, value in _ACTIVATIONS.items() if value == config.activation)
    fields = {names[ours]: getattr(config, ours) for ours in (*_NUMBERS, *_FLAGS) if ours in names}
    values = {"model_type": config.family, **fields}
    declared = {field: supported[0] for field, supported in config.encoder_family.declared.items()}
    return {**values, names["activation"]: activation, names["pad_id"]: config.pad_id, **declared}


def _text(value: Any) -> str:
    text = json.dumps(value, default=repr)
    return text if len(text) <= 60 else f"{text[:57]}..."


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
                f"{path}: the file of {_text(tensor)} is {_text(shard)}, but it must be a {ending} file in the same "
                f"folder; {_FETCH_AGAIN}."
            )
    shards = sorted(set(shard_of.values()))
    # os.path.exists also returns False for names that no file can have.
    missing = [shard for shard in shards if not os.path.exists(path.parent / shard)]
    if missing:
        raise UserError(
            f"{path.parent} lacks {len(missing)} of {len(shards)} shards that {path.name} lists: "
            f"{', '.join(map(_text, missing[:4]))}; fetch them."
        )
    tensors: dict[str, np.ndarray] = {}
    for shard in shards:
        in_shard = read_tensor_file(path.parent / shard)
        expected = [name for name, file in shard_of.items() if file == shard]
        lacking = [name for name in expected if name not in in_shard]
        if lacking:
            raise UserError(
                f"{path.parent / shard} lacks {len(lacking)} of {len(expected)} tensors that {path.name} lists, such "
                f"as {_text(lacking[0])}; {_FETCH_AGAIN}."
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
    entries = [f"{_text(name)} ({type(value).__name__})" for name, value in wrong[:4]]
    more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
    return f"entries that are not tensors: {', '.join(entries)}{more}" if wrong else ""


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


def from_hugging_face(tensors: Mapping[str, np.ndarray], config: TrunkConfig, *, where: str) -> Tree:
    """Converts Hugging Face tensors to a trunk's tree of float32 arrays.

    Language-model and task heads in ``tensors`` are dropped. The pooler is kept if there is one.

    Args:
      tensors: The checkpoint's tensors, by name.
      config: The trunk's architecture.
      where: The checkpoint's name, for error messages.

    Raises:
      UserError: Tensors are missing or unknown, their shapes do not match the config, or values are integers, NaN or
        infinite.
    """
    names = config.encoder_family.weight_names
    named = {_plain_name(name, names.prefix): np.asarray(tensor) for name, tensor in tensors.items()}
    layer_name = re.compile(rf"{re.escape(names.layer)}\.(\d+)\.")
    # Only weights are checked, because buffers such as position_ids are integers.
    weights = names.embeddings.keys() | names.projection.keys() | names.pooler.keys()
    integers = [name for name, tensor in named.items() if name in weights and tensor.dtype.kind in "biu"]
    integers += [name for name, tensor in named.items() if layer_name.match(name) and tensor.dtype.kind in "biu"]
    if integers:
        raise UserError(
            f"The weights in {where} are not floating-point numbers ({integers[0]}: {named[integers[0]].dtype.name}); "
            "fetch the trunk again."
        )
    check_num_layers(config, {match[1] for name in named if (match := layer_name.match(name))}, where)
    table = {**_present(names.embeddings, config), **(names.projection if config.projects_embeddings else {})}
    if any(name in named for name in names.pooler):
        table |= names.pooler
    layer_table = _present(names.layers, config)
    layer_names = {
        f"{names.layer}.{layer}.{name}"
        for layer in range(config.num_layers)
        for name, weight in layer_table.items()
        if layer > 0 or weight.first_layer is None
    }
    missing = [name for name in table if name not in named]
    missing += sorted(layer_names - named.keys())
    known = table.keys() | layer_names | _BUFFERS | names.unused
    extra = sorted(name for name in named if name.partition(".")[0] in _TRUNK_SCOPES and name not in known)
    problems = [f"- {name}" for name in missing] + [f"+ {name}" for name in extra]
    if problems:
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise UserError(
            f"The weights in {where} do not fit its config (- missing, + unknown): {', '.join(problems[:8])}{more}; "
            f"fetch the trunk again, or check that it is a {config.family} encoder."
        )
    _check_sizes(named, config, where)
    leaves: dict[str, np.ndarray] = {}
    for name, weight in table.items():
        leaves |= _convert(named[name], weight)
    for name, weight in layer_table.items():
        parts = [
            _convert(named[f"{names.layer}.{layer}.{name}"], weight)
            if layer > 0 or weight.first_layer is None
            else {path: np.full(config.hidden_size, weight.first_layer, np.float32) for path in weight.paths}
            for layer in range(config.num_layers)
        ]
        for path in weight.paths:
            if len({part[path].shape for part in parts}) == 1:
                leaves[f"layers/{path}"] = np.stack([part[path] for part in parts])
    _check_shapes(leaves, config, where)
    check_finite(leaves, where)
    return unflatten(leaves)


def check_num_layers(config: TrunkConfig, layers: Collection[str], where: str) -> None:
    """Raises UserError if the config has more layers than the weights.

    Call this before allocating anything per layer.

    Args:
      config: The architecture.
      layers: The indices of the layers that have tensors in the file.
      where: The file's name, for error messages.

    Raises:
      UserError: The config has more layers than the weights.
    """
    if config.num_layers > len(layers):
        field = config.encoder_family.config_names["num_layers"]
        raise UserError(
            f"The weights in {where} do not fit its config: {field} is {config.num_layers}, but the weights have "
            f"{len(layers)} layers; fetch the trunk again, or check that it is a {config.family} encoder."
        )


def check_finite(leaves: Mapping[str, np.ndarray], where: str) -> None:
    """Raises UserError if weights contain NaN or infinity.

    Such weights would turn every prediction into NaN.
    """
    for path, leaf in leaves.items():
        if not np.isfinite(leaf).all():
            raise UserError(
                f"The weights in {where} are damaged: {np.count_nonzero(~np.isfinite(leaf))} of {leaf.size} values in "
                f"{path} are NaN or infinite; fetch the file again."
            )


def _plain_name(name: str, prefix: str) -> str:
    name = name.removeprefix(f"{prefix}.")
    # The oldest BERT checkpoints still use TensorFlow's names.
    if name.endswith("LayerNorm.gamma"):
        return name.removesuffix("gamma") + "weight"
    return name.removesuffix("beta") + "bias" if name.endswith("LayerNorm.beta") else name


def _present(table: Mapping[str, Weight], config: TrunkConfig) -> dict[str, Weight]:
    """Returns the tensors in a table that the given architecture has."""
    return {name: weight for name, weight in table.items() if weight.if_set is None or getattr(config, weight.if_set)}


def _convert(tensor: np.ndarray, weight: Weight) -> dict[str, np.ndarray]:
    """Converts a tensor to its leaves, ``{path: leaf}``."""
    parts = _split(tensor.astype(np.float32), len(weight.paths))
    return {
        path: np.ascontiguousarray(part.T) if weight.transposed else part
        for path, part in zip(weight.paths, parts, strict=True)
    }


def _split(tensor: np.ndarray, number: int) -> list[np.ndarray]:
    """Splits a tensor into equal parts along its first axis.

    If a tensor cannot be split, the parts are empty arrays, so that :func:`_check_shapes` reports them.
    """
    if number == 1:
        return [tensor]
    if tensor.ndim == 0 or len(tensor) % number:
        return [np.zeros(0, np.float32)] * number
    return np.split(tensor, number)


def _check_sizes(tensors: Mapping[str, np.ndarray], config: TrunkConfig, where: str) -> None:
    """Compares the sizes in config.json with the shapes of a few tensors.

    This check comes before arrays of these sizes are allocated.
    """
    family = config.encoder_family
    names = family.weight_names
    tensor_names = {path: name for name, weight in names.embeddings.items() for path in weight.paths}
    tensor_names |= {path: f"{names.layer}.0.{name}" for name, weight in names.layers.items() for path in weight.paths}
    for field, path, axis in _SIZED:
        # Skip sizes and tables that the family does not have. For example, some families have no table of positions.
        if field not in family.config_names or path not in tensor_names:
            continue
        tensor_name, size = tensor_names[path], getattr(config, field)
        shape = tensors[tensor_name].shape
        if len(shape) != 2 or shape[axis] != size:
            raise UserError(
                f"The weights in {where} do not have the shapes that its config.json specifies: {tensor_name} is "
                f"{list(shape)}, but {family.config_names[field]} is {size}; fetch the trunk again."
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
        raise UserError(
            f"The weights in {where} do not have the shapes that its config.json specifies: {', '.join(wrong[:4])}."
        )


def to_hugging_face(params: Tree, family: EncoderFamily) -> dict[str, np.ndarray]:
    """Converts a trunk's tree to tensors with Hugging Face's names and torch's layout."""
    names, leaves = family.weight_names, flatten(params)

    def tensor_of(parts: Sequence[Any], weight: Weight) -> np.ndarray:
        arrays = [np.asarray(part).T if weight.transposed else np.asarray(part) for part in parts]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    tensors = {}
    for name, weight in {**names.embeddings, **names.projection, **names.pooler}.items():
        if all(path in leaves for path in weight.paths):
            tensors[name] = tensor_of([leaves[path] for path in weight.paths], weight)
    for name, weight in names.layers.items():
        if weight.if_set is not None and f"layers/{weight.paths[0]}" not in leaves:
            continue
        stacks = [np.asarray(leaves[f"layers/{path}"]) for path in weight.paths]
        for layer, parts in enumerate(zip(*stacks, strict=True)):
            if layer > 0 or weight.first_layer is None:
                tensors[f"{names.layer}.{layer}.{name}"] = tensor_of(parts, weight)
    return {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
