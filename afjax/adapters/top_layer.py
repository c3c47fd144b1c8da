"""An additional encoder layer on top of the encoder.

The tree has the same leaves as one of the trunk's layers, without the layer axis::

    top/layer/{attention, ffn}

In a pre-norm trunk, this layer has both LayerNorms, and it always uses global attention.

Reference: Stickland & Murray 2019, section 3.1.
"""

import dataclasses
from typing import Any

from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray

from afjax.adapters.kind import MacCounter, TopKind
from afjax.config.adapters import TopLayerConfig
from afjax.trees import AnyArray, Tree, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.encoder_layer import EncoderLayer, init_layer, top_layer_inputs
from afjax.trunk.post_norm_layer import layer_keys


def init(key: PRNGKeyArray, config: TopLayerConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes the layer like the layers of a randomly initialized trunk.

    See :class:`afjax.adapters.kind.Init`.
    """
    layer_config = dataclasses.replace(trunk, init_scale=config.init_scale)
    return {"top": {"layer": init_layer(named_key(key, "layer"), layer_config)}}


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
    """Computes the module's output; see :class:`afjax.adapters.kind.OnEncoder`."""
    layer: Any = EncoderLayer(trunk)
    shared, keys = top_layer_inputs(trunk, mask, hidden.dtype), layer_keys(key)
    options = {"dropout_keys": keys, "first_token_only": first_token_only}
    return layer.apply({"params": params["layer"]}, hidden, shared, **options)[0]


def count(
    counter: MacCounter, config: TopLayerConfig, trunk: TrunkConfig, *, trained: bool, live: bool, first_token: bool
) -> bool:
    """Counts multiply-adds; see :class:`afjax.adapters.kind.CountTop`."""
    d = trunk.hidden_size
    n = counter.rows if first_token else counter.rows * counter.length
    if trunk.encoder_family.layer == "pre_norm":
        # The layer has its own LayerNorm before the attention block.
        live = counter.rotary_attention(d, trunk.num_heads, trained, live or trained, first_token=first_token)
    else:
        live = counter.attention(d, trunk.num_heads, trained, live, first_token=first_token)
    for inputs, outputs in ((d, d), (d, trunk.intermediate_outputs), (trunk.intermediate_size, d)):
        live = counter.dense(n, inputs, outputs, trained=trained, live=live)
    return live


KIND = TopKind(config=TopLayerConfig, init=init, top=top, attends=True, count=count)
