"""Measures how much of a training step is spent on matrix products, on the CPU.

    python bench/step_matmuls.py
    python bench/step_matmuls.py --trunk=bert-base --rows=8 --repeats=10

The script extracts the matrix products from the compiled step, and builds a second program that computes only these,
with the same shapes and transpositions, on random inputs. The two programs alternate in one process. The trunk has
random weights, and the rows have no padding. Close other programs first.

Prints one line per method: the median time of each program, and their ratio. A ratio of 1 would mean that the step
spends all its time on matrix products.
"""

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax
from timing import median_seconds

from afjax.bench.step_time import Case, Method, prepare
from afjax.tpu.hlo import Instruction, parse_module

COLUMNS = ("method", "matrix products", "GFLOP", "step, s", "matrix products, s", "matrix products / step")

# Arguments of jax.lax.dot_general: the operands' shapes and dtype, and the dimension numbers.
Product = tuple[tuple[int, ...], tuple[int, ...], str, tuple[Any, ...]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trunk", default="minilm", help="name of a size (minilm)")
    parser.add_argument("--methods", default="adapter,fusion,full", help="adapter, fusion, full")
    parser.add_argument("--num_adapters", type=int, default=16, help="number of adapters to fuse (16)")
    parser.add_argument("--rows", type=int, default=32, help="rows per step (32)")
    parser.add_argument("--length", type=int, default=128, help="tokens per row (128)")
    parser.add_argument("--repeats", type=int, default=15, help="number of measurements per program (15)")
    arguments = parser.parse_args()
    methods = arguments.methods.split(",")
    if unknown := set(methods) - set(get_args(Method)):
        parser.error(f"unknown methods: {', '.join(sorted(unknown))}")
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for method in methods:
        prepared = prepare(
            Case(
                trunk=arguments.trunk,
                method=method,
                mode="train",
                num_adapters=arguments.num_adapters,
                batch_size=arguments.rows,
                max_length=arguments.length,
            )
        )
        products = matrix_products(prepared.compiled)
        step_s, products_s = median_seconds([prepared.run, program(products)], arguments.repeats)
        flops, ratio = sum(map(operations, products)) / 1e9, products_s / step_s
        cells = (method, len(products), f"{flops:.1f}", f"{step_s:.3f}", f"{products_s:.3f}", f"{ratio:.2f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return 0


def matrix_products(compiled: jax.stages.Compiled) -> list[Product]:
    """Extracts the matrix products of a program, which must not contain them in loops."""
    text = compiled.as_text()
    assert text is not None, "the backend must be able to print its programs"
    products = []
    for computation in parse_module(text).computations.values():
        for instruction in computation.instructions.values():
            # Convolutions and custom calls could contain matrix products that are not counted below.
            assert instruction.opcode not in ("convolution", "custom-call"), instruction.opcode
            if instruction.opcode == "dot":
                assert "while" not in instruction.op_name, instruction.op_name
                products.append(_product(instruction, computation.operands(instruction)))
    return products


def _product(instruction: Instruction, operands: Sequence[Instruction]) -> Product:
    left, right = (operand.results[0] for operand in operands)
    dimensions = tuple(
        tuple(instruction.numbers(f"{side}_{kind}_dims") for side in ("lhs", "rhs"))
        for kind in ("contracting", "batch")
    )
    return left.dims, right.dims, {"f32": "float32", "bf16": "bfloat16"}[left.dtype], dimensions


def operations(product: Product) -> int:
    """Counts a product's multiplications and additions."""
    left, right, dtype, dimensions = product
    result = jax.eval_shape(
        functools.partial(jax.lax.dot_general, dimension_numbers=dimensions),
        jax.ShapeDtypeStruct(left, dtype),
        jax.ShapeDtypeStruct(right, dtype),
    )
    contracted = 1
    for axis in dimensions[0][0]:
        contracted *= left[axis]
    return 2 * result.size * contracted


def program(products: Sequence[Product]) -> Callable[[], None]:
    """Compiles a program that computes only the given products, on random inputs.

    Identical products get different inputs, so that the compiler cannot merge them.
    """
    keys = jax.random.split(jax.random.key(0), 2 * len(products))
    inputs = [
        (jax.random.normal(keys[2 * number], left, dtype), jax.random.normal(keys[2 * number + 1], right, dtype))
        for number, (left, right, dtype, _) in enumerate(products)
    ]

    def compute(pairs: Sequence[tuple[jax.Array, jax.Array]]) -> list[jax.Array]:
        return [
            jax.lax.dot_general(left, right, dimension_numbers=product[3])
            for (left, right), product in zip(pairs, products, strict=True)
        ]

    compiled = jax.jit(compute).lower(inputs).compile()
    assert len(matrix_products(compiled)) == len(products), "the compiler removed a matrix product"
    return lambda: jax.block_until_ready(compiled(inputs))


if __name__ == "__main__":
    sys.exit(main())
