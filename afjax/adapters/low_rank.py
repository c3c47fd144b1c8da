"""Low-rank layers: ``TS(x) = VD g(VE x)`` (Stickland & Murray 2019, section 3.3).

The tree consists of the projections ``encode`` (VE) and ``decode`` (VD) described in :mod:`afjax.adapters.placement`.
They are not shared between layers.
"""

from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.kind import SlotKind, chain_counter, init_projections
from afjax.adapters.placement import added, decoded, module_input
from afjax.config.adapters import LowRankConfig
from afjax.nn.layers import ACTIVATIONS, dense
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer


def init(key: PRNGKeyArray, config: LowRankConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes the parameters; see :class:`afjax.adapters.kind.Init`."""
    return {"ffn": init_projections(key, config, trunk.hidden_size, depth)}


def units(
    params: Tree, config: LowRankConfig, sublayer: Sublayer, key: PRNGKeyArray | None = None
) -> Float[Array, "batch queries units"]:
    """Computes ``g(VE x)``; see :class:`afjax.adapters.kind.InSlot`."""
    inner = dense(params["encode"], module_input(config, sublayer)[:, : sublayer.output.shape[1]])
    return inner if config.activation == "none" else ACTIVATIONS[config.activation](inner)


KIND = SlotKind(
    config=LowRankConfig,
    init=init,
    slot=added(decoded(units)),
    family="projected",
    layout=("placement",),
    units=units,
    output=decoded(units),
    size=lambda config, hidden_size: config.size,
    count_units=chain_counter(lambda config, hidden_size: (hidden_size, config.size)),
)
