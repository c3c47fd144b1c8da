"""Low-rank adaptation (LoRA) of dense layers.

An adapted dense layer computes ``x W + b + alpha / rank * dropout(x) A B`` instead of ``x W + b``. The tree has A and B
for each adapted dense layer, under the layer's path in the trunk::

    attention/<query, key, value, output>/{down/kernel [inputs, rank], up/kernel [rank, outputs]}
    ffn/<intermediate, output>/{down/kernel [inputs, rank], up/kernel [rank, outputs]}

``down`` is A and ``up`` is B. All leaves are stacked over the adapted layers.

Reference: Hu et al. 2022, *LoRA: Low-Rank Adaptation of Large Language Models*, section 4.1.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.checks import check_equal, check_same_trunk
from afjax.adapters.kind import CountedLayer, DenseKind, MacCounter, Widening, dense_shape
from afjax.config.adapters import DENSE_LAYERS, DenseLayer, LoraConfig
from afjax.errors import UserError
from afjax.nn.layers import dense, dropout
from afjax.trees import Tree, named_key, pad_axis
from afjax.trunk.config import TrunkConfig


def init(key: PRNGKeyArray, config: LoraConfig, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes A and B; see :class:`afjax.adapters.kind.Init`.

    A is drawn uniformly from ``±1 / sqrt(inputs)``, as in the authors' code, and B is zero.

    Raises:
      UserError: The rank exceeds the trunk's hidden size.
    """
    if config.rank > trunk.hidden_size:
        raise UserError(
            f"adapter.rank is {config.rank}, but the trunk's hidden size is {trunk.hidden_size}; choose a rank from 1 "
            f"to {trunk.hidden_size}."
        )
    tree: Tree = {}
    for name in config.target_modules:
        block, layer = DENSE_LAYERS[name]
        inputs, outputs = dense_shape(name, trunk)
        limit = inputs**-0.5
        shape = (depth, inputs, config.rank)
        down = jax.random.uniform(named_key(key, block, layer, "down"), shape, minval=-limit, maxval=limit)
        up = jnp.zeros((depth, config.rank, outputs))
        tree.setdefault(block, {})[layer] = {"down": {"kernel": down}, "up": {"kernel": up}}
    return tree


def apply(
    params: Tree,
    config: LoraConfig,
    name: DenseLayer,
    layer: Tree,
    x: Float[Array, "*batch inputs"],
    *,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "*batch outputs"]:
    """Applies a dense layer with LoRA; see :class:`afjax.adapters.kind.InDense`."""
    inner = dense(params["down"], dropout(key, x, config.dropout))  # [..., rank]
    return dense(layer, x) + config.scaling * dense(params["up"], inner)


def merge(params: Tree, config: LoraConfig, name: DenseLayer, layer: Tree) -> Tree:
    """Adds ``alpha / rank * A B`` to the dense layer's kernel.

    See :class:`afjax.adapters.kind.MergeDense`.
    """
    kernel, down, up = layer["kernel"], params["down"]["kernel"], params["up"]["kernel"]
    change = config.scaling * (down @ up)  # [inputs, outputs]
    return {**layer, "kernel": (kernel + change).astype(kernel.dtype)}


def count(counter: MacCounter, config: LoraConfig, layer: CountedLayer, *, trained: bool) -> bool:
    """Counts multiply-adds; see :class:`afjax.adapters.kind.CountDense`."""
    layer_live = counter.dense(layer.n, layer.inputs, layer.outputs, trained=layer.trained, live=layer.live)
    inner = counter.dense(layer.n, layer.inputs, config.rank, trained=trained, live=layer.live)
    return counter.dense(layer.n, config.rank, layer.outputs, trained=trained, live=inner) or layer_live


def count_merge(counter: MacCounter, config: LoraConfig, inputs: int, outputs: int, *, trained: bool) -> bool:
    """Counts multiply-adds for ``A B``; see :class:`afjax.adapters.kind.CountMerge`."""
    return counter.dense(inputs, config.rank, outputs, trained=trained, live=trained)


def weighted_sum(
    configs: Sequence[LoraConfig], trees: Sequence[Tree], weights: Sequence[float]
) -> tuple[LoraConfig, Tree]:
    """Concatenates the adapters' matrices.

    The new rank is the sum of the adapters' ranks, or the hidden size if that is smaller. The dropout rate is taken
    from the first adapter. See :class:`afjax.adapters.kind.WeightedSum`.
    """
    check_equal(configs, ("target_modules", "layers"))
    factors = [weight * config.scaling for weight, config in zip(weights, configs, strict=True)]
    total: Tree = {}
    for name in configs[0].target_modules:
        block, layer = DENSE_LAYERS[name]
        parts = [tree[block][layer] for tree in trees]
        check_same_trunk([(*part["down"]["kernel"].shape[:-1], part["up"]["kernel"].shape[-1]) for part in parts])
        down = np.concatenate([part["down"]["kernel"] for part in parts], axis=-1)  # [layers, inputs, ranks]
        up = np.concatenate(
            [factor * part["up"]["kernel"] for factor, part in zip(factors, parts, strict=True)], axis=-2
        )  # [layers, ranks, outputs]
        total.setdefault(block, {})[layer] = {"down": {"kernel": down}, "up": {"kernel": up}}
    parts = [part for block in total.values() for part in block.values()]
    # The largest rank that the product of two matrices can have.
    limit = max(min(part["down"]["kernel"].shape[-2], part["up"]["kernel"].shape[-1]) for part in parts)
    rank = sum(config.rank for config in configs)
    if rank > limit:
        rank = limit
        for layers in total.values():
            layers.update({layer: _with_rank(part, limit) for layer, part in layers.items()})
    return dataclasses.replace(configs[0], rank=rank, alpha=float(rank)), total


def _with_rank(part: Tree, rank: int) -> Tree:
    """Replaces a module's A and B by an identity matrix and the product of A and B, in either order."""
    down, up = part["down"]["kernel"], part["up"]["kernel"]
    product = np.asarray(np.matmul(down, up, dtype=np.float64), down.dtype)  # [layers, inputs, outputs]
    layers, inputs, outputs = product.shape
    identity = np.broadcast_to(np.eye(min(inputs, outputs), dtype=down.dtype), (layers, *2 * (min(inputs, outputs),)))
    down, up = (identity, product) if inputs <= outputs else (product, identity)
    return {"down": {"kernel": pad_axis(down, -1, rank)}, "up": {"kernel": pad_axis(up, -2, rank)}}


def _wide_config(config: LoraConfig, size: int) -> LoraConfig:
    return LoraConfig(target_modules=config.target_modules, rank=size, alpha=float(size), layers=config.layers)


def _wide_tree(config: LoraConfig, tree: Tree, size: int) -> Tree:
    def wide(part: Tree) -> Tree:
        up = config.scaling * pad_axis(part["up"]["kernel"], -2, size)
        return {"down": {"kernel": pad_axis(part["down"]["kernel"], -1, size)}, "up": {"kernel": up}}

    return {block: {layer: wide(part) for layer, part in layers.items()} for block, layers in tree.items()}


KIND = DenseKind(
    config=LoraConfig,
    init=init,
    apply=apply,
    merge=merge,
    count=count,
    count_merge=count_merge,
    weighted_sum=weighted_sum,
    widening=Widening(size=lambda config, hidden_size: config.rank, config=_wide_config, tree=_wide_tree),
)
