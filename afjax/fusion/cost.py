"""Decides which form of a fusion takes fewer multiply-adds per training step."""

from collections.abc import Sequence

from jaxtyping import Float

from afjax.distributed.sharding import num_parts
from afjax.trees import AnyArray

# Minimum number of tokens per step and device for training in the folded form. With few adapters, folding would pay off
# in smaller steps too. Smaller steps stay factored so that their cost grows only slowly with the number of adapters.
FOLDING_TOKENS = 2048


def num_tokens(z: Float[AnyArray, "*batch hidden"]) -> int:
    """Returns the number of tokens per device.

    The functions below use this number instead of the step's total, because each device computes the matrix products
    itself.
    """
    return z.size // z.shape[-1] // num_parts()


def joining_pays(tokens: int, hidden_size: int) -> bool:
    """Whether a factored step should multiply query and key matrices first.

    Including gradients, this takes ``3 d²`` multiply-adds per token, plus ``3 d³`` for the product itself. Applying the
    two matrices one after the other takes ``6 d²`` per token. The result is False if ``tokens`` is symbolic, as in an
    export for any number of rows.
    """
    return isinstance(tokens, int) and tokens > hidden_size


def folding_pays(tokens: int, sizes: Sequence[int], hidden_size: int, *, value: bool = True) -> bool:
    """Whether a training step should multiply all adjacent matrices first.

    Let R be the total number of inner units. Including gradients, the factored form takes ``3 d² + 6 R d``
    multiply-adds per token, plus those for query and key (:func:`joining_pays`). The folded form takes ``8 R d`` per
    token, because the folded matrices have gradients too, plus a constant ``7 d² (R + N)`` per step. Without a value
    matrix, the counts are ``6 R d``, ``7 R d`` and ``5 d² (R + N)``. Steps with fewer than :data:`FOLDING_TOKENS`
    tokens, or with a symbolic number of tokens, always stay factored.

    Args:
      tokens: Tokens per step on one device.
      sizes: Number of inner units per adapter.
      hidden_size: d.
      value: Whether the fusion has a value matrix.
    """
    units, d = sum(sizes), hidden_size
    query_key = tokens * 3 * d**2 + 3 * d**3 if joining_pays(tokens, d) else tokens * 6 * d**2
    factored = query_key + tokens * (3 * d**2 * value + 6 * units * d)
    folded = tokens * (7 + value) * units * d + (7 if value else 5) * d**2 * (units + len(sizes))
    return isinstance(tokens, int) and tokens >= FOLDING_TOKENS and folded < factored
