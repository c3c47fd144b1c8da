"""Disentangled attention: scores from content and relative positions.

For the query ``q_i`` of token ``i`` and the key ``k_j`` of token ``j``, the score is::

    q_i · k_j  +  q_i · position_key[i - j]  +  k_j · position_query[i - j]

divided by ``sqrt(3 * head size)``. Position keys and position queries are the layer's key and query projections of a
table of relative positions. Large distances share rows of the table (:class:`RelativeBuckets`).

Reference: He et al. 2021, *DeBERTa: Decoding-enhanced BERT with Disentangled Attention*, section 3.1.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from afjax.nn.layers import saveable, wide_matmul
from afjax.trees import AnyArray, Tree

# The number of products in a score. Their sum is divided by sqrt(NUM_TERMS * head size).
NUM_TERMS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelativeBuckets:
    """Maps the distance between two tokens to a row in a table of relative positions.

    Each distance up to half of ``num_buckets`` has its own row. A row for larger distances covers a range, which grows
    with the distance. Distances of ``max_distance`` or more share the first or the last row, depending on the
    direction.

    Attributes:
      num_buckets: The number of rows per direction. The table has twice as many rows.
      max_distance: Distances of at least this value share one row per direction.
    """

    num_buckets: int
    max_distance: int

    @property
    def num_entries(self) -> int:
        """The number of rows in the table."""
        return 2 * self.num_buckets

    def entries(self, distances: Int[AnyArray, "*shape"]) -> Int[AnyArray, "*shape"]:
        """Maps distances (query position minus key position) to rows of the table.

        The result is a NumPy array if ``distances`` is one.
        """
        if not isinstance(distances, np.ndarray):
            limit = self.max_distance
            return jnp.asarray(self.entries(np.arange(-limit, limit + 1)))[jnp.clip(distances, -limit, limit) + limit]
        middle = self.num_buckets // 2
        size = np.maximum(np.abs(distances), middle)
        # Every step is rounded to float32, as in Hugging Face's code. Otherwise, a tiny difference could change the
        # result, because it is finally rounded up to an integer.
        ranges = _log32(size / middle) / _log32((self.max_distance - 1) / middle) * np.float32(middle - 1)
        buckets = np.where(
            np.abs(distances) <= middle, distances, np.sign(distances) * (np.ceil(ranges).astype(np.int64) + middle)
        )
        return np.clip(buckets + self.num_buckets, 0, self.num_entries - 1)

    def used(self, length: int) -> slice:
        """Returns the slice of the table's rows used by inputs of ``length`` tokens.

        If ``length`` is a symbolic size, this is the entire table.
        """
        if not isinstance(length, int):
            return slice(0, self.num_entries)
        first, last = self.entries(np.array([1 - length, length - 1]))
        return slice(int(first), int(last) + 1)

    def used_by_first_token(self, length: int) -> slice:
        """Returns the slice of ``used(length)`` that contains the first token's distances."""
        return slice(0, int(self.entries(np.array([0]))[0]) + 1 - self.used(length).start)


def _log32(x: AnyArray | float) -> np.ndarray:
    """Computes logarithms of float32 numbers, correctly rounded to float32."""
    return np.log(np.asarray(x, np.float32).astype(np.float64)).astype(np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionProjections:
    """A layer's query and key projections of the table of relative positions.

    ``rows`` below is the batch size if the projections differ between the rows of a batch, and 1 otherwise.

    Attributes:
      query, key: ``[rows, entries, size]``, projections of the table's rows ``buckets.used(length)``. If only the first
        token's scores are computed, the rows ``used_by_first_token(length)`` of ``used(length)`` suffice.
      buckets: Maps distances to the table's rows.
    """

    query: Float[Array, "rows entries size"]
    key: Float[Array, "rows entries size"]
    buckets: RelativeBuckets

    def scores(
        self, query: Float[Array, "batch num_heads length size"], keys: Float[Array, "batch num_heads length size"]
    ) -> Float[Array, "batch num_heads length length"]:
        """Computes the content-to-position scores of all token pairs, in both directions.

        A gather for every pair of tokens is slow on TPU, and its gradient is a scatter. Instead, this method splits the
        tokens into blocks, multiplies each token with all distances that occur in its block, and shifts the products to
        the token's own position.

        Args:
          query, keys: ``[batch, heads, length, head size]``.

        Returns:
          ``[batch, heads, queries, length]``, float32 or wider. The products are rounded to the dtype of ``query``
          before the shift, which halves the memory traffic in bfloat16.
        """
        length = keys.shape[2]
        wide = jnp.promote_types(query.dtype, jnp.float32)
        # Exported programs have a symbolic length, so the distances are not constants.
        constants = isinstance(length, int)
        block = _block_size(length) if constants else length
        num_blocks = length // block if constants else 1
        # The distance in each column of each block: the other token's position minus the token's own. Row r of a block
        # has token k in column k + block - 1 - r, so the distance is the same in all rows of a column.
        columns = _arange(length + block) - (block - 1)
        steps = columns[None] - block * np.arange(num_blocks)[:, None]
        if constants:
            # Only ``length`` columns per token are used. The distances in the other columns are clipped to the range
            # that ``used(length)`` covers.
            steps = np.clip(steps, 1 - length, length - 1)

        def products(content: Array, projected: Array, distances: AnyArray) -> Array:
            by_block = content.reshape(*content.shape[:2], num_blocks, block, content.shape[-1])
            # [rows, heads, blocks, columns, head size]
            positions = self._by_distance(projected, distances, length, content.shape[1])
            shifted = _shift(wide_matmul(by_block, positions.swapaxes(-1, -2)).astype(query.dtype))
            return shifted.reshape(*content.shape[:3], length).astype(wide)

        # The keys' products have the shape [batch, heads, keys, queries].
        return products(query, self.key, -steps) + products(keys, self.query, steps).swapaxes(2, 3)

    def first_token_scores(
        self, query: Float[Array, "batch num_heads 1 size"], keys: Float[Array, "batch num_heads length size"]
    ) -> Float[Array, "batch num_heads 1 length"]:
        """Computes the first token's scores, the first row of :meth:`scores`.

        Args:
          query: The first token's query, ``[batch, heads, 1, head size]``.
          keys: ``[batch, heads, length, head size]``.
        """
        position_keys, position_queries = self._to_first_token(keys.shape[2], keys.shape[1])
        of_keys = (keys * position_queries).sum(-1, dtype=jnp.promote_types(keys.dtype, jnp.float32))
        return wide_matmul(query, position_keys.swapaxes(2, 3)) + of_keys[:, :, None]

    def first_token_scores_without_keys(
        self, key_params: Tree, x: Float[Array, "batch length inputs"], query: Float[Array, "num_heads batch size"]
    ) -> Float[Array, "batch num_heads length"]:
        """Computes the first token's scores without computing keys.

        ``position_query · (K x + b)`` equals ``(Kᵀ position_query) · x + position_query · b``, where
        ``Kᵀ position_query`` is computed once for all rows of the batch.

        Args:
          key_params: The key's dense layer, ``{"kernel" [inputs, num_heads * size], "bias"}``.
          x: The layer's input, ``[batch, length, inputs]``.
          query: The first token's query, ``[heads, batch, head size]``.
        """
        num_heads, _, size = query.shape
        # This form is only used with merged layers, whose projections have a single row because they are the same for
        # all rows of the batch.
        keys, queries = (projection[0] for projection in self._to_first_token(x.shape[1], num_heads))
        kernel = key_params["kernel"].astype(x.dtype).reshape(-1, num_heads, size).transpose(1, 2, 0)
        bias = key_params["bias"].astype(x.dtype).reshape(num_heads, size, 1)
        projected = saveable(wide_matmul(queries, kernel).astype(x.dtype))  # [heads, length, inputs]
        key_scores = wide_matmul(x.swapaxes(0, 1), projected.transpose(1, 2, 0))  # [length, batch, heads]
        query_scores = wide_matmul(query, keys.swapaxes(1, 2))  # [heads, batch, length]
        bias_scores = wide_matmul(queries, bias)[..., 0]  # [heads, length]
        return query_scores.transpose(1, 0, 2) + key_scores.transpose(1, 2, 0) + bias_scores[None]

    def _to_first_token(self, length: int, num_heads: int) -> tuple[Array, Array]:
        """Returns the position keys and queries for the first token's distances."""
        distances = -_arange(length)
        keys = self._by_distance(self.key, distances, length, num_heads)
        return keys, self._by_distance(self.query, distances, length, num_heads)

    def _by_distance(self, projected: Array, distances: AnyArray, length: int, num_heads: int) -> Array:
        """Looks up the projections for the given distances, split into heads.

        The shape is ``[rows, heads, *distances, head size]``.
        """
        entries = self.buckets.entries(distances) - self.buckets.used(length).start
        rows = jnp.take(projected, entries, axis=1)
        heads = rows.reshape(*rows.shape[:-1], num_heads, rows.shape[-1] // num_heads)
        return jnp.moveaxis(heads, -2, 1)


def _arange(size: int) -> AnyArray:
    """Returns the integers below ``size``, as a constant unless ``size`` is symbolic."""
    return np.arange(size) if isinstance(size, int) else jnp.arange(size)


def _block_size(length: int) -> int:
    """Returns the number of tokens per block.

    It is the largest divisor of ``length`` from 8 to 32, or ``length`` if there is none. Each token has
    ``length + block`` products. Blocks of 16 to 128 tokens move about the same number of bytes (docs/results.md).
    """
    return max((size for size in range(8, 33) if length % size == 0), default=length)


def _shift(products: Float[Array, "*batch block columns"]) -> Float[Array, "*batch block length"]:
    """Selects ``length`` columns per row, starting at column ``block - 1 - row``.

    ``products`` is ``[..., block, block + length]``. It is flattened and reshaped to rows that are shorter by one
    column, so that each row starts one column earlier than the previous row.
    """
    *batch, block, width = products.shape
    flat = products.reshape(*batch, block * width)
    moved = flat[..., block - 1 : block - 1 + block * (width - 1)]
    return moved.reshape(*batch, block, width - 1)[..., : width - block]
