"""Inputs and outputs of adapters ("modules") that act on an entire layer.

Let ``x`` be the layer's input, ``h`` the output of its attention block and ``f`` the output of its FFN. A layer with a
module computes::

    LN2(h + f + TS(x))                      placement "parallel"
    LN2(h + f + TS(z)), z = LN2(h + f)      placement "serial", the position of a Pfeiffer adapter
    z * 2 sigmoid(scale)                    LHUC

Except for LHUC, TS decodes ``size`` inner activations ("units") per token. In a module's tree, leaves under ``ffn`` are
stacked over the layers with the module, and leaves under ``shared`` are shared by those layers::

    shared/{encode, decode}/{kernel, bias}          VE [d, s] and VD [s, d] (under ffn if each layer has its own)
    ffn/...                                         see the Python module of each kind

Reference: Stickland & Murray 2019, sections 3.2 and 3.3.
"""

from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.kind import InSlot
from afjax.config.adapters import BesideLayers, LhucConfig
from afjax.nn.layers import dense
from afjax.trees import Tree
from afjax.trunk.slots import Sublayer


def plain_output(sublayer: Sublayer) -> Float[Array, "batch queries hidden"]:
    """Computes ``LN2(h + f)``, the layer's output without a module.

    Serial modules and the query matrix of a fusion take it as input.
    """
    return sublayer.norm(sublayer.residual + sublayer.output)


def module_input(config: BesideLayers, sublayer: Sublayer) -> Float[Array, "batch tokens hidden"]:
    """Selects the module's input, depending on its placement.

    The shape is ``[batch, length, d]`` for parallel placement and ``[batch, queries, d]`` for serial placement.
    """
    return sublayer.layer_input if config.placement == "parallel" else plain_output(sublayer)


def add_output(
    config: BesideLayers, output: Float[Array, "batch queries hidden"], sublayer: Sublayer
) -> Float[Array, "batch queries hidden"]:
    """Computes the layer's output from the output of a module or a fusion."""
    if isinstance(config, LhucConfig):
        return plain_output(sublayer) + output
    return sublayer.norm(sublayer.residual + (sublayer.output + output))


def decoded(units: InSlot) -> InSlot:
    """Builds a module's ``output`` function, which applies VD to its units."""

    def output(
        params: Tree, config: BesideLayers, sublayer: Sublayer, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch queries hidden"]:
        return dense(params["decode"], units(params, config, sublayer, key))

    return output


def added(output: InSlot) -> InSlot:
    """Builds a module's ``slot`` function from its ``output`` function.

    The output is added to the layer by :func:`add_output`.
    """

    def slot(
        params: Tree, config: BesideLayers, sublayer: Sublayer, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch queries hidden"]:
        return add_output(config, output(params, config, sublayer, key), sublayer)

    return slot
