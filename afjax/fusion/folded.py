"""Fusion from products of matrices that no activation separates; see :mod:`afjax.fusion.factored`."""

import jax
from jax import Array

from afjax.fusion.attention import ScoreOptions, attention_over_adapters, weigh
from afjax.fusion.per_adapter import sum_per_adapter
from afjax.nn.layers import dense, keep
from afjax.trees import Node, Tree, register_node


@register_node
class FoldedFusion(Node):
    """A fusion and its adapters for inference: ``{"layers": contents of slots, "shared": leaves of all layers}``."""


@register_node
class FoldedMatrices(Node):
    """One slot's products, in place of the fusion's own matrices: :func:`fold_layer`."""


def fold_fusion(fusion: Tree, bank: Tree, shared: Tree) -> Tree:
    """A bank's stacked contents of slots for inference: :class:`FoldedMatrices` replace ``up`` and the fusion."""
    folded = {}
    for slot, tree in bank.items():
        if "up" in tree:
            matrices = jax.vmap(fold_layer)(fusion[slot], tree["up"])
        else:
            matrices = jax.vmap(fold_layer, in_axes=(0, None))(fusion[slot], shared[slot]["up"])
        folded[slot] = {**{name: part for name, part in tree.items() if name != "up"}, "fusion": matrices}
    return folded


def fold_layer(params: Tree, up: Tree) -> FoldedMatrices:
    """Multiplies the matrices of one layer's slot that no activation separates, for :func:`fuse_folded`.

    Returns:
      ``{"score": {"kernel" [d, R], "bias" [R]}, "constant_score": {"kernel" [d, N], "bias" [N]},
      "output": {"kernel" [R, d]}, "constant_output": {"kernel" [N, d]}}``. The key's bias, which matters under dropout,
      is in ``constant_score``.
    """
    matrix, constants, query = up["kernel"], up["bias"], params["query"]
    key_up = keep(params["key"]["kernel"].T @ matrix.T)  # [d, R]
    # The same addend for every adapter: the softmax would ignore it, dropout does not.
    key_constants = keep(params["key"]["kernel"].T @ constants.T) + params["key"]["bias"][:, None]  # [d, N]
    if "value" in params:
        matrix, constants = (keep(left @ params["value"]["kernel"]) for left in (matrix, constants))
    return FoldedMatrices(
        {
            "score": {"kernel": keep(query["kernel"] @ key_up), "bias": query["bias"] @ key_up},
            "constant_score": {"kernel": keep(query["kernel"] @ key_constants), "bias": query["bias"] @ key_constants},
            "output": {"kernel": matrix},
            "constant_output": {"kernel": constants},
        }
    )


def fuse_folded(
    folded: FoldedMatrices,
    z: Array,
    inner: Array,
    *,
    sizes: tuple[int, ...],
    options: ScoreOptions = ScoreOptions(),
) -> tuple[Array, Array]:
    """:func:`afjax.fusion.factored.fuse_units` from folded matrices."""
    scores = sum_per_adapter(dense(folded["score"], z) * inner, sizes) + dense(folded["constant_score"], z)
    attention = attention_over_adapters(scores, options)  # [..., N]
    output = weigh(folded["output"]["kernel"], attention, inner, sizes)
    return output + dense(folded["constant_output"], attention), attention
