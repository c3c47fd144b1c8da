"""(IA)³: learned scaling vectors for the outputs or inputs of dense layers.

The tree has one scaling vector for each adapted dense layer, under the layer's path in the trunk::

    attention/<query, key, value, output>/scale [outputs]
    ffn/intermediate/scale [outputs]
    ffn/output/scale [inputs]                  scales the inner activations of the feed-forward network

All leaves are stacked over the adapted layers and initialized to 1.

Reference: Liu et al. 2022, *Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning*,
section 3.3.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, PRNGKeyArray

from afjax.adapters.checks import check_equal, check_same_trunk
from afjax.adapters.kind import CountedLayer, DenseKind, MacCounter, dense_shape
from afjax.config.adapters import DENSE_LAYERS, DenseLayer, Ia3Config
from afjax.nn.layers import dense, scale_features
from afjax.trees import Tree
from afjax.trunk.config import TrunkConfig


def init(key: PRNGKeyArray, config: Ia3Config, trunk: TrunkConfig, depth: int) -> Tree:
    """Initializes all scaling vectors to 1.

    The key is not used. See :class:`afjax.adapters.kind.Init`.
    """
    tree: Tree = {}
    for name in config.target_modules:
        block, layer = DENSE_LAYERS[name]
        inputs, outputs = dense_shape(name, trunk)
        tree.setdefault(block, {})[layer] = {"scale": jnp.ones((depth, inputs if scales_inputs(name) else outputs))}
    return tree


def scales_inputs(name: DenseLayer) -> bool:
    """Whether the scaling vector multiplies the inputs instead of the outputs."""
    return name == "output"


def apply(
    params: Tree,
    config: Ia3Config,
    name: DenseLayer,
    layer: Tree,
    x: Float[Array, "*batch inputs"],
    *,
    key: PRNGKeyArray | None = None,
) -> Float[Array, "*batch outputs"]:
    """Applies a dense layer, scaled by (IA)³.

    (IA)³ has no dropout. See :class:`afjax.adapters.kind.InDense`.
    """
    scale = params["scale"]
    return dense(layer, scale_features(x, scale)) if scales_inputs(name) else scale_features(dense(layer, x), scale)


def merge(params: Tree, config: Ia3Config, name: DenseLayer, layer: Tree) -> Tree:
    """Multiplies the dense layer's parameters by the scaling vector.

    See :class:`afjax.adapters.kind.MergeDense`.
    """
    kernel, scale = layer["kernel"], params["scale"]
    if scales_inputs(name):
        return {**layer, "kernel": (kernel * scale[:, None]).astype(kernel.dtype)}
    merged = {"kernel": (kernel * scale[None]).astype(kernel.dtype)}
    if "bias" in layer:
        merged["bias"] = (layer["bias"] * scale).astype(layer["bias"].dtype)
    return merged


def count(counter: MacCounter, config: Ia3Config, layer: CountedLayer, *, trained: bool) -> bool:
    """Counts the dense layer's multiply-adds.

    The scaling adds no matrix products. See :class:`afjax.adapters.kind.CountDense`.
    """
    live = layer.live or (scales_inputs(layer.name) and trained)
    return counter.dense(layer.n, layer.inputs, layer.outputs, trained=layer.trained, live=live) or trained


def count_merge(counter: MacCounter, config: Ia3Config, inputs: int, outputs: int, *, trained: bool) -> bool:
    """Counts nothing, because merging (IA)³ needs no matrix products.

    See :class:`afjax.adapters.kind.CountMerge`.
    """
    return trained


def weighted_sum(
    configs: Sequence[Ia3Config], trees: Sequence[Tree], weights: Sequence[float]
) -> tuple[Ia3Config, Tree]:
    """Computes ``1 + sum of weight * (scale - 1)`` over the adapters.

    See :class:`afjax.adapters.kind.WeightedSum`.
    """
    check_equal(configs, ("target_modules", "layers"))
    total: Tree = {}
    for name in configs[0].target_modules:
        block, layer = DENSE_LAYERS[name]
        parts = [tree[block][layer]["scale"] for tree in trees]
        check_same_trunk([part.shape for part in parts])
        scales = np.stack(parts)  # [adapters, layers, size]
        change = np.tensordot(np.asarray(weights, scales.dtype), scales - 1, axes=1)
        total.setdefault(block, {})[layer] = {"scale": 1 + change}
    return configs[0], total


KIND = DenseKind(
    config=Ia3Config,
    init=init,
    apply=apply,
    merge=merge,
    count=count,
    count_merge=count_merge,
    weighted_sum=weighted_sum,
)
