"""Where modules of whole layers read and add (Stickland & Murray 2019, sections 3.2 and 3.3).

With ``x`` the layer's input, ``h`` its attention block's output and ``f`` its FFN's, a layer with a module gives::

    LN2(h + f + TS(x))                      placement "parallel"
    LN2(h + f + TS(z)), z = LN2(h + f)      placement "serial", where a Pfeiffer adapter is
    z * 2 sigmoid(scale)                    LHUC

Except for LHUC, TS decodes inner activations ("units") of ``size`` per token. A module's tree; leaves under ``ffn`` are
stacked over the layers that have it, leaves under ``shared`` are the same for all of them::

    shared/{encode, decode}/{kernel, bias}          VE [d, s] and VD [s, d] (under ffn if each layer has its own)
    ffn/...                                         see the module of each kind
"""

from jax import Array

from afjax.adapters.kind import InSlot
from afjax.config.adapters import BesideLayers, LhucConfig
from afjax.nn.layers import dense
from afjax.trees import Tree
from afjax.trunk.slots import Sublayer


def plain_output(sublayer: Sublayer) -> Array:
    """Computes the layer's output without a module, ``LN2(h + f)``: what serial modules read, and fusion's query."""
    return sublayer.norm(sublayer.residual + sublayer.output)


def module_input(config: BesideLayers, sublayer: Sublayer) -> Array:
    """Returns the module's input: ``[batch, length, d]``, or ``[batch, queries, d]`` if its placement is serial."""
    return sublayer.layer_input if config.placement == "parallel" else plain_output(sublayer)


def add_output(config: BesideLayers, output: Array, sublayer: Sublayer) -> Array:
    """Computes the layer's output from what a module, or a fusion of modules, adds."""
    if isinstance(config, LhucConfig):
        return plain_output(sublayer) + output
    return sublayer.norm(sublayer.residual + (sublayer.output + output))


def decoded(units: InSlot) -> InSlot:
    """Returns the function for a module's output: VD applied to its inner activations."""

    def output(
        params: Tree, config: BesideLayers, sublayer: Sublayer, *, dropout_rate: float = 0.0, key: Array | None = None
    ) -> Array:
        return dense(params["decode"], units(params, config, sublayer, dropout_rate=dropout_rate, key=key))

    return output


def added(output: InSlot) -> InSlot:
    """Returns the function for a module's slot: its output added where :func:`add_output` says."""

    def slot(
        params: Tree, config: BesideLayers, sublayer: Sublayer, *, dropout_rate: float = 0.0, key: Array | None = None
    ) -> Array:
        return add_output(config, output(params, config, sublayer, dropout_rate=dropout_rate, key=key), sublayer)

    return slot
