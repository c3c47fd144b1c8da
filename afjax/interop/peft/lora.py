"""Converts LoRA tensors between PEFT's layout and afjax's.

PEFT stores A ``[rank, inputs]`` and B ``[outputs, rank]`` for each module. afjax transposes them and stacks them over
layers.
"""

from collections.abc import Mapping

import numpy as np

from afjax.adapters.kind import dense_shape
from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import DENSE_LAYERS, DenseLayer, LoraConfig
from afjax.interop.peft.families import POOLER, dense_modules, layer_prefix
from afjax.interop.peft.settings import Scale
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig


def lora_shapes(targets: Mapping[str, Scale], trunk: TrunkConfig, prefix: str) -> dict[str, tuple[int, ...]]:
    """Computes the expected shapes of the LoRA tensors, by name.

    Args:
      targets: Each module's rank and scaling, see :func:`~afjax.interop.peft.settings.read_targets`.
      trunk: The trunk's config.
      prefix: Name prefix of the encoder's modules.
    """
    dense = {module: name for (name, _), module in _places(trunk).items()}
    shapes: dict[str, tuple[int, ...]] = {}
    for module, scale in targets.items():
        sizes = (trunk.hidden_size, trunk.hidden_size) if module == POOLER else dense_shape(dense[module], trunk)
        shapes[f"{prefix}{module}.lora_A.weight"] = (scale.rank, sizes[0])
        shapes[f"{prefix}{module}.lora_B.weight"] = (sizes[1], scale.rank)
    return shapes


def read_lora(
    targets: Mapping[str, Scale], tensors: Mapping[str, np.ndarray], trunk: TrunkConfig, prefix: str, dropout: float
) -> tuple[LoraConfig, Tree, list[str]]:
    """Converts LoRA tensors from PEFT's layout.

    In afjax, all modules of an adapter have the same rank and scale, and every layer with LoRA has it in the same
    dense layers. Lower ranks are padded with zeros, and missing modules are filled with zeros. The padding does not
    change the output, not even during training.

    Args:
      targets: Each module's rank and scaling. At least one module must be in an encoder layer.
      tensors: The tensors by name.
      trunk: The trunk's config.
      prefix: Name prefix of the encoder's modules.
      dropout: Dropout rate on the adapter's input.

    Returns:
      The adapter config, its parameters (float32) and notes for the user.
    """
    places = {place: targets[module] for place, module in _places(trunk).items() if module in targets}
    names = tuple(name for name in DENSE_LAYERS if any(place[0] == name for place in places))
    layers = sorted({layer for _, layer in places})
    scales = set(places.values())
    rank = max(scale.rank for scale in scales)
    notes = []
    if len(scales) == 1:
        alpha = next(iter(scales)).alpha
    else:
        alpha = float(rank)
        notes.append(
            f"its ranks or scales differ between modules, so all are padded to rank {rank} and scales are folded into B"
        )
    if len(places) < len(names) * len(layers):
        notes.append("its layers have LoRA in different modules, so the missing ones are filled with zeros")
    tree: Tree = {}
    for name in names:
        inputs, outputs = dense_shape(name, trunk)
        down = np.zeros((len(layers), inputs, rank), np.float32)
        up = np.zeros((len(layers), rank, outputs), np.float32)
        for row, layer in enumerate(layers):
            scale = places.get((name, layer))
            if scale is None:
                continue
            module = prefix + layer_prefix(trunk.family, layer) + dense_modules(trunk.family)[name]
            down[row, :, : scale.rank] = tensors[f"{module}.lora_A.weight"].T
            b = tensors[f"{module}.lora_B.weight"].T  # [rank, outputs]
            up[row, : scale.rank] = b if len(scales) == 1 else np.float32(scale.scaling) * b
        block, dense_layer = DENSE_LAYERS[name]
        tree.setdefault(block, {})[dense_layer] = {"down": {"kernel": down}, "up": {"kernel": up}}
    config = LoraConfig(
        target_modules=names,
        rank=rank,
        alpha=alpha,
        dropout=dropout,
        layers=tuple(layers) if len(layers) < trunk.num_layers else None,
    )
    return config, tree, notes


def write_lora(config: LoraConfig, tree: Tree, family: str, num_layers: int, prefix: str) -> dict[str, np.ndarray]:
    """Converts LoRA parameters to PEFT's tensors, by name.

    This is the inverse of :func:`read_lora`.
    """
    tensors = {}
    for name in config.target_modules:
        block, dense_layer = DENSE_LAYERS[name]
        part = tree[block][dense_layer]
        for row, layer in enumerate(adapter_layers(config, num_layers)):
            module = prefix + layer_prefix(family, layer) + dense_modules(family)[name]
            tensors[f"{module}.lora_A.weight"] = np.asarray(part["down"]["kernel"])[row].T
            tensors[f"{module}.lora_B.weight"] = np.asarray(part["up"]["kernel"])[row].T
    return tensors


def merged_pooler(pooler: Tree, scale: Scale, tensors: Mapping[str, np.ndarray], prefix: str) -> Tree:
    """Merges LoRA into the trunk's pooler: ``{kernel, bias}`` in float32."""
    a, b = (tensors[f"{prefix}{POOLER}.lora_{part}.weight"] for part in "AB")
    change = np.float32(scale.scaling) * (a.T @ b.T)  # [inputs, outputs]
    return {
        "kernel": np.asarray(pooler["kernel"], np.float32) + change,
        "bias": np.asarray(pooler["bias"], np.float32),
    }


def _places(trunk: TrunkConfig) -> dict[tuple[DenseLayer, int], str]:
    """Maps ``(dense layer, layer)`` to module names without the family's prefix."""
    modules = dense_modules(trunk.family)
    return {
        (name, layer): layer_prefix(trunk.family, layer) + module
        for layer in range(trunk.num_layers)
        for name, module in modules.items()
    }
