"""Compares implementations of DeBERTa's relative-position scores on a TPU.

    python bench/disentangled_tpu.py
    python bench/disentangled_tpu.py --topology=v6e:1x1 --shapes=32x128

No TPU is needed, because the costs come from the compiled programs (docs/scaling.md). Each program computes the
attention of one DeBERTa-v3-base layer in bfloat16, or its gradients with respect to queries, keys and values.

Prints one line per implementation and shape: FLOPs of the matrix products, memory traffic in main memory and in all
memories, and compile time in seconds.
"""

import argparse
import functools
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from afjax.config.training import MeshConfig
from afjax.distributed.sharding import make_mesh, replicated
from afjax.nn import disentangled_attention
from afjax.nn.attention import attend_to_tokens
from afjax.nn.disentangled_attention import NUM_TERMS, PositionProjections, RelativeBuckets
from afjax.nn.layers import wide_matmul
from afjax.tpu.chips import get_topology, parse_topology
from afjax.tpu.program import read_program

NUM_HEADS, SIZE = 12, 64
BUCKETS = RelativeBuckets(num_buckets=256, max_distance=512)
# Computes scores [batch, heads, queries, keys] from the queries and keys [batch, heads, length, size], and from the
# query and key projections of the table entries in use [entries, heads * size].
Form = Callable[[Array, Array, Array, Array], Array]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="v5e:1x1", help="a slice (v5e:1x1)")
    parser.add_argument("--shapes", default="32x128,8x512", help="rows x tokens (32x128,8x512)")
    flags = parser.parse_args()
    mesh = make_mesh(MeshConfig(), get_topology(parse_topology(flags.topology)).devices)
    print(
        "| rows x tokens | program | form | GFLOP of products | HBM traffic, MB | traffic in all memories, MB "
        "| compile time, s |"
    )
    print("|---|---|---|---|---|---|---|", flush=True)
    for shape in flags.shapes.split(","):
        rows, length = map(int, shape.split("x"))
        for with_gradients in (False, True):
            for name, form in FORMS.items():
                start = time.perf_counter()
                work = read_program(compiled(form, rows, length, mesh, with_gradients=with_gradients)).work
                cells = [shape, "gradients" if with_gradients else "values", name, f"{work.matmul_flops / 1e9:.1f}"]
                cells += [f"{size / 1e6:.0f}" for size in (work.hbm_bytes, work.bytes_accessed)]
                print(f"| {' | '.join(cells)} | {time.perf_counter() - start:.0f} |", flush=True)
    return 0


def compiled(form: Form, rows: int, length: int, mesh: Any, *, with_gradients: bool) -> jax.stages.Compiled:
    """Compiles one layer's attention, or its gradients."""

    def attention(query: Array, keys: Array, values: Array, mask: Array, *positions: Array) -> Array:
        scores = wide_matmul(query, keys.swapaxes(2, 3)) + form(query, keys, *positions)
        return attend_to_tokens(scores, values, mask=mask, head_size=NUM_TERMS * SIZE, dropout_rate=0.0, key=None)[0]

    def gradients(*inputs: Array) -> tuple[Array, ...]:
        def total(*tokens: Array) -> Array:
            return attention(*tokens, *inputs[3:]).sum(dtype=jnp.float32)

        return jax.grad(total, argnums=(0, 1, 2))(*inputs[:3])

    used = BUCKETS.used(length)
    tokens, table = (rows, NUM_HEADS, length, SIZE), (used.stop - used.start, NUM_HEADS * SIZE)
    shapes = [(tokens, "bfloat16")] * 3 + [((rows, length), "bool")] + [(table, "bfloat16")] * 2
    inputs = [jax.ShapeDtypeStruct(shape, dtype, sharding=replicated(mesh)) for shape, dtype in shapes]
    return jax.jit(gradients if with_gradients else attention).lower(*inputs).compile()


def none(query: Array, keys: Array, position_query: Array, position_key: Array) -> Array:
    """Omits the scores: attention without relative positions."""
    return jnp.zeros(())


def blocks(block: int, query: Array, keys: Array, position_query: Array, position_key: Array) -> Array:
    """Computes the scores like afjax, in blocks of ``block`` tokens.

    If ``block`` is 0, the entire row is one block.
    """
    projections = PositionProjections(query=position_query[None], key=position_key[None], buckets=BUCKETS)
    with mock.patch.object(disentangled_attention, "_block_size", lambda length: block or length):
        return projections.scores(query, keys)


def _entries(length: int) -> np.ndarray:
    """Computes the table index for each pair of tokens, ``[queries, keys]``."""
    steps = np.arange(length)
    return BUCKETS.entries(steps[:, None] - steps[None]) - BUCKETS.used(length).start


def _heads(table: Array) -> Array:
    return table.reshape(-1, NUM_HEADS, SIZE).swapaxes(0, 1)  # [heads, entries, size]


def gather(query: Array, keys: Array, position_query: Array, position_key: Array) -> Array:
    """Computes products with all entries, then gathers one per pair of tokens.

    This is Hugging Face's implementation.
    """
    entries = jnp.asarray(_entries(query.shape[2]))

    def looked_up(content: Array, table: Array, entries: Array) -> Array:
        products = wide_matmul(content, _heads(table).swapaxes(1, 2)[None])
        return jnp.take_along_axis(products, entries[None, None], axis=3)

    return looked_up(query, position_key, entries) + looked_up(keys, position_query, entries.T).swapaxes(2, 3)


def one_hot(query: Array, keys: Array, position_query: Array, position_key: Array) -> Array:
    """Like :func:`gather`, but uses one-hot matrix products instead of lookups."""
    chosen = jnp.asarray(_entries(query.shape[2])[..., None] == np.arange(position_key.shape[0]), query.dtype)
    of_queries, of_keys = (
        wide_matmul(content, _heads(table).swapaxes(1, 2)[None]).astype(query.dtype)
        for content, table in ((query, position_key), (keys, position_query))
    )
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    return product("bhim,ijm->bhij", of_queries, chosen) + product("bhjm,ijm->bhij", of_keys, chosen)


def pairs(query: Array, keys: Array, position_query: Array, position_key: Array) -> Array:
    """Gathers position keys and queries for each pair of tokens, before the products.

    This needs the fewest FLOPs.
    """
    entries = _entries(query.shape[2])
    product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    of_queries = product("bhid,hijd->bhij", query, _heads(position_key)[:, entries])
    return of_queries + product("bhjd,hijd->bhij", keys, _heads(position_query)[:, entries])


FORMS: Mapping[str, Form] = {
    "no positions": none,
    "blocks of 16": functools.partial(blocks, 16),
    "blocks of 32": functools.partial(blocks, 32),
    "blocks of 64": functools.partial(blocks, 64),
    "one block": functools.partial(blocks, 0),
    "gather": gather,
    "one-hot": one_hot,
    "pairs": pairs,
}


if __name__ == "__main__":
    sys.exit(main())
