"""The table of adapter kinds, and functions that work for all kinds.

To add a kind, write its config in :mod:`afjax.config.adapters` and a module with a ``KIND`` in this package, and add
the module to :data:`KINDS`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import PRNGKeyArray

from afjax.adapters import bottleneck, ia3, lhuc, lora, low_rank, pal, projected_ffn, top_attention, top_ffn, top_layer
from afjax.adapters.kind import AdapterKind, DenseKind, SlotKind, TopKind
from afjax.config.adapters import DENSE_LAYERS, Adapter, AdapterConfig, BesideLayers, DenseLayer, InDenseLayers, OnTop
from afjax.errors import UserError
from afjax.trees import Tree, merge, named_key
from afjax.trunk.config import TrunkConfig
from afjax.trunk.slots import DenseSlot

KINDS: tuple[AdapterKind, ...] = (
    bottleneck.KIND,
    pal.KIND,
    low_rank.KIND,
    projected_ffn.KIND,
    lhuc.KIND,
    top_attention.KIND,
    top_ffn.KIND,
    top_layer.KIND,
    lora.KIND,
    ia3.KIND,
)


def kind_of(config: Adapter) -> AdapterKind:
    """Looks up an architecture's kind."""
    return next(kind for kind in KINDS if kind.config is type(config))


def slot_kind(config: AdapterConfig | BesideLayers) -> SlotKind:
    """Looks up the kind of an architecture that fills slots."""
    kind = kind_of(config)
    assert isinstance(kind, SlotKind), "guaranteed by the config's type"
    return kind


def top_kind(config: OnTop) -> TopKind:
    """Looks up the kind of an architecture on top of the encoder."""
    kind = kind_of(config)
    assert isinstance(kind, TopKind), "guaranteed by the config's type"
    return kind


def dense_kind(config: InDenseLayers) -> DenseKind:
    """Looks up the kind of an architecture in dense layers."""
    kind = kind_of(config)
    assert isinstance(kind, DenseKind), "guaranteed by the config's type"
    return kind


def adapter_layers(config: Adapter, num_layers: int) -> tuple[int, ...]:
    """Returns the indices of the adapted layers.

    A module on top of the encoder has none.

    Raises:
      UserError: The trunk has fewer layers than the architecture refers to.
    """
    if isinstance(config, OnTop):
        return ()
    layers = tuple(range(num_layers)) if config.layers is None else config.layers
    if layers[-1] >= num_layers:
        raise UserError(
            f"adapter.layers names layer {layers[-1]}, but the trunk has layers 0 to {num_layers - 1}; "
            f"remove layer {layers[-1]}."
        )
    return layers


def reads_all_tokens(config: Adapter, num_layers: int) -> bool:
    """Whether the adapter needs the last layer's output for all tokens.

    Otherwise, its output for the first token depends only on the last layer's output for the first token.
    """
    if not kind_of(config).attends:
        return False
    if isinstance(config, OnTop):
        return True
    serial = isinstance(config, BesideLayers) and config.placement == "serial"
    return serial and num_layers - 1 in adapter_layers(config, num_layers)


def init_adapter(key: PRNGKeyArray, config: Adapter, trunk: TrunkConfig) -> Tree:
    """Initializes an adapter's parameters in float32, except ``layer_norms``.

    Args:
      key: The adapter's key. Each leaf's key is derived from this key and the leaf's path.
      config: The architecture.
      trunk: The trunk's architecture.

    Raises:
      UserError: The architecture does not fit the trunk, for example because a layer index is out of range or a LoRA
        rank exceeds the hidden size.
    """
    return kind_of(config).init(key, config, trunk, len(adapter_layers(config, trunk.num_layers)))


def layer_params(tree: Tree, config: Adapter, layer: int, slot: str = "ffn") -> Tree:
    """Extracts one layer's parameters from an adapter or a fusion.

    The result can be passed to :func:`afjax.bottleneck`, :func:`afjax.fuse` or :func:`afjax.pal`.

    Args:
      tree: The tree of an adapter or a fusion, with leaves stacked over its layers. A fusion has the same layers as its
        adapters.
      config: The adapter's architecture. For a fusion, the architecture of any of its adapters.
      layer: The layer's index in the trunk, starting at 0.
      slot: The slot after a sub-layer, ``attention`` or ``ffn``.

    Returns:
      The layer's leaves, without the layer axis, and any leaves shared by all layers.

    Raises:
      UserError: There is no adapter in this layer or slot.

    Example:
      >>> import numpy as np
      >>> from afjax import AdapterConfig, layer_params
      >>> down = {"kernel": np.zeros((2, 8, 4), np.float32), "bias": np.zeros((2, 4), np.float32)}
      >>> up = {"kernel": np.zeros((2, 4, 8), np.float32), "bias": np.zeros((2, 8), np.float32)}
      >>> config = AdapterConfig(size=4, layers=(3, 5))
      >>> layer_params({"ffn": {"down": down, "up": up}}, config, layer=5)["down"]["kernel"].shape
      (8, 4)
    """
    if slot not in config.slots or slot not in tree:
        raise UserError(
            f'The slot "{slot}" is empty; an adapter of the kind {config.kind} fills '
            f"{', '.join(config.slots) or 'no slots, because it is on top of the encoder'}."
        )
    depth = jax.tree.leaves(tree[slot])[0].shape[0]
    layers = range(depth) if isinstance(config, OnTop) or config.layers is None else config.layers
    if layer not in layers:
        raise UserError(f"Layer {layer} has no adapter; the adapted layers are {', '.join(map(str, layers))}.")
    position = list(layers).index(layer)

    def select_layer(leaf: Any) -> Any:
        return leaf[position]

    return merge(jax.tree.map(select_layer, tree[slot]), tree.get("shared", {}))


def dense_slots(params: Tree, config: InDenseLayers, *, key: PRNGKeyArray | None = None) -> dict[str, DenseSlot]:
    """Fills the slots around dense layers with an adapter.

    Args:
      params: The adapter's parameters for one layer.
      config: The architecture.
      key: The dropout key, or None for no dropout.

    Returns:
      ``{path: filled slot}``, where the path is the dense layer's path in the trunk.
    """
    kind, has_dropout = dense_kind(config), key is not None and config.has_dropout

    def dense_slot(name: DenseLayer) -> DenseSlot:
        block, dense_layer = DENSE_LAYERS[name]
        dense_params = params[block][dense_layer]

        def apply(layer: Tree, x: Array, *use: str) -> Array:
            slot_key = None if key is None or not has_dropout else named_key(key, block, dense_layer, *use)
            return kind.apply(dense_params, config, name, layer, x, key=slot_key)

        def apply_to_positions(layer: Tree, x: Array) -> Array:
            return apply(layer, x, "positions")

        def merge(layer: Tree) -> Tree:
            return kind.merge(dense_params, config, name, layer)

        return DenseSlot(apply, None, apply_to_positions) if has_dropout else DenseSlot(apply, merge)

    return {"/".join(DENSE_LAYERS[name]): dense_slot(name) for name in config.target_modules}


def merge_adapter(layers: Tree, tree: Tree, config: InDenseLayers) -> Tree:
    """Merges an adapter into the trunk's layers.

    Args:
      layers: The trunk's layers, stacked.
      tree: The adapter's tree.
      config: The adapter's architecture.

    Returns:
      The merged layers, stacked. Without dropout, they have the same outputs as ``layers`` with the adapter. Leaves
      keep their dtype, and unchanged leaves are not copied.
    """
    kind = dense_kind(config)
    merged: Tree = {block: dict(block_params) for block, block_params in layers.items()}
    for name in config.target_modules:
        block, dense_layer = DENSE_LAYERS[name]
        stacked = jax.tree.map(jnp.asarray, layers[block][dense_layer])
        indices = np.array(adapter_layers(config, stacked["kernel"].shape[0]))

        def merge(params: Tree, layer: Tree, name: DenseLayer = name) -> Tree:
            return kind.merge(params, config, name, layer)

        changed = jax.vmap(merge)(tree[block][dense_layer], {leaf: stacked[leaf][indices] for leaf in stacked})
        merged[block][dense_layer] = {leaf: stacked[leaf].at[indices].set(changed[leaf]) for leaf in stacked}
    return merged
