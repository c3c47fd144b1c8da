"""Converts Hugging Face checkpoints to trunks, and trunks to checkpoints."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from afjax.display.words import first_of
from afjax.errors import UserError
from afjax.trees import Tree, flatten, unflatten
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import trunk_shapes
from afjax.trunk.families import ENCODER_FAMILIES
from afjax.trunk.family import EncoderFamily, Weight

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
        raise UserError(
            f"The weights in {where} do not fit its config (- missing, + unknown): {first_of(problems, 8)}; "
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
    expected = flatten(trunk_shapes(config))
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


def without_unused(params: Tree, config: TrunkConfig) -> Tree:
    """Resets the entries of a trunk's tree that have no effect and are not in weight files.

    In some families, layer 0 lacks a weight that the other layers have. Training with weight decay can change its
    entry. Without the reset, the tree's digest would change when the trunk is saved and loaded.

    Args:
      params: A trunk's tree, with stacked layers.
      config: The trunk's architecture.
    """
    weights = [
        weight for weight in config.encoder_family.weight_names.layers.values() if weight.first_layer is not None
    ]
    if not weights:
        return params
    leaves = flatten(params)
    for weight in weights:
        for path in weight.paths:
            if (name := f"layers/{path}") in leaves:
                leaves[name] = np.array(leaves[name])
                leaves[name][0] = weight.first_layer
    return unflatten(leaves)


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
