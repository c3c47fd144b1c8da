"""Fusion with the matrices multiplied first that no activation separates; see :mod:`afjax.fusion.factored`."""

import jax
from jax import Array

from afjax.fusion.attention import attention_over_adapters, weigh
from afjax.fusion.per_adapter import sum_per_adapter
from afjax.nn.layers import dense, keep
from afjax.trees import Tree


def fold_fusion(fusion: Tree, bank: Tree, shared: Tree) -> Tree:
    """What inference needs of a fusion and a bank: the bank with :func:`fold_layer` in place of ``up``, stacked."""
    folded = {}
    for slot, tree in bank.items():
        if "up" in tree:
            matrices = jax.vmap(fold_layer)(fusion[slot], tree["up"])
        else:
            matrices = jax.vmap(fold_layer, in_axes=(0, None))(fusion[slot], shared[slot]["up"])
        folded[slot] = {**{name: part for name, part in tree.items() if name != "up"}, "folded": matrices}
    return folded


def fold_layer(params: Tree, up: Tree) -> Tree:
    """Multiplies the matrices of one layer's slot that no activation stands between, for :func:`fuse_folded`.

    Returns:
      ``{"score": {"kernel" [d, R], "bias" [R]}, "constant_score": {"kernel" [d, N], "bias" [N]},
      "output": {"kernel" [R, d]}, "constant_output": {"kernel" [N, d]}}``. Where dropout acts, so does the key's bias:
      it is in ``constant_score``.
    """
    matrix, constants, query = up["kernel"], up["bias"], params["query"]
    key_up = keep(params["key"]["kernel"].T @ matrix.T)  # [d, R]
    # The same addend for every adapter: the softmax would ignore it, dropout does not.
    key_constants = keep(params["key"]["kernel"].T @ constants.T) + params["key"]["bias"][:, None]  # [d, N]
    if "value" in params:
        matrix, constants = (keep(left @ params["value"]["kernel"]) for left in (matrix, constants))
    return {
        "score": {"kernel": keep(query["kernel"] @ key_up), "bias": query["bias"] @ key_up},
        "constant_score": {"kernel": keep(query["kernel"] @ key_constants), "bias": query["bias"] @ key_constants},
        "output": {"kernel": matrix},
        "constant_output": {"kernel": constants},
    }


def fuse_folded(
    folded: Tree,
    z: Array,
    inner: Array,
    *,
    sizes: tuple[int, ...],
    temperature: float = 1.0,
    dropout_rate: float = 0.0,
    key: Array | None = None,
    drawn: Array | None = None,
) -> tuple[Array, Array]:
    """:func:`fuse_units` from what :func:`fold_layer` gives."""
    scores = sum_per_adapter(dense(folded["score"], z) * inner, sizes) + dense(folded["constant_score"], z)
    attention = attention_over_adapters(scores, temperature, dropout_rate, key, drawn)  # [..., N]
    output = weigh(folded["output"]["kernel"], attention, inner, sizes)
    return output + dense(folded["constant_output"], attention), attention
