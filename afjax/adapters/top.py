"""Task modules on top of the encoder (Stickland & Murray 2019, section 3.1).

They map the last hidden state to the one that heads read: ``VD g(VE h)``, or one whole layer more. The tree::

    top/{encode, decode}/{kernel, bias}                       VE [d, s] and VD [s, d]
    top/layers/attention/{query, key, value, output, norm}    attention blocks; leaves stacked over them
    top/layers/ffn/{0, 1, ..., norm}                          or feed-forward blocks: their dense layers in order
    top/layer/{attention, ffn}                                or a layer as the trunk's
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from afjax.config.adapters import OnTop, TopAttentionConfig, TopFfnConfig, TopLayerConfig
from afjax.nn.layers import ACTIVATIONS, dense, dropout, layer_norm, split_key
from afjax.trees import Tree, named_key
from afjax.trunk.encoder import AttentionBlock, EncoderLayer, LayerKeys, TrunkConfig, layer_keys, plain_slot, unstack


def init_top(key: Array, config: OnTop, trunk: TrunkConfig) -> Tree:
    """A module's parameters at the start, float32. Kernels ~ N(0, init_scale), biases 0, LayerNorms the identity.

    Args:
      key: Of this module alone.
      config: The architecture.
      trunk: The trunk's.
    """
    x, mask = jnp.zeros((1, 2, trunk.hidden_size)), jnp.ones((1, 2), bool)
    if isinstance(config, TopLayerConfig):
        layer = EncoderLayer(dataclasses.replace(trunk, init_scale=config.init_scale))
        return {"top": {"layer": layer.init(named_key(key, "layer"), x, mask, slots={})["params"]}}

    def linear(inputs: int, outputs: int, *names: str) -> Tree:
        kernel = config.init_scale * jax.random.normal(named_key(key, *names), (inputs, outputs))
        return {"kernel": kernel, "bias": jnp.zeros(outputs)}

    if isinstance(config, TopAttentionConfig):
        block = AttentionBlock(_small_trunk(config, trunk))
        keys = jax.random.split(named_key(key, "layers"), config.num_layers)
        small = jnp.zeros((1, 2, config.size))
        layers: Tree = jax.vmap(lambda k: block.init(k, small, mask, slot=plain_slot)["params"])(keys)
        layers = {"attention": layers}
    else:
        sizes = (config.size, *config.hidden_sizes, config.size)
        blocks = []
        for number in range(config.num_layers):
            block_tree = {
                str(index): linear(inputs, outputs, "layers", str(number), str(index))
                for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes))
            }
            norm = {"scale": jnp.ones(config.size), "bias": jnp.zeros(config.size)}
            blocks.append({**block_tree, "norm": norm})
        layers = {"ffn": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}
    encode = linear(trunk.hidden_size, config.size, "encode")
    return {"top": {"encode": encode, "layers": layers, "decode": linear(config.size, trunk.hidden_size, "decode")}}


def apply_top(
    params: Tree,
    config: OnTop,
    trunk: TrunkConfig,
    hidden: Array,
    mask: Array,
    *,
    key: Array | None,
    first_token_only: bool = True,
) -> Array:
    """The hidden state that heads read, from the last one, ``[batch, length, d]``.

    ``[batch, length, d]``, or ``[batch, 1, d]`` of the first token only.

    Args:
      params: The adapter's tree.
      config: The architecture.
      trunk: The trunk's, for dropout rates, LayerNorm's epsilon and activation.
      hidden: The last hidden state.
      mask: bool ``[batch, length]``, False at padding.
      key: Dropout's key; None: no dropout.
      first_token_only: Whether no more than the first token is needed.
    """
    top = params["top"]
    if isinstance(config, TopLayerConfig):
        layer: Any = EncoderLayer(trunk)
        variables = {"params": top["layer"]}
        return layer.apply(
            variables, hidden, mask, slots={}, dropout_keys=layer_keys(key), first_token_only=first_token_only
        )[0]
    keys = split_key(key, config.num_layers)
    if isinstance(config, TopFfnConfig):
        # Feed-forward networks do not mix tokens: no others than those wanted are computed.
        x = dense(top["encode"], hidden[:, :1] if first_token_only else hidden)
        for block, block_key in zip(unstack(top["layers"]["ffn"], config.num_layers), keys, strict=True):
            x = _ffn_block(block, config, trunk, x, block_key)
    else:
        x = dense(top["encode"], hidden)
        attention: Any = AttentionBlock(_small_trunk(config, trunk))
        blocks = unstack(top["layers"]["attention"], config.num_layers)
        for number, (block, block_key) in enumerate(zip(blocks, keys, strict=True), start=1):
            first = first_token_only and number == config.num_layers
            weights_key, output_key = split_key(block_key, 2)
            block_keys = LayerKeys(weights_key, output_key)
            x, _ = attention.apply(
                {"params": block}, x, mask, slot=plain_slot, dropout_keys=block_keys, first_token_only=first
            )
    return dense(top["decode"], x)


def _ffn_block(block: Tree, config: TopFfnConfig, trunk: TrunkConfig, x: Array, key: Array | None) -> Array:
    inner = dense(block["0"], x)
    for index in range(1, len(config.hidden_sizes) + 1):
        inner = dense(block[str(index)], ACTIVATIONS[trunk.activation](inner))
    return layer_norm(block["norm"], x + dropout(key, inner, trunk.hidden_dropout), trunk.layer_norm_epsilon)


def _small_trunk(config: TopAttentionConfig, trunk: TrunkConfig) -> TrunkConfig:
    """The trunk's architecture with the sizes of the module's attention blocks."""
    return dataclasses.replace(trunk, hidden_size=config.size, num_heads=config.num_heads, init_scale=config.init_scale)
