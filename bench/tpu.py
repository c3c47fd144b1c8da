"""Estimates the cost of training steps on TPU slices from their compiled programs.

    python bench/tpu.py --output=tpu.csv
    python bench/tpu.py --topologies=v5e:2x4 --trunks=bert-base --layers=scanned,unrolled --output=tpu.csv
    python bench/tpu.py --topologies=v5e:1x1,v6e:1x1 --trunks=bert-base --methods=pfeiffer --slots=1,4,8,16 \\
        --output=slots.csv

No TPU is needed (docs/scaling.md). The trunk is in bfloat16. By default, each chip gets 32 rows of 128 tokens. With
several slots, one step trains several runs with that many rows each, and the costs are for the entire step.
``--layers=scanned,unrolled`` compiles each method twice in succession, with its layers as a loop and as straight-line
code, so that the compile times are comparable. Each compilation runs in a new process, so that earlier ones do not
affect its time. Each result is appended to the output file, and results that are already in the file are skipped.
"""

import argparse
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from results_file import add_to_csv, read_csv

from afjax.config.training import MeshConfig
from afjax.distributed.sharding import make_mesh
from afjax.tpu.chips import get_topology, parse_topology
from afjax.tpu.plan import MethodCase, plan_method
from afjax.tpu.program import total_by_kind
from afjax.tpu.report import train_step
from afjax.tpu.steps import trained_bytes

CASE = ("topology", "trunk", "method", "layers", "slots", "rows", "length")
COLUMNS = CASE + tuple(
    "compile_s,tflop,minimum_tflop,ratio,matmul_ratio,memory_gb,moved_gb,all_reduce_mb,"
    "gradients_mb,step_ms,bound,compute_ms,hbm_ms,interconnect_ms".split(",")
)


def measure(
    topology_name: str, trunk: str, method: str, layers: str, slots: str, rows: str, length: str
) -> dict[str, object]:
    """Compiles a training step, and computes its row of the table."""
    topology = parse_topology(topology_name)
    mesh = make_mesh(MeshConfig(), get_topology(topology).devices)
    name, _, number = method.partition("-")
    plan = plan_method(
        MethodCase(
            trunk=trunk,
            method=name,
            num_adapters=int(number or 1),
            num_tasks=int(number or 8),
            batch_size=int(rows) * mesh.size,
            max_length=int(length),
            unrolled=layers != "scanned",
        )
    ).with_slots(int(slots))
    line: dict[str, object] = dict(zip(CASE, (topology_name, trunk, method, layers, slots, rows, length), strict=True))
    step = train_step(plan, mesh, topology)
    if step is None:
        return {**line, "bound": "does not fit"}
    work, at_best = step.program.work, step.roofline
    return {
        **line,
        "compile_s": f"{step.compile_s:.1f}",
        "tflop": f"{work.flops / 1e12:.3f}",
        "minimum_tflop": f"{step.minimum_flops / 1e12:.3f}",
        "ratio": f"{work.flops / step.minimum_flops:.3f}",
        "matmul_ratio": f"{work.matmul_flops / step.minimum_flops:.3f}",
        "memory_gb": f"{step.program.memory.peak / 1e9:.2f}",
        "moved_gb": f"{work.hbm_bytes / 1e9:.1f}",
        "all_reduce_mb": f"{total_by_kind(work.collectives).get('all-reduce', 0) / 1e6:.1f}",
        "gradients_mb": f"{trained_bytes(plan, mesh) / 1e6:.1f}",
        "step_ms": f"{at_best.step_s * 1e3:.1f}",
        "bound": at_best.bound,
        "compute_ms": f"{at_best.compute_s * 1e3:.1f}",
        "hbm_ms": f"{at_best.hbm_s * 1e3:.1f}",
        "interconnect_ms": f"{at_best.interconnect_s * 1e3:.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default="v5e:2x4,v5p:2x2x1")
    parser.add_argument("--trunks", default="bert-base,bert-large")
    parser.add_argument("--methods", default="full,pfeiffer,houlsby,pals-8,fusion-16,fusion-64")
    parser.add_argument("--layers", default="scanned", help="scanned (a loop), unrolled (straight-line code), or both")
    parser.add_argument("--slots", default="1", help="numbers of runs per step (1)")
    parser.add_argument("--rows", type=int, default=32, help="rows per chip and run (32)")
    parser.add_argument("--length", type=int, default=128, help="tokens per row (128)")
    parser.add_argument("--output", required=True, type=Path)
    arguments = parser.parse_args()
    done = [tuple(line[name] for name in CASE) for line in read_csv(arguments.output, COLUMNS)]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh:
        lists = (arguments.topologies, arguments.trunks, arguments.methods, arguments.layers, arguments.slots)
        choices = [text.split(",") for text in lists] + [[str(arguments.rows)], [str(arguments.length)]]
        for case in itertools.product(*choices):
            if case in done:
                continue
            line = fresh.submit(measure, *case).result()
            add_to_csv(arguments.output, COLUMNS, line)
            print(", ".join(f"{key} {value}" for key, value in line.items()), flush=True)


if __name__ == "__main__":
    main()
