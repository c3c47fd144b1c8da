"""Projected feed-forward blocks on top of the encoder.

The module computes ``VD g(VE h)`` from the last hidden states ``h``, where g is a stack of small feed-forward networks.
Its tree has the leaves below. Leaves under ``layers`` are stacked over the blocks::

    top/{encode [d, s], decode [s, d]}/{kernel, bias}
    top/layers/ffn/{0, 1, ..., norm}        a block's dense layers in order, and its LayerNorm

Reference: Stickland & Murray 2019, section 3.1.
"""

import itertools

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.adapters.kind import MacCounter, TopKind, init_projections
from afjax.config.adapters import TopFfnConfig
from afjax.nn.layers import ACTIVATIONS, dense, dropout, layer_norm, normal_dense, split_key
from afjax.trees import AnyArray, Tree, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.layers import unstack


def init(key: PRNGKeyArray, config: TopFfnConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes the module; see :class:`afjax.adapters.kind.Init`.

    The LayerNorms start with scale 1 and bias 0.
    """
    blocks = []
    for number in range(config.num_layers):
        block = {
            str(index): normal_dense(named_key(key, "layers", str(number), str(index)), config.init_scale, shape)
            for index, shape in enumerate(itertools.pairwise(_sizes(config)))
        }
        norm = {"scale": jnp.ones(config.size), "bias": jnp.zeros(config.size)}
        blocks.append({**block, "norm": norm})
    layers = {"ffn": jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)}
    return {"top": {"layers": layers, **init_projections(key, config, trunk.hidden_size)}}


def top(
    params: Tree,
    config: TopFfnConfig,
    trunk: TrunkConfig,
    hidden: Float[Array, "batch tokens hidden"],
    mask: Bool[AnyArray, "batch length"],
    *,
    key: PRNGKeyArray | None,
    first_token_only: bool = True,
) -> Float[Array, "batch queries hidden"]:
    """Computes the module's output; see :class:`afjax.adapters.kind.OnEncoder`."""
    # Feed-forward networks do not mix tokens, so only the needed tokens are computed.
    x = dense(params["encode"], hidden[:, :1] if first_token_only else hidden)
    keys = split_key(key, config.num_layers)
    for block, block_key in zip(unstack(params["layers"]["ffn"], config.num_layers), keys, strict=True):
        inner = dense(block["0"], x)
        for index in range(1, len(config.hidden_sizes) + 1):
            inner = dense(block[str(index)], ACTIVATIONS[trunk.activation](inner))
        x = layer_norm(block["norm"], x + dropout(block_key, inner, trunk.hidden_dropout), trunk.layer_norm_epsilon)
    return dense(params["decode"], x)


def _sizes(config: TopFfnConfig) -> tuple[int, ...]:
    return (config.size, *config.hidden_sizes, config.size)


def count(
    counter: MacCounter, config: TopFfnConfig, trunk: TrunkConfig, *, trained: bool, live: bool, first_token: bool
) -> bool:
    """Counts multiply-adds; see :class:`afjax.adapters.kind.CountTop`."""
    n = counter.rows if first_token else counter.rows * counter.length
    live = counter.dense(n, trunk.hidden_size, config.size, trained=trained, live=live)
    for _ in range(config.num_layers):
        for inputs, outputs in itertools.pairwise(_sizes(config)):
            live = counter.dense(n, inputs, outputs, trained=trained, live=live)
    return counter.dense(n, config.size, trunk.hidden_size, trained=trained, live=live)


KIND = TopKind(config=TopFfnConfig, init=init, top=top, attends=False, count=count)
