"""Times mixed batches against batches of one adapter.

In a mixed batch, the rows have different adapters.

    python bench/routed_batches.py
    python bench/routed_batches.py --trunk=bert-base --rows=32 --adapters=1,64 --length=64

The trunk and the adapters have random weights, and the rows have no padding. A routed model and a single-task model run
alternately on the same token ids. Both times include building the batches and fetching the logits. The routed model
has all adapters on the device, and assigns them to its rows in turn. Close other programs first.

Prints one line per combination of rows and adapters, with the median times, the ratio of the throughputs, and the size
of an adapter.
"""

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Mapping

import jax
import numpy as np
from timing import median_seconds

from afjax import ADAPTER_PRESETS, Capacity, HeadConfig, Method, RoutedModel, TaskConfig, TaskModel, single_setup
from afjax.config.adapters import OnTop
from afjax.data.tokenization import TokenizedRows
from afjax.serve.requests import Sequences
from afjax.trees import named_key, tree_digest
from afjax.trunk.encoder import init_trunk
from afjax.trunk.pretrained import Trunk, load_trunk
from afjax.trunk.sizes import SIZES

COLUMNS = ("rows", "adapters", "one adapter, ms", "routed, ms", "routed / one, rows per second", "kB per adapter")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", default="minilm", help=f"name of a size: {', '.join(SIZES)} (minilm)")
    parser.add_argument("--preset", default="pfeiffer", help=f"{', '.join(ADAPTER_PRESETS)} (pfeiffer)")
    parser.add_argument("--rows", default="1,8,32,128", help="rows per batch (1,8,32,128)")
    parser.add_argument("--adapters", default="1,8,64,1000", help="numbers of adapters on the device (1,8,64,1000)")
    parser.add_argument("--length", type=int, default=64, help="tokens per row (64)")
    parser.add_argument("--repeats", type=int, default=15, help="number of measurements per batch (15)")
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    trunk, models = random_trunk(arguments.trunk), dict[str, TaskModel]()
    for num_adapters in map(int, arguments.adapters.split(",")):
        for number in range(len(models), num_adapters):
            models[str(number)] = random_task(trunk, str(number), arguments.preset, arguments.length)
        # An earlier number of adapters may have been larger.
        resident = dict(itertools.islice(models.items(), num_adapters))
        for num_rows in map(int, arguments.rows.split(",")):
            capacity = Capacity(batch_sizes=(num_rows,), lengths=(arguments.length,))
            routed = RoutedModel(trunk, resident, capacity)
            one_s, routed_s = times(routed, models["0"], num_rows, arguments)
            cells = (
                num_rows,
                num_adapters,
                f"{1e3 * one_s:.1f}",
                f"{1e3 * routed_s:.1f}",
                f"{one_s / routed_s:.2f}",
                f"{routed.bytes_per_task('0') / 1e3:.0f}",
            )
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            # Free this model before building the next one, so that the device never holds two copies of the adapters.
            del routed
    return 0


def random_trunk(size: str) -> Trunk:
    """Creates a random trunk of the given size, with minilm's tokenizer."""
    minilm = load_trunk("minilm")
    config = dataclasses.replace(SIZES[size], vocab_size=minilm.config.vocab_size)
    params = jax.tree.map(np.asarray, jax.jit(init_trunk, static_argnums=1)(jax.random.key(0), config))
    return dataclasses.replace(minilm, name=size, config=config, params=params, sha256=tree_digest(params))


def random_task(trunk: Trunk, name: str, preset: str, length: int, *, drop: int = 0) -> TaskModel:
    """Creates a task model with a random adapter and head.

    The lowest ``drop`` layers have no adapter.
    """
    adapter = ADAPTER_PRESETS[preset]
    if drop:
        assert not isinstance(adapter, OnTop), "the adapter must be in the layers"
        adapter = dataclasses.replace(adapter, layers=tuple(range(drop, trunk.config.num_layers)))
    method = Method(adapter=adapter, head=HeadConfig(pooling="mean"))
    setup = single_setup(method, trunk.config, name=name, reads="pooled", num_outputs=3)
    params = jax.tree.map(np.asarray, setup.init(named_key(jax.random.key(0), name), trunk.params))
    return TaskModel(
        trunk=trunk,
        model=setup.model,
        params={root: params[root] for root in ("adapters", "fusion", "heads")},
        task=TaskConfig(name=name),
        labels=("a", "b", "c"),
        metrics={},
        seed=0,
        max_length=length,
    )


def times(routed: RoutedModel, one: TaskModel, num_rows: int, arguments: argparse.Namespace) -> list[float]:
    """Times a single-adapter batch and a routed batch alternately, in median seconds."""
    names = routed.names
    data = random_rows(dict.fromkeys(range(num_rows), arguments.length))
    # Row n uses adapter n, modulo the number of adapters.
    parts = []
    for number, name in enumerate(names[:num_rows]):
        numbers = tuple(range(number, num_rows, len(names)))
        parts.append(Sequences(routed.task(name), random_rows(dict.fromkeys(numbers, arguments.length)), numbers))

    return median_seconds(
        [lambda: one.logits(data, batch_size=num_rows), lambda: routed.outputs(parts)], arguments.repeats
    )


def random_rows(lengths: Mapping[int, int]) -> TokenizedRows:
    """Creates rows of random tokens. Equal row numbers have equal tokens, also in several calls.

    Args:
      lengths: ``{row number: number of tokens}``.
    """
    tokens = np.concatenate(
        [
            np.random.default_rng(number).integers(1000, 20_000, length, dtype=np.int32)
            for number, length in lengths.items()
        ]
    )
    offsets = np.cumsum([0, *lengths.values()], dtype=np.int64)
    return TokenizedRows(tokens, np.zeros(len(tokens), np.int8), offsets, None, 0)


if __name__ == "__main__":
    sys.exit(main())
