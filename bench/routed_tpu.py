"""Compiles mixed batches for a TPU, and compares them with batches of one adapter.

In a mixed batch, each row has its own adapter.

    python bench/routed_tpu.py
    python bench/routed_tpu.py --topologies=v5e:1x1,v6e:1x1 --shapes=8x64,32x128 --adapters=64,1000

The trunk is in bfloat16. No TPU is needed, because the costs and the shortest possible time are computed from the
compiled programs (docs/scaling.md).

Prints one line per program: FLOPs, main-memory traffic, memory use, and the shortest possible time. Ratios are relative
to the program with one adapter and the same shape.
"""

import argparse
import functools
import itertools
import sys
from typing import Any

import jax
import jax.numpy as jnp

from afjax import ADAPTER_PRESETS, HeadConfig, Method, single_setup
from afjax.config.training import MeshConfig
from afjax.distributed.sharding import make_mesh
from afjax.serve.forms import SlotForm, head_entry, head_form, slot_entry, slot_form
from afjax.serve.program import RoutedPlan, routed_outputs
from afjax.tpu.chips import get_topology, parse_topology
from afjax.tpu.program import read_program
from afjax.tpu.roofline import roofline
from afjax.trees import Tree
from afjax.trunk.encoder import cast_trunk, init_trunk
from afjax.trunk.layers import unstack_layers
from afjax.trunk.sizes import SIZES

COLUMNS = ("chip", "rows x tokens", "adapters", "GFLOP", "ratio", "GB moved", "ratio", "memory, GB", "ms", "ratio")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default="v5e:1x1", help="slices, for example v5e:1x1,v6e:1x1 (v5e:1x1)")
    parser.add_argument("--trunk", default="bert-base", help=f"{', '.join(SIZES)} (bert-base)")
    parser.add_argument("--preset", default="pfeiffer", help=f"{', '.join(ADAPTER_PRESETS)} (pfeiffer)")
    parser.add_argument("--shapes", default="8x32,32x32,32x128", help="rows x tokens (8x32,32x32,32x128)")
    parser.add_argument("--adapters", default="64,1000", help="numbers of adapters on the device (64,1000)")
    arguments = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for topology_name, shape in itertools.product(arguments.topologies.split(","), arguments.shapes.split(",")):
        rows, length = map(int, shape.split("x"))
        first: tuple[float, float, float] | None = None
        for num_adapters in ("one", *map(int, arguments.adapters.split(","))):
            topology = parse_topology(topology_name)
            mesh = make_mesh(MeshConfig(), get_topology(topology).devices)
            sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
            step, inputs = program(arguments, num_adapters, rows, length)
            compiled = read_program(jax.jit(step).lower(*on_mesh(inputs, sharding)).compile())
            best = roofline(compiled.work, topology)
            costs = compiled.work.flops / 1e9, compiled.work.hbm_bytes / 1e9, best.step_s * 1e3
            first = first or costs
            ratios = [f"{cost / one:.3f}" for cost, one in zip(costs, first, strict=True)]
            cells = [topology_name, shape, num_adapters, f"{costs[0]:.1f}", ratios[0], f"{costs[1]:.2f}", ratios[1]]
            cells += [f"{compiled.memory.peak / 1e9:.2f}", f"{costs[2]:.3f} ({best.bound})", ratios[2]]
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
    return 0


def on_mesh(inputs: Any, sharding: jax.sharding.Sharding) -> Any:
    """Adds a sharding to the shapes of a program's inputs."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), inputs)


def program(arguments: argparse.Namespace, num_adapters: Any, rows: int, length: int) -> tuple[Any, tuple[Any, ...]]:
    """Builds the step of a single-task or routed model, with the shapes of its inputs."""
    config = SIZES[arguments.trunk]
    method = Method(adapter=ADAPTER_PRESETS[arguments.preset], head=HeadConfig(pooling="first"))
    setup = single_setup(method, config, name="task", reads="pooled", num_outputs=3)
    params = jax.eval_shape(lambda: setup.init(jax.random.key(0), init_trunk(jax.random.key(0), config)))
    trunk = jax.eval_shape(lambda tree: cast_trunk(tree, "bfloat16"), params["trunk"])
    trunk = {**trunk, "layers": jax.eval_shape(unstack_layers, trunk["layers"])}
    batch = {name: jax.ShapeDtypeStruct((rows, length), dtype) for name, dtype in INPUTS.items()}
    if num_adapters == "one":
        return setup.model, ({**params, "trunk": trunk}, batch)
    form = slot_form(setup.model)
    assert isinstance(form, SlotForm), "the model must have an adapter"
    heads = head_form(setup.model, 3)
    plan = RoutedPlan(trunk=config, slots=(form,), heads=(heads,), pooling="first", normalize=False)
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), {**params, "trunk": {}})
    entries = [slot_entry(form, setup.model, zeros, dtype="bfloat16"), head_entry(heads, zeros["heads"]["task"])]
    banks: list[Tree] = [
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1 + num_adapters, *leaf.shape), leaf.dtype), entry)
        for entry in entries
    ]
    places = jax.ShapeDtypeStruct((rows, 2), jnp.int32)
    return functools.partial(routed_outputs, plan), ({"trunk": trunk, "banks": banks}, batch, places)


INPUTS = {"tokens": jnp.int32, "types": jnp.int32, "mask": jnp.bool_}

if __name__ == "__main__":
    sys.exit(main())
