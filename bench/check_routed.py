"""Checks that a routed model with many adapters predicts like separate models.

    python bench/check_routed.py
    python bench/check_routed.py --num_adapters=200 --resident=16 --requests=50

Creates more random adapters on `minilm` than fit in the device slots, so that adapters are evicted and reloaded. Each
request has 32 rows with random adapters and texts. Each row's logits are compared with those from a separate model with
the same adapter. Prints the largest logit difference, and the memory use of the process after the first and the last
request.
"""

import argparse
import random
import sys
import time

import numpy as np
from routed_batches import random_task
from server_load import WORDS, resident_mb

from afjax import Capacity, RoutedModel
from afjax.trunk.pretrained import load_trunk

ROWS = 32


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num_adapters", type=int, default=1000, help="adapters (1000)")
    parser.add_argument("--resident", type=int, default=64, help="number of adapters on the device (64)")
    parser.add_argument("--requests", type=int, default=200, help="number of requests, each with 32 rows (200)")
    arguments = parser.parse_args()
    trunk, generator = load_trunk("minilm"), random.Random(0)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(3, 30))) for _ in range(8)]
    names = [f"task{number}" for number in range(arguments.num_adapters)]
    # Each separate model copies the trunk, so free it before building the next one.
    expected = {name: random_task(trunk, name, "pfeiffer", 64).predict(texts).logits for name in names}
    models = {name: random_task(trunk, name, "pfeiffer", 64) for name in names}
    routed = RoutedModel(trunk, models, Capacity(resident=arguments.resident, batch_sizes=(ROWS,), lengths=(64,)))
    models.clear()
    routed.warm_up()
    begin, worst = time.perf_counter(), 0.0
    checked: set[str] = set()
    memory = []
    for _ in range(arguments.requests):
        rows = [(generator.choice(names), generator.randrange(len(texts))) for _ in range(ROWS)]
        predictions = routed.predict([texts[number] for _, number in rows], [name for name, _ in rows])
        for (name, number), prediction in zip(rows, predictions, strict=True):
            difference = np.abs(np.array(prediction["logits"]) - expected[name][number]).max()
            # max() would ignore NaNs.
            worst = float(np.maximum(worst, difference))
            checked.add(name)
        memory.append(resident_mb("self"))
    num_rows = arguments.requests * ROWS
    print(f"{num_rows} rows of {len(checked)} adapters in {time.perf_counter() - begin:.0f} s")
    print(f"largest logit difference: {worst:.1e}; memory: {memory[0]:.0f} MB, then {memory[-1]:.0f} MB")
    return 0 if worst < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
