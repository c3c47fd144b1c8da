"""An additional encoder layer on top of the encoder (Stickland & Murray 2019, section 3.1).

The tree::

    top/layer/{attention, ffn}      like one of the trunk's layers, not stacked
"""

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.adapters.kind import MacCounter, TopKind
from afjax.config.adapters import TopLayerConfig
from afjax.trees import AnyArray, Tree, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder_layer import EncoderLayer, layer_keys


def init(key: PRNGKeyArray, config: TopLayerConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """See :class:`afjax.adapters.kind.Init`; initialized like a layer of a random trunk."""
    x, mask = jnp.zeros((1, 2, trunk.hidden_size)), jnp.ones((1, 2), bool)
    layer = EncoderLayer(dataclasses.replace(trunk, init_scale=config.init_scale))
    return {"top": {"layer": layer.init(named_key(key, "layer"), x, mask)["params"]}}


def top(
    params: Tree,
    config: TopLayerConfig,
    trunk: TrunkConfig,
    hidden: Float[Array, "batch length hidden"],
    mask: Bool[AnyArray, "batch length"],
    *,
    key: PRNGKeyArray | None,
    first_token_only: bool = True,
) -> Float[Array, "batch queries hidden"]:
    """See :class:`afjax.adapters.kind.OnEncoder`."""
    layer: Any = EncoderLayer(trunk)
    return layer.apply(
        {"params": params["layer"]},
        hidden,
        mask,
        dropout_keys=layer_keys(key),
        first_token_only=first_token_only,
    )[0]


def count(
    counter: MacCounter, config: TopLayerConfig, trunk: TrunkConfig, *, trained: bool, live: bool, first_token: bool
) -> bool:
    """See :class:`afjax.adapters.kind.CountTop`."""
    d = trunk.hidden_size
    n = counter.rows if first_token else counter.rows * counter.length
    live = counter.attention(d, trunk.num_heads, trained, live, first_token=first_token)
    for inputs, outputs in itertools.pairwise((d, d, trunk.intermediate_size, d)):
        live = counter.dense(n, inputs, outputs, trained=trained, live=live)
    return live


KIND = TopKind(config=TopLayerConfig, init=init, top=top, attends=True, count=count)
