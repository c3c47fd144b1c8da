"""Which form of a fusion takes fewer multiply-adds in a training step."""

from collections.abc import Sequence

from jax import Array

from afjax.distributed.sharding import num_parts

# Training folds from as many tokens a step and device on. Smaller steps stay factored, where folding would save as well
# with few adapters; what a step costs then grows little from few adapters to many.
FOLDING_TOKENS = 2048


def num_tokens(z: Array) -> int:
    """Of ``[..., d]``, on one device: each multiplies the matrices that meet first for its own tokens."""
    return z.size // z.shape[-1] // num_parts()


def joining_pays(tokens: int, hidden_size: int) -> bool:
    """Whether a training step of the factored form multiplies query and key first.

    With the gradients counted along that takes ``3 d²`` multiply-adds a token and ``3 d³`` once; apart they take
    ``6 d²`` a token.
    """
    return tokens > hidden_size


def folding_pays(tokens: int, sizes: Sequence[int], hidden_size: int, *, value: bool = True) -> bool:
    """Whether a training step multiplies all matrices that meet first.

    With R inner units in all, and the gradients counted along, the factored form takes ``3 d² + 6 R d`` multiply-adds a
    token beside what query and key take (:func:`joining_pays`). The folded one takes ``8 R d``, as its matrices have
    gradients of their own, and ``7 d² (R + N)`` once. Without a value matrix these are ``6 R d``, ``7 R d`` and
    ``5 d² (R + N)``.

    Args:
      tokens: Of the step, on one device.
      sizes: How many inner units each adapter has.
      hidden_size: d.
      value: Whether the fusion has a value matrix.
    """
    units, d = sum(sizes), hidden_size
    query_key = tokens * 3 * d**2 + 3 * d**3 if joining_pays(tokens, d) else tokens * 6 * d**2
    factored = query_key + tokens * (3 * d**2 * value + 6 * units * d)
    folded = tokens * (7 + value) * units * d + (7 if value else 5) * d**2 * (units + len(sizes))
    return tokens >= FOLDING_TOKENS and folded < factored
