"""Projected attention layers (PALs; Stickland & Murray 2019, section 3.3).

A PAL computes ``TS(x) = VD attention(VE x)``. In addition to the projections described in
:mod:`afjax.adapters.placement`, the tree has::

    ffn/attention/{query, key, value}/{kernel [s, s], bias [s]}
"""

import functools

from jax import Array
from jaxtyping import Bool, Float, PRNGKeyArray, Shaped

from afjax.adapters.kind import MacCounter, SlotKind, init_projections, normal_layers
from afjax.adapters.placement import added, module_input
from afjax.config.adapters import PalConfig
from afjax.errors import UserError
from afjax.nn.attention import attend_to_tokens, attend_tokens, first_token_attention
from afjax.nn.layers import ACTIVATIONS, check_dense, dense
from afjax.trees import AnyArray, Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer


def init(key: PRNGKeyArray, config: PalConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes the parameters; see :class:`afjax.adapters.kind.Init`."""
    layers = () if config.shared_projections else (depth,)
    projections = init_projections(key, config, trunk.hidden_size, *layers)
    shapes = dict.fromkeys(("query", "key", "value"), (depth, config.size, config.size))
    attention = normal_layers(key, config.init_scale, shapes)
    if config.shared_projections:
        return {"shared": projections, "ffn": {"attention": attention}}
    return {"ffn": {"attention": attention, **projections}}


def pal(
    params: Tree,
    x: Float[AnyArray, "batch length hidden"],
    mask: Shaped[AnyArray, "batch length"],
    config: PalConfig,
    *,
    dropout_rate: float = 0.0,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "batch length hidden"]:
    """Applies a projected attention layer (PAL).

    This is a pure function, so it can be used without an afjax model. Its output is added before the encoder layer's
    last LayerNorm. If ``h`` is the output of the layer's attention block and ``f`` the output of its FFN, the layer
    becomes ``LN2(h + f + pal(...))``.

    Args:
      params: One layer's parameters, as returned by :func:`afjax.layer_params`:
        ``encode/{kernel [hidden_size, size], bias [size]}``,
        ``attention/{query, key, value}/{kernel [size, size], bias [size]}`` and
        ``decode/{kernel [size, hidden_size], bias [hidden_size]}``.
      x: The encoder layer's input if ``config.placement`` is ``parallel``; otherwise ``LN2(h + f)``. The shape is
        ``[batch, length, hidden_size]``, in any float dtype. The matmuls use the same dtype.
      mask: bool or numeric ``[batch, length]``. Padding is False or zero, and tokens are True or nonzero.
      config: The architecture.
      dropout_rate: Dropout rate of the attention weights, unless ``config.dropout`` is set. Ignored without a key.
      key: The dropout key, or None for no dropout.

    Returns:
      ``[batch, length, hidden_size]``, in the dtype of ``x``.

    Raises:
      UserError: The parameters belong to several layers, to a different module or to a different hidden size, or ``x``
        or ``mask`` has the wrong shape.

    Example:
      >>> import jax.numpy as jnp
      >>> from afjax import PalConfig, pal
      >>> square = {"kernel": jnp.eye(4), "bias": jnp.zeros(4)}
      >>> params = {
      ...     "encode": {"kernel": jnp.ones((8, 4)), "bias": jnp.zeros(4)},
      ...     "attention": {"query": square, "key": square, "value": square},
      ...     "decode": {"kernel": jnp.ones((4, 8)), "bias": jnp.zeros(8)},
      ... }
      >>> pal(params, jnp.ones((1, 3, 8)), jnp.ones((1, 3), bool), PalConfig(size=4, num_heads=2)).shape
      (1, 3, 8)

    Reference:
      Stickland & Murray 2019, *BERT and PALs*, section 3.3.
    """
    if x.ndim != 3 or mask.shape != x.shape[:2]:
        raise UserError(
            f"x has the shape {x.shape} and mask has the shape {mask.shape}; they must be [batch, length, hidden_size] "
            "and [batch, length]."
        )
    check_dense(params, "encode", x.shape[-1], config.size)
    check_dense(params, "decode", config.size, x.shape[-1])
    for name in ("query", "key", "value"):
        check_dense(params.get("attention", {}), name, config.size, config.size)
    rate = dropout_rate if config.dropout is None else config.dropout
    present = mask.astype(bool)
    inner = _attention(params, config, x, present, num_queries=x.shape[1], dropout_rate=rate, key=key)
    return _decode(params, config, inner)


def units(
    params: Tree, config: PalConfig, sublayer: Sublayer, key: PRNGKeyArray | None = None
) -> Float[Array, "batch queries units"]:
    """Applies the attention to ``VE x``; see :class:`afjax.adapters.kind.InSlot`."""
    x, num_queries = module_input(config, sublayer), sublayer.output.shape[1]
    rate = sublayer.attention_dropout if config.dropout is None else config.dropout
    return _attention(params, config, x, sublayer.mask, num_queries=num_queries, dropout_rate=rate, key=key)


def output(
    params: Tree, config: PalConfig, sublayer: Sublayer, key: PRNGKeyArray | None = None
) -> Float[Array, "batch queries hidden"]:
    """Computes the module's output ``TS(x)``; see :class:`afjax.adapters.kind.InSlot`."""
    return _decode(params, config, units(params, config, sublayer, key))


def _attention(
    params: Tree,
    config: PalConfig,
    x: Float[AnyArray, "batch length hidden"],
    mask: Bool[AnyArray, "batch length"],
    *,
    num_queries: int,
    dropout_rate: float = 0.0,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "batch queries units"]:
    """Applies the PAL's attention to ``VE x``.

    Args:
      params: One layer's ``{"encode", "attention"}``.
      config: The architecture.
      x: The module's input, ``[batch, length, d]``.
      mask: bool ``[batch, length]``, False at padding.
      num_queries: Number of leading tokens to compute outputs for: all of them, or 1.
      dropout_rate: Dropout rate of the attention weights. Ignored without a key.
      key: The dropout key, or None for no dropout.

    Returns:
      ``[batch, num_queries, size]``.
    """
    projected = dense(params["encode"], x)  # [batch, length, size]
    attend = functools.partial(
        attend_to_tokens, mask=mask, head_size=config.size // config.num_heads, dropout_rate=dropout_rate, key=key
    )
    if num_queries == 1:
        return first_token_attention(params["attention"], projected, config.num_heads, attend)
    query, keys, values = (dense(params["attention"][name], projected) for name in ("query", "key", "value"))
    return attend_tokens(query, keys, values, config.num_heads, attend)


def _decode(
    params: Tree, config: PalConfig, inner: Float[Array, "batch queries units"]
) -> Float[Array, "batch queries hidden"]:
    """Applies VD, then the output activation if there is one."""
    added = dense(params["decode"], inner)
    return added if config.output_activation == "none" else ACTIVATIONS[config.output_activation](added)


def count_units(
    counter: MacCounter, config: PalConfig, hidden_size: int, n: int, *, trained: bool, live: bool, first_token: bool
) -> bool:
    """Counts multiply-adds; see :class:`afjax.adapters.kind.CountUnits`.

    ``VE`` is applied to every token, because queries attend to every token.
    """
    live = counter.dense(counter.rows * counter.length, hidden_size, config.size, trained=trained, live=live)
    return counter.attention(config.size, config.num_heads, trained, live, first_token=first_token)


KIND = SlotKind(
    config=PalConfig,
    init=init,
    slot=added(output),
    attends=True,
    family="projected",
    layout=("placement",),
    units=units,
    output=output,
    size=lambda config, hidden_size: config.size,
    count_units=count_units,
)
