"""Converts LoRA tensors between PEFT's layout and afjax's.

PEFT stores A ``[rank, inputs]`` and B ``[outputs, rank]`` for each module. afjax transposes them and stacks them over
layers.

ModernBERT computes query, key and value in one module. In PEFT, they share A, and each has its own rows of B. In afjax,
each has its own A and B. An export therefore stacks their As, and puts their Bs on the diagonal of a larger B, so the
module's LoRA has three times the rank. The record lists these dense layers as ``blocks``, so that an import can
separate them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from afjax.adapters.kind import dense_shape
from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import DENSE_LAYERS, DenseLayer, LoraConfig
from afjax.errors import UserError
from afjax.interop.peft.families import POOLER, dense_places, layer_prefix, module_layers
from afjax.interop.peft.files import RECORD
from afjax.interop.peft.settings import PeftSettings, Scale, scale_of
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig


class _Part(NamedTuple):
    """The LoRA of one dense layer.

    Attributes:
      scale: Its rank and scaling.
      down: A transposed, ``[inputs, rank]``.
      up: B transposed, ``[rank, outputs]``.
    """

    scale: Scale
    down: np.ndarray
    up: np.ndarray


def lora_shapes(targets: Mapping[str, Scale], trunk: TrunkConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Computes the expected shapes of the LoRA tensors, by name.

    Args:
      targets: Each module's rank and scaling, see :func:`~afjax.interop.peft.settings.read_targets`.
      trunk: The trunk's config.
      prefix: Name prefix of the encoder's modules.
    """
    dense = {module: names for module, (names, _) in dense_places(trunk).items()}
    shapes: dict[str, tuple[int, ...]] = {}
    for module, scale in targets.items():
        sizes = [(trunk.hidden_size, trunk.hidden_size)]
        if module != POOLER:
            sizes = [dense_shape(name, trunk) for name in dense[module]]
        shapes[f"{prefix}{module}.lora_A.weight"] = (scale.rank, sizes[0][0])
        shapes[f"{prefix}{module}.lora_B.weight"] = (sum(outputs for _, outputs in sizes), scale.rank)
    return shapes


def read_lora(
    targets: Mapping[str, Scale],
    tensors: Mapping[str, np.ndarray],
    trunk: TrunkConfig,
    prefix: str,
    settings: PeftSettings,
    blocks: Sequence[DenseLayer],
) -> tuple[LoraConfig, Tree, list[str]]:
    """Converts LoRA tensors from PEFT's layout.

    In afjax, all dense layers of an adapter have the same rank and scale, and every layer with LoRA has it in the same
    dense layers. Lower ranks and missing dense layers are padded with zeros. The padding does not change the output,
    not even during training.

    Args:
      targets: Each module's rank and scaling. At least one module must be in an encoder layer.
      tensors: The tensors by name.
      trunk: The trunk's config.
      prefix: Name prefix of the encoder's modules.
      settings: The adapter's settings.
      blocks: The recorded ``blocks``.

    Returns:
      The adapter config, its parameters (float32) and notes for the user.

    Raises:
      UserError: A module does not have the recorded blocks, or a rank exceeds the trunk's hidden size.
    """
    block_scale = scale_of(settings.rank, settings.alpha, settings.rank_stabilized)
    parts: dict[tuple[DenseLayer, int], _Part] = {}
    for module, (names, layer) in dense_places(trunk).items():
        if module in targets:
            down, up = (tensors[f"{prefix}{module}.lora_{letter}.weight"].T for letter in "AB")
            found = _split(_Part(targets[module], down, up), {name: dense_shape(name, trunk)[1] for name in names})
            if own := [name for name in names if name in blocks]:
                found = _take_blocks(found, own, block_scale, module)
            parts |= {(name, layer): part for name, part in found.items()}
    names = tuple(name for name in DENSE_LAYERS if any(place[0] == name for place in parts))
    layers = sorted({layer for _, layer in parts})
    scales = {part.scale for part in parts.values()}
    rank = max(scale.rank for scale in scales)
    if rank > trunk.hidden_size:
        raise UserError(
            f"{settings.where} has LoRA of rank {rank}; afjax only supports ranks up to the trunk's hidden size, "
            f"{trunk.hidden_size}."
        )
    notes = []
    if len(scales) == 1:
        alpha = next(iter(scales)).alpha
    else:
        alpha = float(rank)
        notes.append(
            f"its ranks or scales differ between modules, so all are padded to rank {rank} and scales are folded into B"
        )
    if len(parts) < len(names) * len(layers):
        notes.append("its layers have LoRA in different modules, so the missing ones are filled with zeros")
    tree: Tree = {}
    for name in names:
        inputs, outputs = dense_shape(name, trunk)
        down = np.zeros((len(layers), inputs, rank), np.float32)
        up = np.zeros((len(layers), rank, outputs), np.float32)
        for row, layer in enumerate(layers):
            part = parts.get((name, layer))
            if part is None:
                continue
            down[row, :, : part.scale.rank] = part.down
            up[row, : part.scale.rank] = part.up if len(scales) == 1 else np.float32(part.scale.scaling) * part.up
        block, dense_layer = DENSE_LAYERS[name]
        tree.setdefault(block, {})[dense_layer] = {"down": {"kernel": down}, "up": {"kernel": up}}
    config = LoraConfig(
        target_modules=names,
        rank=rank,
        alpha=alpha,
        dropout=settings.dropout,
        layers=tuple(layers) if len(layers) < trunk.num_layers else None,
    )
    return config, tree, notes


def _split(joint: _Part, sizes: Mapping[DenseLayer, int]) -> dict[DenseLayer, _Part]:
    """Splits a module's LoRA by dense layer. The dense layers share A.

    ``sizes`` are the dense layers' numbers of outputs.
    """
    ends = np.cumsum(list(sizes.values()))[:-1]
    ups = np.split(joint.up, ends, axis=1)
    return {name: joint._replace(up=up) for name, up in zip(sizes, ups, strict=True)}


def _take_blocks(
    parts: Mapping[DenseLayer, _Part], own: Sequence[DenseLayer], scale: Scale, module: str
) -> dict[DenseLayer, _Part]:
    """Reduces the LoRA of a module's dense layers to their blocks.

    Args:
      parts: The result of :func:`_split`.
      own: The dense layers with a block.
      scale: The rank and scaling of a block.
      module: The module's name, for the error message.

    Raises:
      UserError: The module does not have these blocks.
    """
    rows = {name: slice(index * scale.rank, (index + 1) * scale.rank) for index, name in enumerate(own)}
    is_diagonal = all(not np.delete(part.up, rows.get(name, slice(0)), axis=0).any() for name, part in parts.items())
    whole = parts[own[0]].scale
    if not is_diagonal or whole.rank != len(own) * scale.rank or not np.isclose(whole.scaling, scale.scaling):
        raise UserError(
            f"The LoRA of {module} does not match the blocks in {RECORD}, which are {', '.join(own)}; remove "
            f'"blocks" from {RECORD} if the tensors are correct.'
        )
    return {name: _Part(scale, parts[name].down[:, part], parts[name].up[part]) for name, part in rows.items()}


def write_lora(
    config: LoraConfig, tree: Tree, family: str, num_layers: int, prefix: str
) -> tuple[dict[str, np.ndarray], tuple[DenseLayer, ...]]:
    """Converts LoRA parameters to PEFT's tensors, by name.

    This is the inverse of :func:`read_lora`.

    Returns:
      The tensors, and the dense layers whose LoRA is a block of their module's LoRA.
    """
    tensors: dict[str, np.ndarray] = {}
    blocks: tuple[DenseLayer, ...] = ()
    for module, names in module_layers(family).items():
        own = tuple(name for name in names if name in config.target_modules)
        if not own:
            continue
        leaves = {name: tree[DENSE_LAYERS[name][0]][DENSE_LAYERS[name][1]] for name in own}
        downs, ups = (
            {name: np.asarray(leaf[part]["kernel"]) for name, leaf in leaves.items()} for part in ("down", "up")
        )
        shared = downs[own[0]]
        has_blocks = own != names or not all(np.array_equal(down, shared) for down in downs.values())
        blocks += own if has_blocks else ()
        for row, layer in enumerate(adapter_layers(config, num_layers)):
            if has_blocks:
                a = np.concatenate([down[row] for down in downs.values()], axis=-1)  # [inputs, rank * blocks]
                b = _diagonal(names, {name: up[row] for name, up in ups.items()})
            else:
                a, b = shared[row], np.concatenate([up[row] for up in ups.values()], axis=-1)
            name = f"{prefix}{layer_prefix(family, layer)}{module}"
            tensors |= {f"{name}.lora_A.weight": a.T, f"{name}.lora_B.weight": b.T}
    return tensors, blocks


def _diagonal(names: Sequence[DenseLayer], ups: Mapping[DenseLayer, np.ndarray]) -> np.ndarray:
    """Puts the matrices ``[rank, outputs]`` on the diagonal.

    Dense layers without LoRA get columns of zeros.

    Returns:
      ``[rank * len(ups), outputs * len(names)]``.
    """
    zeros = np.zeros_like(next(iter(ups.values())))
    return np.concatenate(
        [np.concatenate([ups[name] if name == row else zeros for name in names], axis=-1) for row in ups]
    )


def merged_pooler(pooler: Tree, scale: Scale, tensors: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Merges LoRA into the trunk's pooler, and returns the merged layer's tensors (float32) by name."""
    a, b = (tensors[f"{prefix}{POOLER}.lora_{part}.weight"] for part in "AB")
    change = np.float32(scale.scaling) * (a.T @ b.T)  # [inputs, outputs]
    kernel = np.asarray(pooler["kernel"], np.float32) + change
    return {f"{prefix}{POOLER}.weight": kernel.T, f"{prefix}{POOLER}.bias": np.asarray(pooler["bias"], np.float32)}
