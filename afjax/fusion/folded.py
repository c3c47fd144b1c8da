"""The folded form of a fusion, which multiplies adjacent matrices first.

See :mod:`afjax.fusion.factored`.
"""

import jax
import numpy as np
from jax import Array
from jaxtyping import Float

from afjax.fusion.attention import ScoreOptions, attention_over_adapters, weigh
from afjax.fusion.per_adapter import sum_per_adapter
from afjax.nn.layers import dense, saveable
from afjax.trees import AnyArray, Node, Tree, pad_axis, register_node


@register_node
class FoldedFusion(Node):
    """A folded fusion with its adapters.

    The keys are ``layers``, for the contents of the slots, and ``shared``, for leaves shared by all layers.
    """


@register_node
class FoldedMatrices(Node):
    """The matrix products for one slot, which replace the fusion's own matrices.

    :func:`fold_layer` computes them.
    """


def fold_fusion(fusion: Tree, bank: Tree, shared: Tree) -> Tree:
    """Folds a fusion and its bank for inference.

    In each slot, :class:`FoldedMatrices` replace ``up`` and the fusion's matrices.

    Args:
      fusion: The fusion's tree.
      bank, shared: The bank's two trees, from :func:`afjax.fusion.bank.make_bank`.
    """
    folded = {}
    for slot, tree in bank.items():
        if "up" in tree:
            matrices = jax.vmap(fold_layer)(fusion[slot], tree["up"])
        else:
            matrices = jax.vmap(fold_layer, in_axes=(0, None))(fusion[slot], shared[slot]["up"])
        folded[slot] = {**{name: part for name, part in tree.items() if name != "up"}, "fusion": matrices}
    return folded


def fold_layer(params: Tree, up: Tree) -> FoldedMatrices:
    """Multiplies adjacent matrices in one layer's slot, for :func:`fuse_folded`.

    Matrices are adjacent if there is no activation between them.

    Returns:
      ``{"score": {"kernel" [d, R], "bias" [R]}, "constant_score": {"kernel" [d, N], "bias" [N]},
      "output": {"kernel" [R, d]}, "constant_output": {"kernel" [N, d]}}``. ``constant_score`` includes the key's bias,
      which only matters with dropout.
    """
    matrix, constants, query = up["kernel"], up["bias"], params["query"]
    key_up = saveable(params["key"]["kernel"].T @ matrix.T)  # [d, R]
    # The key's bias adds the same number to every adapter's score. The softmax ignores it, but dropout does not.
    key_constants = saveable(params["key"]["kernel"].T @ constants.T) + params["key"]["bias"][:, None]  # [d, N]
    if "value" in params:
        matrix, constants = (saveable(left @ params["value"]["kernel"]) for left in (matrix, constants))
    score = {"kernel": saveable(query["kernel"] @ key_up), "bias": query["bias"] @ key_up}
    constant_score = {"kernel": saveable(query["kernel"] @ key_constants), "bias": query["bias"] @ key_constants}
    return FoldedMatrices(
        {
            "score": score,
            "constant_score": constant_score,
            "output": {"kernel": matrix},
            "constant_output": {"kernel": constants},
        }
    )


def with_absent_adapters(slot: Tree, num_adapters: int, units: int) -> Tree:
    """Pads a folded fusion with adapters that receive no attention.

    Fusions with different numbers of adapters can then be stacked in the same arrays.

    Args:
      slot: A slot of bottlenecks in a :class:`FoldedFusion`, ``{"down", "fusion"}``, for one layer or stacked.
      num_adapters: The number of adapters after padding.
      units: The total number of inner activations after padding.

    Returns:
      The padded slot, as NumPy arrays. Its outputs are unchanged.
    """
    folded = slot["fusion"]
    constant_score = {
        "kernel": pad_axis(folded["constant_score"]["kernel"], -1, num_adapters),
        "bias": pad_axis(folded["constant_score"]["bias"], -1, num_adapters, value=-np.inf),
    }
    return {
        "down": _pad_leaves(slot["down"], -1, units),
        "fusion": FoldedMatrices(
            {
                "score": _pad_leaves(folded["score"], -1, units),
                "constant_score": constant_score,
                "output": _pad_leaves(folded["output"], -2, units),
                "constant_output": _pad_leaves(folded["constant_output"], -2, num_adapters),
            }
        ),
    }


def _pad_leaves(tree: Tree, axis: int, size: int) -> Tree:
    return {name: pad_axis(leaf, axis, size) for name, leaf in tree.items()}


def fuse_folded(
    folded: FoldedMatrices,
    z: Float[AnyArray, "*batch hidden"],
    inner: Float[Array, "*batch units"],
    *,
    sizes: tuple[int, ...],
    options: ScoreOptions = ScoreOptions(),
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch num_adapters"]]:
    """Computes :func:`afjax.fusion.factored.fuse_units` from folded matrices."""
    scores = sum_per_adapter(dense(folded["score"], z) * inner, sizes) + dense(folded["constant_score"], z)
    attention = attention_over_adapters(scores, options)  # [..., N]
    output = weigh(folded["output"]["kernel"], attention, inner, sizes)
    return output + dense(folded["constant_output"], attention), attention
