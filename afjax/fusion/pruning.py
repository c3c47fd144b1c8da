"""Removes adapters from layers (AdapterDrop), or from a fusion.

Removed adapters are not computed. The shapes of a fusion's matrices do not depend on the number of adapters, so
removing an adapter only removes an entry from the softmax.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from afjax.adapters.kinds import adapter_layers
from afjax.config.adapters import Adapter, OnTop, PalConfig, ProjectedFfnConfig
from afjax.config.fusion import FusionConfig
from afjax.errors import UserError
from afjax.trees import Tree
from afjax.trunk.layers import for_every_layer


def remaining_layers(config: Adapter, dropped: Collection[int], num_layers: int) -> tuple[int, ...]:
    """Returns the remaining layers, as indices into the adapter's stacked leaves.

    Raises:
      UserError: The adapter is on top of the encoder, a dropped layer has no adapter, or no layer would remain.
    """
    if isinstance(config, OnTop):
        raise UserError(f"An adapter of the kind {config.kind} is on top of the encoder, so it has no layers to drop.")
    layers = adapter_layers(config, num_layers)
    unknown = sorted(set(dropped) - set(layers))
    if unknown:
        raise UserError(
            f"Layer {unknown[0]} has no adapter to drop; the adapted layers are {', '.join(map(str, layers))}."
        )
    remaining = tuple(position for position, layer in enumerate(layers) if layer not in dropped)
    if not remaining:
        raise UserError("This would drop the adapter from every layer; keep at least one.")
    return remaining


def drop_layers(tree: Tree, config: Adapter, dropped: Collection[int], num_layers: int) -> tuple[Tree, Adapter]:
    """Removes an adapter from some layers, and returns its new tree and architecture.

    An adapter's own LayerNorms are kept, because they replace the trunk's LayerNorms in all layers.

    Args:
      tree: The adapter's tree.
      config: The adapter's architecture.
      dropped: Indices of the trunk layers to remove the adapter from.
      num_layers: The trunk's number of layers.

    Raises:
      UserError: The adapter is on top of the encoder, a dropped layer has no adapter, or no layer would remain.
    """
    remaining = remaining_layers(config, dropped, num_layers)
    assert not isinstance(config, OnTop), "checked by remaining_layers"
    layers = adapter_layers(config, num_layers)
    smaller = {name: take_layers(part, remaining) if name in config.slots else part for name, part in tree.items()}
    return smaller, dataclasses.replace(config, layers=tuple(layers[position] for position in remaining))


def take_layers(tree: Tree, positions: Sequence[int]) -> Any:
    """Selects layers from stacked leaves."""
    return jax.tree.map(lambda leaf: leaf[jnp.asarray(positions)], tree)


def check_kept(fusion: FusionConfig, configs: Sequence[Adapter], num_layers: int) -> None:
    """Raises UserError unless ``fusion.kept`` is valid for the adapters.

    It must have one entry per slot and layer, with indices of fused adapters. If it is set, all adapters must have the
    same architecture.
    """
    if fusion.kept is None:
        return
    slots, layers = len(configs[0].slots), len(adapter_layers(configs[0], num_layers))
    if len(fusion.kept) != slots or any(len(slot_kept) != layers for slot_kept in fusion.kept):
        raise UserError(
            f"fusion.kept must list adapters for {slots} slots with {layers} layers each; it has slots with "
            f"{[len(slot_kept) for slot_kept in fusion.kept]} layers."
        )
    highest = max(number for slot_kept in fusion.kept for layer_kept in slot_kept for number in layer_kept)
    if highest >= len(configs):
        raise UserError(
            f"fusion.kept contains adapter {highest}, but the fusion only has adapters 0 to {len(configs) - 1}."
        )
    if any(config != configs[0] for config in configs):
        raise UserError(
            "Layers can keep different adapters only if all adapters of the fusion have the same architecture."
        )


def kept_config(config: Adapter) -> Adapter:
    """Returns the architecture of the adapters that :func:`keep_adapters` assembles."""
    if isinstance(config, PalConfig | ProjectedFfnConfig):
        return dataclasses.replace(config, shared_projections=False)
    return config


def keep_adapters(
    adapters: Sequence[Tree], config: Adapter, kept: tuple[tuple[tuple[int, ...], ...], ...]
) -> list[Tree]:
    """Assembles new adapters, layer by layer, from the adapters that each layer keeps.

    There are as many new adapters as each layer keeps. Leaves shared by an adapter's layers are copied to each layer.

    Args:
      adapters: The fusion's adapters.
      config: The adapters' architecture, which they all share.
      kept: For each slot and layer, the indices of the adapters that it keeps; see ``FusionConfig.kept``.
    """
    if "shared" in adapters[0]:
        depth = len(kept[0])
        adapters = [{"ffn": {**tree["ffn"], **for_every_layer(tree["shared"], depth)}} for tree in adapters]
    chosen: list[Tree] = []
    for index in range(len(kept[0][0])):
        tree: Tree = {}
        for slot, slot_kept in zip(config.slots, kept, strict=True):
            numbers = [layer_kept[index] for layer_kept in slot_kept]
            tree[slot] = jax.tree.map(
                lambda *leaves, numbers=numbers: jnp.stack(
                    [leaves[number][layer] for layer, number in enumerate(numbers)]
                ),
                *(adapter[slot] for adapter in adapters),
            )
        chosen.append(tree)
    return chosen
