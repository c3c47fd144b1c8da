"""Drops layers of adapters and fusions (AdapterDrop), or adapters of a fusion.

Dropped layers and adapters are not computed. A fusion's matrices do not depend on the number of adapters, so dropping
one only changes the softmax, which is then over fewer adapters.
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


def left_layers(config: Adapter, dropped: Collection[int], num_layers: int) -> tuple[int, ...]:
    """Returns the positions of the remaining layers among the adapter's layers.

    Raises:
      UserError: The adapter sits on top of the encoder, a dropped layer has no adapter, or no layer would be left.
    """
    if isinstance(config, OnTop):
        raise UserError(f"An adapter of the kind {config.kind} sits on top of the encoder; it has no layers to drop.")
    layers = adapter_layers(config, num_layers)
    unknown = sorted(set(dropped) - set(layers))
    if unknown:
        raise UserError(
            f"Layer {unknown[0]} has no adapter to drop; the adapter is in the layers {', '.join(map(str, layers))}."
        )
    left = tuple(position for position, layer in enumerate(layers) if layer not in dropped)
    if not left:
        raise UserError("Every layer's adapter would be dropped; leave at least one.")
    return left


def drop_layers(tree: Tree, config: Adapter, dropped: Collection[int], num_layers: int) -> tuple[Tree, Adapter]:
    """Removes an adapter from some layers; returns its tree and its architecture.

    An adapter's own LayerNorms replace the trunk's in all layers, so they are kept.

    Args:
      tree: The adapter's tree.
      config: The adapter's architecture.
      dropped: Indices of the trunk's layers.
      num_layers: Number of the trunk's layers.

    Raises:
      UserError: The adapter sits on top of the encoder, a dropped layer has no adapter, or no layer would be left.
    """
    left = left_layers(config, dropped, num_layers)
    assert not isinstance(config, OnTop), "checked by left_layers"
    layers = adapter_layers(config, num_layers)
    smaller = {name: take_layers(part, left) if name in config.slots else part for name, part in tree.items()}
    return smaller, dataclasses.replace(config, layers=tuple(layers[position] for position in left))


def take_layers(tree: Tree, positions: Sequence[int]) -> Any:
    """Selects layers from stacked leaves."""
    return jax.tree.map(lambda leaf: leaf[jnp.asarray(positions)], tree)


def check_kept(fusion: FusionConfig, configs: Sequence[Adapter], num_layers: int) -> None:
    """Raises UserError unless ``fusion.kept`` fits the adapters.

    It must have one entry per slot and layer, and name only adapters of the fusion. If it is set, all adapters must
    have the same architecture.
    """
    if fusion.kept is None:
        return
    slots, layers = len(configs[0].slots), len(adapter_layers(configs[0], num_layers))
    if len(fusion.kept) != slots or any(len(of_slot) != layers for of_slot in fusion.kept):
        raise UserError(
            f"fusion.kept must name adapters for {slots} slots of {layers} layers each; it has "
            f"{[len(of_slot) for of_slot in fusion.kept]} layers."
        )
    highest = max(number for of_slot in fusion.kept for of_layer in of_slot for number in of_layer)
    if highest >= len(configs):
        raise UserError(f"fusion.kept names adapter {highest}, but the fusion has {len(configs)}, numbered from 0.")
    if any(config != configs[0] for config in configs):
        raise UserError(
            "Each layer can only keep its own adapters if all adapters of the fusion have the same architecture."
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

    Returns as many adapters as each layer keeps. Leaves that an adapter's layers share are copied to each layer.

    Args:
      adapters: The fusion's adapters.
      config: The architecture that all of them have.
      kept: For each slot and layer, the numbers of the adapters that it keeps; see ``FusionConfig.kept``.
    """
    if "shared" in adapters[0]:
        depth = len(kept[0])
        adapters = [{"ffn": {**tree["ffn"], **for_every_layer(tree["shared"], depth)}} for tree in adapters]
    chosen: list[Tree] = []
    for place in range(len(kept[0][0])):
        tree: Tree = {}
        for slot, of_slot in zip(config.slots, kept, strict=True):
            numbers = [of_layer[place] for of_layer in of_slot]
            tree[slot] = jax.tree.map(
                lambda *leaves, numbers=numbers: jnp.stack(
                    [leaves[number][layer] for layer, number in enumerate(numbers)]
                ),
                *(adapter[slot] for adapter in adapters),
            )
        chosen.append(tree)
    return chosen
