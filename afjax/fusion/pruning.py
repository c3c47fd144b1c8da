"""Making trained adapters and fusions cheaper: adapters' layers left out (AdapterDrop), adapters left out of a fusion.

What is left out is not computed. A fusion's matrices do not depend on how many adapters it mixes, so a softmax over
fewer of them is all that masking one takes.
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
    """Positions, among the layers that have the adapter, of those that are left.

    Raises:
      UserError: A layer that has no adapter, or none left.
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
    """An adapter without what it has in some layers: its tree and its architecture.

    The LayerNorms that an adapter may carry replace the trunk's in all layers, and stay.

    Args:
      tree: The adapter's.
      config: Its architecture.
      dropped: Indices of the trunk's layers.
      num_layers: The trunk's.

    Raises:
      UserError: As :func:`left_layers`.
    """
    left = left_layers(config, dropped, num_layers)
    assert not isinstance(config, OnTop), "left_layers sees to it"
    layers = adapter_layers(config, num_layers)
    smaller = {name: take_layers(part, left) if name in config.slots else part for name, part in tree.items()}
    return smaller, dataclasses.replace(config, layers=tuple(layers[position] for position in left))


def take_layers(tree: Tree, positions: Sequence[int]) -> Any:
    """Some of the layers that the leaves are stacked over."""
    return jax.tree.map(lambda leaf: leaf[jnp.asarray(positions)], tree)


def check_kept(fusion: FusionConfig, configs: Sequence[Adapter], num_layers: int) -> None:
    """Raises UserError unless ``fusion.kept`` fits the adapters: slots, layers, numbers, and one architecture."""
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
        raise UserError(f"fusion.kept names adapter {highest}, but the fusion has {len(configs)}, from 0 on.")
    if any(config != configs[0] for config in configs):
        raise UserError(
            "Each layer can only keep adapters of its own where all adapters of the fusion have one architecture."
        )


def kept_config(config: Adapter) -> Adapter:
    """The architecture of what :func:`keep_adapters` gives."""
    if isinstance(config, PalConfig | ProjectedFfnConfig):
        return dataclasses.replace(config, shared_projections=False)
    return config


def keep_adapters(
    adapters: Sequence[Tree], config: Adapter, kept: tuple[tuple[tuple[int, ...], ...], ...]
) -> list[Tree]:
    """As many adapters as each layer keeps, put together layer by layer from those that it keeps.

    Leaves that an adapter's layers share become each layer's own.

    Args:
      adapters: The fusion's.
      config: The architecture of them all.
      kept: See ``FusionConfig.kept``.
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
