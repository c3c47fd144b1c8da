"""Projected attention on top of the encoder.

The module computes ``VD g(VE h)`` from the last hidden states ``h``, where g is a stack of attention blocks. Its tree
has the leaves below. Leaves under ``layers`` are stacked over the blocks::

    top/{encode [d, s], decode [s, d]}/{kernel, bias}
    top/layers/attention/{query, key, value, output, norm}

Reference: Stickland & Murray 2019, section 3.1.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.adapters.kind import MacCounter, TopKind, init_projections
from afjax.config.adapters import TopAttentionConfig
from afjax.nn.layers import dense, split_key
from afjax.trees import AnyArray, Tree, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.layers import unstack
from afjax.trunk.post_norm_layer import AttentionBlock, LayerKeys


def init(key: PRNGKeyArray, config: TopAttentionConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes the module; see :class:`afjax.adapters.kind.Init`.

    The LayerNorms start with scale 1 and bias 0.
    """
    block = AttentionBlock(_small_trunk(config, trunk))
    x, mask = jnp.zeros((1, 2, config.size)), jnp.ones((1, 2), bool)
    keys = jax.random.split(named_key(key, "layers"), config.num_layers)
    layers: Tree = jax.vmap(lambda k: block.init(k, x, mask)["params"])(keys)
    return {"top": {"layers": {"attention": layers}, **init_projections(key, config, trunk.hidden_size)}}


def top(
    params: Tree,
    config: TopAttentionConfig,
    trunk: TrunkConfig,
    hidden: Float[Array, "batch length hidden"],
    mask: Bool[AnyArray, "batch length"],
    *,
    key: PRNGKeyArray | None,
    first_token_only: bool = True,
) -> Float[Array, "batch queries hidden"]:
    """Computes the module's output; see :class:`afjax.adapters.kind.OnEncoder`."""
    x = dense(params["encode"], hidden)
    attention: Any = AttentionBlock(_small_trunk(config, trunk))
    blocks, keys = unstack(params["layers"]["attention"], config.num_layers), split_key(key, config.num_layers)
    for number, (block, block_key) in enumerate(zip(blocks, keys, strict=True), start=1):
        first = first_token_only and number == config.num_layers
        weights_key, output_key = split_key(block_key, 2)
        block_keys = LayerKeys(weights_key, output_key)
        x, _ = attention.apply({"params": block}, x, mask, dropout_keys=block_keys, first_token_only=first)
    return dense(params["decode"], x)


def _small_trunk(config: TopAttentionConfig, trunk: TrunkConfig) -> TrunkConfig:
    """Returns the trunk's architecture, resized for the module's blocks."""
    return dataclasses.replace(trunk, hidden_size=config.size, num_heads=config.num_heads, init_scale=config.init_scale)


def count(
    counter: MacCounter, config: TopAttentionConfig, trunk: TrunkConfig, *, trained: bool, live: bool, first_token: bool
) -> bool:
    """Counts multiply-adds; see :class:`afjax.adapters.kind.CountTop`."""
    all_tokens = n = counter.rows * counter.length
    live = counter.dense(n, trunk.hidden_size, config.size, trained=trained, live=live)
    for number in range(1, config.num_layers + 1):
        first = first_token and number == config.num_layers
        live = counter.attention(config.size, config.num_heads, trained, live, first_token=first)
        n = counter.rows if first else all_tokens
        live = counter.dense(n, config.size, config.size, trained=trained, live=live)
    return counter.dense(n, config.size, trunk.hidden_size, trained=trained, live=live)


KIND = TopKind(config=TopAttentionConfig, init=init, top=top, attends=True, count=count)
