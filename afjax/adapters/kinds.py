"""The kinds of adapters, and what all of them have in common: their layers, their start, and running one in a slot.

To add a kind, write its config in :mod:`afjax.config.adapters` and a module with a ``KIND`` in this package, and add
the module to :data:`KINDS`.
"""

from typing import Any

import jax
from jax import Array

from afjax.adapters import bottleneck, lhuc, low_rank, pal, projected_ffn, top_attention, top_ffn, top_layer
from afjax.adapters.kind import AdapterKind, SlotKind, TopKind
from afjax.config.adapters import Adapter, AdapterConfig, BesideLayers, OnTop
from afjax.errors import UserError
from afjax.trees import Tree, merge
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import Sublayer

KINDS: tuple[AdapterKind, ...] = (
    bottleneck.KIND,
    pal.KIND,
    low_rank.KIND,
    projected_ffn.KIND,
    lhuc.KIND,
    top_attention.KIND,
    top_ffn.KIND,
    top_layer.KIND,
)


def kind_of(config: Adapter) -> AdapterKind:
    """Returns the kind of an architecture."""
    return next(kind for kind in KINDS if kind.config is type(config))


def slot_kind(config: AdapterConfig | BesideLayers) -> SlotKind:
    """Returns the kind of an architecture that sits in slots."""
    kind = kind_of(config)
    assert isinstance(kind, SlotKind), "the type of the config"
    return kind


def top_kind(config: OnTop) -> TopKind:
    """Returns the kind of an architecture that sits on top of the encoder."""
    kind = kind_of(config)
    assert isinstance(kind, TopKind), "the type of the config"
    return kind


def adapter_layers(config: Adapter, num_layers: int) -> tuple[int, ...]:
    """The indices of the layers that have the adapter; none where it sits on top of them.

    Raises:
      UserError: An index beyond the trunk's depth.
    """
    if isinstance(config, OnTop):
        return ()
    layers = tuple(range(num_layers)) if config.layers is None else config.layers
    if layers[-1] >= num_layers:
        raise UserError(
            f"adapter.layers names layer {layers[-1]}, but the trunk has layers 0 to {num_layers - 1}; leave it out."
        )
    return layers


def reads_all_tokens(config: Adapter, num_layers: int) -> bool:
    """Whether the adapter's output for the first token depends on the last layer's output for other tokens."""
    if not kind_of(config).attends:
        return False
    if isinstance(config, OnTop):
        return True
    serial = isinstance(config, BesideLayers) and config.placement == "serial"
    return serial and num_layers - 1 in adapter_layers(config, num_layers)


def init_adapter(key: Array, config: Adapter, trunk: TrunkConfig) -> Tree:
    """Makes an adapter's parameters at the start of training, float32, without ``layer_norms``.

    Args:
      key: The key of this adapter. Each leaf has a key of its own that follows from its path.
      config: The architecture.
      trunk: The trunk's architecture.
    """
    return kind_of(config).init(key, config, trunk, len(adapter_layers(config, trunk.num_layers)))


def slot_contents(tree: Tree, config: Adapter) -> tuple[Tree, Tree]:
    """What of an adapter its slots hold: ``{slot: leaves stacked over layers}``, ``{slot: leaves of all layers}``."""
    stacked = {slot: tree[slot] for slot in config.slots}
    return stacked, {slot: tree["shared"] for slot in config.slots if "shared" in tree}


def layer_params(tree: Tree, config: Adapter, layer: int, slot: str = "ffn") -> Tree:
    """One layer's parameters, as :func:`afjax.bottleneck`, :func:`afjax.fuse` and :func:`afjax.pal` take them.

    Args:
      tree: An adapter's, its leaves stacked over the layers that have it; or a fusion's, whose layers are those of the
        adapters it was trained on.
      config: The adapter's architecture; of a fusion that of any of its adapters.
      layer: The layer's number in the trunk, from 0.
      slot: The sub-layer, ``attention`` or ``ffn``.

    Returns:
      The leaves of that layer, and those that all layers share.

    Raises:
      UserError: A layer or a slot without the adapter.
    """
    if slot not in config.slots or slot not in tree:
        raise UserError(
            f'There is nothing in the slot "{slot}"; the adapter is of the kind {config.kind} and has '
            f"{', '.join(config.slots) or 'no slots, as it sits on top of the encoder'}."
        )
    depth = jax.tree.leaves(tree[slot])[0].shape[0]
    layers = range(depth) if isinstance(config, OnTop) or config.layers is None else config.layers
    if layer not in layers:
        raise UserError(f"Layer {layer} has no adapter; the adapter is in the layers {', '.join(map(str, layers))}.")
    position = list(layers).index(layer)

    def of_layer(leaf: Any) -> Any:
        return leaf[position]

    return merge(jax.tree.map(of_layer, tree[slot]), tree.get("shared", {}))


def adapter_slot(
    params: Tree,
    config: AdapterConfig | BesideLayers,
    sublayer: Sublayer,
    *,
    dropout_rate: float = 0.0,
    key: Array | None = None,
) -> Array:
    """A slot that holds one adapter: the next hidden state ``[batch, queries, d]``.

    Args:
      params: One layer's slot of the adapter, the leaves of all layers included.
      config: The architecture.
      sublayer: Where the slot is.
      dropout_rate: The trunk's attention dropout, for modules with attention and no rate of their own.
      key: Dropout's key; None: no dropout.
    """
    return slot_kind(config).slot(params, config, sublayer, dropout_rate=dropout_rate, key=key)
