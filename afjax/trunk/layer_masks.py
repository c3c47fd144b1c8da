"""Runs the encoder with several layer masks at once, sharing common prefixes.

A mask turns the slots of each layer on or off. Masks with a common prefix give the same hidden states in the prefix's
layers, so each layer runs once per distinct prefix. For example, an encoder with 12 layers has 78 spans of consecutive
layers. Comparing the model with 78 variants that each lack the adapters of one span takes 376 layer evaluations instead
of 948.
"""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float

from afjax.distributed.sharding import shard_rows
from afjax.nn.layers import dense
from afjax.trees import AnyArray, Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder import check_layers, embed, final_norm
from afjax.trunk.encoder_layer import EncoderLayer, shared_inputs
from afjax.trunk.layers import each_layer, trunk_layers
from afjax.trunk.pre_norm_layer import layer_forms
from afjax.trunk.slots import EMPTY_LAYER, DenseSlot, FilledSlots, LayerSlots, Slot, Sublayer, plain_slot


def encode_under_masks(
    trunk: Tree,
    config: TrunkConfig,
    batch: Mapping[str, AnyArray],
    layer_masks: Bool[np.ndarray, "masks num_layers"],
    *,
    slots: FilledSlots,
    dtype: str | None = None,
    first_token_only: bool = False,
) -> Float[Array, "batch masks queries hidden"]:
    """Runs the encoder with every mask, without dropout.

    Args:
      trunk: The trunk's tree.
      config: The trunk's architecture.
      batch: ``tokens`` and ``types`` int32, ``mask`` bool (False at padding), each ``[batch, length]``.
      layer_masks: bool ``[masks, num_layers]``. False runs a layer as if its slots were empty. Entries of layers
        without filled slots are ignored.
      slots: The contents of the slots.
      dtype: The dtype of the activations; None for the dtype of the word embeddings.
      first_token_only: Whether only the first token's last hidden state is needed.

    Returns:
      The last hidden state ``[batch, masks, length, hidden_size]``; length is 1 with ``first_token_only``.

    Raises:
      UserError: The rows have more tokens than the trunk has positions.
    """
    # Clear the ignored entries, so that masks that differ only in these entries become equal.
    has_slots = np.isin(np.arange(config.num_layers), slots.layers)
    parents, switches, ends = _branches(layer_masks & has_slots)
    slots.check_depth()
    check_layers(trunk, config)
    contents = dict(zip(slots.layers, each_layer(slots.contents), strict=True))
    x, num_rows = embed(trunk, config, batch, dtype=dtype), batch["tokens"].shape[0]
    forms, shared = layer_forms(config), shared_inputs(trunk, config, batch["mask"].astype(bool), x.dtype)
    encoder_layer: Any = EncoderLayer(config)
    x = x[:, None]  # [batch, branches, length, hidden_size]
    for index, params in enumerate(trunk_layers(trunk)):
        x = x[:, parents[index]]
        branches, length = x.shape[1:3]
        # Rows come before branches, so that rows sharded across devices stay on their device.
        x = shard_rows(x.reshape(num_rows * branches, length, -1))
        is_on = jnp.asarray(np.tile(switches[index], num_rows))[:, None, None]
        layer_slots = slots.make(contents[index], slots.shared, None) if index in contents else EMPTY_LAYER
        x, _ = encoder_layer.apply(
            {"params": params},
            x,
            shared._replace(mask=jnp.repeat(shared.mask, branches, axis=0)),
            form=jax.tree.map(lambda leaf, i=index: leaf[i], forms),
            slots=_switched_slots(layer_slots, is_on),
            first_token_only=first_token_only and index == config.num_layers - 1,
        )
        x = x.reshape(num_rows, branches, *x.shape[1:])
    return final_norm(trunk, config, x[:, ends])


def _branches(
    layer_masks: Bool[np.ndarray, "masks num_layers"],
) -> tuple[list[np.ndarray], list[np.ndarray], np.ndarray]:
    """Builds the prefix tree of the masks.

    Each branch of the tree is a distinct prefix.

    Returns:
      A tuple ``(parents, switches, ends)``. ``parents`` and ``switches`` have one array ``[branches]`` per layer:
      ``parents`` has the index of each branch's parent in the previous layer, and ``switches`` is True if the branch's
      slots are on. ``ends``, ``[masks]``, has the index of each mask's branch in the last layer.
    """
    parents, switches = [], []
    branch_of_mask = np.zeros(len(layer_masks), int)
    for layer_switches in layer_masks.T:
        branches, branch_of_mask = np.unique(
            np.stack([branch_of_mask, layer_switches], axis=1), axis=0, return_inverse=True
        )
        parents.append(branches[:, 0])
        switches.append(branches[:, 1].astype(bool))
        branch_of_mask = branch_of_mask.reshape(-1)
    return parents, switches, branch_of_mask


def _switched_slots(slots: LayerSlots, is_on: Array) -> LayerSlots:
    """Empties the slots in the rows where ``is_on`` (bool ``[rows, 1, 1]``) is False."""
    return LayerSlots(
        sublayers={name: functools.partial(_switched_slot, slot, is_on) for name, slot in slots.sublayers.items()},
        # The slots cannot be merged into the dense layers, because they are on in some rows and off in others.
        dense_layers={
            path: DenseSlot(functools.partial(_switched_dense, slot, is_on), merge=None)
            for path, slot in slots.dense_layers.items()
        },
    )


def _switched_dense(slot: DenseSlot, is_on: Array, params: Tree, x: Array) -> Array:
    return jnp.where(is_on, slot.apply(params, x), dense(params, x))


def _switched_slot(slot: Slot, is_on: Array, sublayer: Sublayer) -> tuple[Array, Array | None]:
    output, attention = slot(sublayer)
    return jnp.where(is_on, output, plain_slot(sublayer)[0]), attention
