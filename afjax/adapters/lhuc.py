"""Learning hidden unit contributions (LHUC): learned scaling of a layer's output.

A layer's output is multiplied by ``2 sigmoid(scale)``. An adapter's tree has one leaf, stacked over the adapted
layers::

    ffn/scale [d]       initialized to 0, for a scaling factor of 1

Reference: Stickland & Murray 2019, section 3.3.
"""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.kind import MacCounter, SlotKind
from afjax.adapters.placement import added, plain_output
from afjax.config.adapters import LhucConfig
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer


def init(key: PRNGKeyArray, config: LhucConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes ``scale`` to 0.

    The key is not used. See :class:`afjax.adapters.kind.Init`.
    """
    return {"ffn": {"scale": jnp.zeros((depth, trunk.hidden_size))}}


def output(
    params: Tree, config: LhucConfig, sublayer: Sublayer, key: PRNGKeyArray | None = None
) -> Float[Array, "batch queries hidden"]:
    """Computes ``z (2 sigmoid(scale) - 1)``, which is added to ``z``.

    See :class:`afjax.adapters.kind.InSlot`.
    """
    z = plain_output(sublayer)
    factor = 2.0 * jax.nn.sigmoid(params["scale"])  # [d]
    return (z * (factor - 1.0)[None, None]).astype(z.dtype)


def count_units(
    counter: MacCounter, config: LhucConfig, hidden_size: int, n: int, *, trained: bool, live: bool, first_token: bool
) -> bool:
    """Counts nothing, because LHUC has neither inner activations nor matrix products.

    See :class:`afjax.adapters.kind.CountUnits`.
    """
    return trained or live


KIND = SlotKind(
    config=LhucConfig,
    init=init,
    slot=added(output),
    family="lhuc",
    output=output,
    size=lambda config, hidden_size: 0,
    count_units=count_units,
)
