"""Task modules beside whole layers (Stickland & Murray 2019, sections 3.2 and 3.3).

With ``x`` the layer's input, ``h`` its attention block's output and ``f`` its FFN's, a layer with a module gives::

    LN2(h + f + TS(x))                      placement "parallel"
    LN2(h + f + TS(z)), z = LN2(h + f)      placement "serial", where a Pfeiffer adapter stands
    z * 2 sigmoid(scale)                    LHUC

TS is linear in inner activations ("units") that the decoder VD meets. A module's tree; leaves under ``ffn`` are
stacked over the layers that have it, those under ``shared`` are the same for all of them::

    shared/{encode, decode}/{kernel, bias}          VE [d, s] and VD [s, d] (under ffn where each layer has its own)
    ffn/attention/{query, key, value}/{kernel [s, s], bias [s]}     PAL
    ffn/{intermediate, output}/{kernel, bias}                       projected FFN
    ffn/scale [d]                                                   LHUC
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array

from afjax.config.adapters import BesideLayers, LhucConfig, LowRankConfig, PalConfig, ProjectedFfnConfig
from afjax.errors import UserError
from afjax.nn.attention import attend_to_tokens, attend_tokens, first_token_attention
from afjax.nn.layers import ACTIVATIONS, check_dense, dense
from afjax.trees import Tree, named_key
from afjax.trunk.encoder import Sublayer


def init_beside(key: Array, config: BesideLayers, *, hidden_size: int, depth: int) -> Tree:
    """A module's parameters at the start, float32. Kernels ~ N(0, init_scale), biases and LHUC's scales 0.

    Args:
      key: Of this module alone; each leaf's own follows from its path.
      config: The architecture.
      hidden_size: The trunk's.
      depth: Number of layers that have the module.
    """
    if isinstance(config, LhucConfig):
        return {"ffn": {"scale": jnp.zeros((depth, hidden_size))}}

    def linear(name: str, inputs: int, outputs: int, layers: tuple[int, ...] = (depth,)) -> Tree:
        kernel = config.init_scale * jax.random.normal(named_key(key, name), (*layers, inputs, outputs))
        return {"kernel": kernel, "bias": jnp.zeros((*layers, outputs))}

    shared = not isinstance(config, LowRankConfig) and config.shared_projections
    projections = {
        "encode": linear("encode", hidden_size, config.size, () if shared else (depth,)),
        "decode": linear("decode", config.size, hidden_size, () if shared else (depth,)),
    }
    own: Tree = {}
    if isinstance(config, PalConfig):
        own = {"attention": {name: linear(name, config.size, config.size) for name in ("query", "key", "value")}}
    if isinstance(config, ProjectedFfnConfig):
        own = {
            "intermediate": linear("intermediate", config.size, config.intermediate_size),
            "output": linear("output", config.intermediate_size, config.size),
        }
    return {"shared": projections, "ffn": own} if shared else {"ffn": {**own, **projections}}


def pal_units(
    params: Tree,
    config: PalConfig,
    x: Array,
    mask: Array,
    *,
    num_queries: int,
    dropout_rate: float = 0.0,
    key: Array | None = None,
) -> Array:
    """The small attention over ``VE x``: ``[batch, length, d]`` to ``[batch, num_queries, size]``.

    Args:
      params: One layer's ``{"encode", "attention"}``.
      config: The architecture.
      x: The module's input.
      mask: bool ``[batch, length]``, False at padding.
      num_queries: How many tokens, from the first on, are wanted: all, or one.
      dropout_rate: On the attention weights; acts only with a key.
      key: Dropout's key.
    """
    projected = dense(params["encode"], x)  # [batch, length, size]
    attend = functools.partial(
        attend_to_tokens,
        mask=mask,
        head_size=config.size // config.num_heads,
        dropout_rate=dropout_rate,
        key=key,
    )
    if num_queries == 1:
        return first_token_attention(params["attention"], projected, config.num_heads, attend)
    query, keys, values = (dense(params["attention"][name], projected) for name in ("query", "key", "value"))
    return attend_tokens(query, keys, values, config.num_heads, attend)


def pal(
    params: Tree, x: Array, mask: Array, config: PalConfig, *, dropout_rate: float = 0.0, key: Array | None = None
) -> Array:
    """A projected attention layer: what it adds to a layer's output in front of the last LayerNorm.

    A pure function (Stickland & Murray 2019, section 3.3) that needs no model of afjax's. With ``h`` what the layer's
    attention block gives and ``f`` its FFN, the layer becomes ``LN2(h + f + pal(...))``.

    Args:
      params: One layer's ``{"encode", "attention", "decode"}``, as :func:`afjax.layer_params` gives.
      x: ``[batch, length, hidden_size]``, of any float dtype; matrices are applied in that dtype. The layer's input
        where ``config.placement`` is ``parallel``; else ``LN2(h + f)``.
      mask: ``[batch, length]``, True (or not zero) where there is a token.
      config: The architecture.
      dropout_rate: On the attention weights, where the architecture has no rate of its own; acts only with a key.
      key: Dropout's key; None: no dropout.

    Returns:
      ``[batch, length, hidden_size]``, of x's dtype.

    Raises:
      UserError: Parameters of several layers, of something else, or for another hidden size; an x or a mask of another
        shape.
    """
    if x.ndim != 3 or mask.shape != x.shape[:2]:
        raise UserError(
            f"x has the shape {x.shape} and the mask {mask.shape}; give [batch, length, hidden_size] and "
            "[batch, length]."
        )
    check_dense(params, "encode", x.shape[-1])
    rate = dropout_rate if config.dropout is None else config.dropout
    present = mask.astype(bool)
    units = pal_units(params, config, x, present, num_queries=x.shape[1], dropout_rate=rate, key=key)
    return decode(params, config, units)


def low_rank_units(params: Tree, config: LowRankConfig, x: Array) -> Array:
    """``g(VE x)``: ``[..., d]`` to ``[..., size]``."""
    units = dense(params["encode"], x)
    return units if config.activation == "none" else ACTIVATIONS[config.activation](units)


def ffn_units(params: Tree, config: ProjectedFfnConfig, x: Array) -> Array:
    """``W2 g(W1 VE x + b1) + b2``: ``[..., d]`` to ``[..., size]``."""
    inner = ACTIVATIONS[config.activation](dense(params["intermediate"], dense(params["encode"], x)))
    return dense(params["output"], inner)


def module_units(
    params: Tree, config: BesideLayers, sublayer: Sublayer, *, dropout_rate: float = 0.0, key: Array | None = None
) -> Array:
    """A module's inner activations in its slot, ``[batch, queries, size]``; not for LHUC, which has none.

    Args:
      params: One layer's, the shared ones included.
      config: The architecture.
      sublayer: The slot.
      dropout_rate: The trunk's attention dropout, for where the module has no rate of its own.
      key: Dropout's key; None: no dropout.
    """
    num_queries = sublayer.output.shape[1]
    x = sublayer.layer_input if config.placement == "parallel" else plain_output(sublayer)
    match config:
        case PalConfig():
            rate = dropout_rate if config.dropout is None else config.dropout
            return pal_units(params, config, x, sublayer.mask, num_queries=num_queries, dropout_rate=rate, key=key)
        case LowRankConfig():
            return low_rank_units(params, config, x[:, :num_queries])
        case ProjectedFfnConfig():
            return ffn_units(params, config, x[:, :num_queries])
        case LhucConfig():
            raise AssertionError("LHUC has no inner activations")


def decode(params: Tree, config: BesideLayers, inner: Array) -> Array:
    """``TS`` from the inner activations: VD, and the activation behind it where there is one."""
    output = dense(params["decode"], inner)
    if isinstance(config, PalConfig) and config.output_activation != "none":
        return ACTIVATIONS[config.output_activation](output)
    return output


def plain_output(sublayer: Sublayer) -> Array:
    """What the layer gives without a module, ``LN2(h + f)``: fusion's query, and what serial modules read."""
    return sublayer.norm(sublayer.residual + sublayer.output)


def lhuc_factor(params: Tree) -> Array:
    """``2 sigmoid(scale)``, ``[d]``."""
    return 2.0 * jax.nn.sigmoid(params["scale"])


def module_output(
    params: Tree, config: BesideLayers, sublayer: Sublayer, *, dropout_rate: float = 0.0, key: Array | None = None
) -> Array:
    """What the module adds, ``[batch, queries, d]``: TS, or LHUC's ``z (2 sigmoid(scale) - 1)``.

    Arguments as in :func:`module_units`.
    """
    if isinstance(config, LhucConfig):
        z = plain_output(sublayer)
        return (z * (lhuc_factor(params) - 1.0)[None, None]).astype(z.dtype)
    return decode(params, config, module_units(params, config, sublayer, dropout_rate=dropout_rate, key=key))


def add_output(config: BesideLayers, output: Array, sublayer: Sublayer) -> Array:
    """The layer's output from what a module, or a fusion of such modules, adds."""
    if isinstance(config, LhucConfig):
        return plain_output(sublayer) + output
    return sublayer.norm(sublayer.residual + (sublayer.output + output))


def beside_slot(
    params: Tree, config: BesideLayers, sublayer: Sublayer, *, dropout_rate: float = 0.0, key: Array | None = None
) -> Array:
    """A slot that holds one module; arguments as in :func:`module_units`."""
    return add_output(config, module_output(params, config, sublayer, dropout_rate=dropout_rate, key=key), sublayer)
