"""Projected feed-forward networks (Stickland & Murray 2019, section 3.3).

The module computes ``TS(x) = VD (W2 g(W1 VE x + b1) + b2)``. In addition to the projections described in
:mod:`afjax.adapters.placement`, the tree has::

    ffn/{intermediate [s, m], output [m, s]}/{kernel, bias}
"""

from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.kind import SlotKind, chain_counter, init_projections, normal_layers
from afjax.adapters.placement import added, decoded, module_input
from afjax.config.adapters import ProjectedFfnConfig
from afjax.nn.layers import ACTIVATIONS, dense
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer


def init(key: PRNGKeyArray, config: ProjectedFfnConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes the parameters; see :class:`afjax.adapters.kind.Init`."""
    layers = () if config.shared_projections else (depth,)
    projections = init_projections(key, config, trunk.hidden_size, *layers)
    shapes = {
        "intermediate": (depth, config.size, config.intermediate_size),
        "output": (depth, config.intermediate_size, config.size),
    }
    network = normal_layers(key, config.init_scale, shapes)
    if config.shared_projections:
        return {"shared": projections, "ffn": network}
    return {"ffn": {**network, **projections}}


def units(
    params: Tree, config: ProjectedFfnConfig, sublayer: Sublayer, key: PRNGKeyArray | None = None
) -> Float[Array, "batch queries units"]:
    """Computes ``W2 g(W1 VE x + b1) + b2``; see :class:`afjax.adapters.kind.InSlot`."""
    x = module_input(config, sublayer)[:, : sublayer.output.shape[1]]
    inner = ACTIVATIONS[config.activation](dense(params["intermediate"], dense(params["encode"], x)))
    return dense(params["output"], inner)


KIND = SlotKind(
    config=ProjectedFfnConfig,
    init=init,
    slot=added(decoded(units)),
    family="projected",
    layout=("placement",),
    units=units,
    output=decoded(units),
    size=lambda config, hidden_size: config.size,
    count_units=chain_counter(
        lambda config, hidden_size: (hidden_size, config.size, config.intermediate_size, config.size)
    ),
)
