"""Times training steps on this machine's device, against the rate of a large matrix product.

    python bench/device_steps.py --output=steps.csv
    python bench/device_steps.py --methods=pfeiffer --slots=1,4,8,16 --rows=8 --length=64 --output=slots.csv

``bench/tpu.py`` computes the cost of the same steps on TPUs. Several programs are compiled at a time, and then run one
after another on random inputs, in several rounds. A round times consecutive steps, and waits only for the last one, as
in training. With several slots, a step trains several runs with the given number of rows each.

``TFLOP/s`` is the minimum number of operations (``afjax.tpu.minimum_flops``) divided by the time, and ``share`` is its
share of the rate of a product of two bfloat16 matrices with 8,192 rows and columns, which is timed in each round. Close
other programs first.
"""

import argparse
import dataclasses
import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from results_file import add_to_csv, read_csv

from afjax.config.training import MeshConfig
from afjax.distributed.sharding import make_mesh
from afjax.tpu.minimum_flops import minimum_flops
from afjax.tpu.plan import MethodCase, Plan, plan_method
from afjax.tpu.steps import compile_train_step

COLUMNS = tuple(
    "device,trunk,dtype,layers,method,rows,length,slots,compile_s,step_ms,ms_per_run,tflop_per_s,share".split(",")
)
SIZE = 8192  # rows and columns of the matrix product
WARM_UP = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A step to time.

    Attributes:
      method: A method of ``afjax.tpu.plan.METHODS``; ``fusion-16`` fuses 16 adapters.
      rows: Rows per run.
      length: Tokens per row.
      slots: Runs per step.
    """

    method: str
    rows: int
    length: int
    slots: int


class CompiledStep:
    """A compiled training step with random inputs.

    Attributes:
      compile_s: Seconds spent tracing and compiling, while other programs were compiled too.
      flops: The minimum number of operations per step.
    """

    def __init__(self, case: Case, trunk: str, dtype: Any, unrolled: bool) -> None:
        method, _, number = case.method.partition("-")
        plan = plan_method(
            MethodCase(
                trunk=trunk,
                method=method,
                num_adapters=int(number or 1),
                batch_size=case.rows,
                max_length=case.length,
                trunk_dtype=dtype,
                unrolled=unrolled,
            )
        ).with_slots(case.slots)
        self.flops = case.slots * _minimum(plan, case)
        self._compiled, self.compile_s = compile_train_step(plan, make_mesh(MeshConfig(), jax.devices()[:1]))
        (state, *self._inputs), _ = jax.tree.map(_random, self._compiled.args_info)
        self._leaves, self._structure = jax.tree.flatten(state)

    def run(self, num_steps: int) -> float:
        """Runs consecutive steps, and returns the mean time of one step in seconds."""
        begin = time.perf_counter()
        for _ in range(num_steps):
            # The state is the first result, as a list of its leaves.
            state, scalars = self._compiled(jax.tree.unflatten(self._structure, self._leaves), *self._inputs)
            self._leaves = jax.tree.leaves(state)
        jax.block_until_ready((self._leaves, scalars))
        return (time.perf_counter() - begin) / num_steps


def _minimum(plan: Plan, case: Case) -> int:
    trained: Any = plan.trained
    return minimum_flops(
        plan.model, trained, batch_size=case.rows, length=case.length, num_outputs=plan.outputs[0], top_k=plan.top_k
    )


def _random(shape: Any) -> jax.Array:
    """Creates an input of the given shape: small positive numbers, token ids, true, or a key."""
    if jnp.issubdtype(shape.dtype, jax.dtypes.prng_key):
        return jax.random.split(jax.random.key(0), shape.shape) if shape.shape else jax.random.key(0)
    generator = np.random.default_rng(0)
    if jnp.issubdtype(shape.dtype, jnp.floating):
        return jnp.asarray(generator.uniform(0, 0.03, shape.shape), shape.dtype)
    if shape.dtype == bool:
        return jnp.ones(shape.shape, bool)
    # Zero and one are valid as token ids, token types, labels and numbers of steps.
    return jnp.asarray(generator.integers(0, 2, shape.shape), shape.dtype)


def matrix_product() -> Callable[[int], float]:
    """Returns a function that times large matrix products, in seconds per product."""
    size = SIZE
    left, right = (jax.random.normal(jax.random.key(seed), (size, size), jnp.bfloat16) for seed in (0, 1))
    product = jax.jit(lambda left, right: left @ right)

    def run(num_steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(num_steps):
            result = product(left, right)
        result.block_until_ready()
        return (time.perf_counter() - begin) / num_steps

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", default="bert-base", help="name of a size (bert-base)")
    parser.add_argument("--methods", default="head,pfeiffer,houlsby,lora,fusion-4,fusion-16,fusion-64,full")
    parser.add_argument("--slots", default="1", help="numbers of runs per step (1)")
    parser.add_argument("--rows", type=int, default=32, help="rows per run (32)")
    parser.add_argument("--length", type=int, default=128, help="tokens per row (128)")
    parser.add_argument("--trunk_dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--unrolled", action="store_true", help="compile the layers as straight-line code")
    parser.add_argument("--rounds", type=int, default=5, help="number of measurements per step (5)")
    parser.add_argument("--num_steps", type=int, default=20, help="steps per measurement (20)")
    parser.add_argument("--threads", type=int, default=8, help="number of programs to compile at a time (8)")
    parser.add_argument("--output", required=True, type=Path, help="output file (CSV)")
    arguments = parser.parse_args()
    # A file with other columns is refused before anything is compiled.
    read_csv(arguments.output, COLUMNS)
    cases = [
        Case(method, arguments.rows, arguments.length, int(slots))
        for method, slots in itertools.product(arguments.methods.split(","), arguments.slots.split(","))
    ]

    def compiled(case: Case) -> CompiledStep:
        return CompiledStep(case, arguments.trunk, arguments.trunk_dtype, arguments.unrolled)

    with ThreadPoolExecutor(arguments.threads) as pool:
        steps = dict(zip(cases, pool.map(compiled, cases), strict=True))
    product = matrix_product()
    for run in (product, *(step.run for step in steps.values())):
        run(WARM_UP)
    seconds: dict[Case, list[float]] = {case: [] for case in cases}
    product_s = []
    for _ in range(arguments.rounds):
        product_s.append(product(arguments.num_steps))
        for case, step in steps.items():
            seconds[case].append(step.run(arguments.num_steps))
    peak = 2 * SIZE**3 / statistics.median(product_s)
    device, layers = jax.devices()[0].device_kind, "unrolled" if arguments.unrolled else "scanned"
    print(f"{device}, JAX {jax.__version__}: the matrix product computes {peak / 1e12:.0f} TFLOP/s")
    for case, step in steps.items():
        median = statistics.median(seconds[case])
        rate = step.flops / median
        figures = (f"{1e3 * median:.2f}", f"{1e3 * median / case.slots:.2f}", f"{rate / 1e12:.1f}")
        setup = (device, arguments.trunk, arguments.trunk_dtype, layers, *dataclasses.astuple(case))
        values = (*setup, f"{step.compile_s:.1f}", *figures, f"{rate / peak:.3f}")
        line = dict(zip(COLUMNS, values, strict=True))
        add_to_csv(arguments.output, COLUMNS, line)
        print(", ".join(f"{name} {value}" for name, value in line.items()), flush=True)


if __name__ == "__main__":
    main()
