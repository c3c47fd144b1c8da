"""Compares the speed and memory of afjax with `adapters` 1.3.0 or transformers.

    python bench/vs_adapterhub.py                        all cases, about twenty minutes on two cores
    python bench/vs_adapterhub.py --cases=adapter_train,fusion_eval --repeats=3
    python bench/vs_adapterhub.py --cases=modernbert_full_train,deberta_full_train

Both sides run on the CPU. The model is BERT-base, or the encoder in the case's name, with random weights. A batch has 8
rows of 128 tokens, each side has two threads, and training uses dropout. The dtype is float32, except in the
``*_bfloat16`` cases, where afjax's frozen trunk is in bfloat16 and PyTorch uses autocast. Each side runs in a separate
process. The two sides alternate step by step, so that other load on the machine affects both. Prints the results as a
Markdown table, and as JSON on the last line.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
REQUIREMENTS = ("torch==2.13.0", "adapters==1.3.0")
DEFAULT_VENV = Path("~/.cache/afjax/adapterhub").expanduser()


@dataclasses.dataclass(frozen=True)
class Side:
    """The step to run in one process. ``num_adapters`` only matters for fusion."""

    library: str
    method: str
    mode: str
    num_adapters: int
    dtype: str = "float32"
    trunk: str = "bert-base"


@dataclasses.dataclass(frozen=True)
class Case:
    """Two sides to compare, with bounds on median(first) / median(second)."""

    first: Side
    second: Side
    at_least: float = 0.0
    at_most: float = float("inf")

    def wanted(self) -> str:
        if self.at_least:
            return f"at least {self.at_least}"
        return f"at most {self.at_most}" if self.at_most < float("inf") else ""


def against_adapterhub(
    method: str, mode: str, num_adapters: int, *, at_least: float = 0.0, dtype: str = "float32"
) -> Case:
    first, second = (Side(library, method, mode, num_adapters, dtype) for library in ("adapters", "afjax"))
    return Case(first, second, at_least=at_least)


def against_transformers(trunk: str) -> Case:
    """Creates a case that compares full fine-tuning with transformers.

    It is for encoders without full support in `adapters`.
    """
    first, second = (Side(library, "full", "train", 1, trunk=trunk) for library in ("transformers", "afjax"))
    return Case(first, second)


CASES = {
    "fusion_train": against_adapterhub("fusion", "train", 16, at_least=5),
    "fusion_eval": against_adapterhub("fusion", "eval", 16, at_least=6),
    "adapter_train": against_adapterhub("adapter", "train", 1, at_least=1.3),
    "adapter_eval": against_adapterhub("adapter", "eval", 1, at_least=1.6),
    "full_train": against_adapterhub("full", "train", 1, at_least=1.1),
    "fusion_train_bfloat16": against_adapterhub("fusion", "train", 16, dtype="bfloat16"),
    "fusion_eval_bfloat16": against_adapterhub("fusion", "eval", 16, dtype="bfloat16"),
    "adapter_train_bfloat16": against_adapterhub("adapter", "train", 1, dtype="bfloat16"),
    "adapter_eval_bfloat16": against_adapterhub("adapter", "eval", 1, dtype="bfloat16"),
    "modernbert_full_train": against_transformers("modernbert-base"),
    "deberta_full_train": against_transformers("deberta-v3-base"),
    "fusion_growth": Case(Side("afjax", "fusion", "train", 64), Side("afjax", "fusion", "train", 4), at_most=1.6),
}


def main() -> None:
    flags = parse_flags()
    adapterhub_python = ready_environment(flags.venv)
    # This environment already contains the version of transformers that `adapters` requires.
    pythons = {"afjax": sys.executable, "adapters": str(adapterhub_python), "transformers": str(adapterhub_python)}
    results = []
    for name in flags.cases:
        print(f"{name} ...", file=sys.stderr, flush=True)
        results.append({"case": name, **compare(CASES[name], pythons, flags.repeats, flags.threads)})
    print(table(results))
    machine = {"processor": processor_name(), "cores": os.cpu_count(), "threads": flags.threads}
    print(json.dumps({"machine": machine, "results": results}))


def parse_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES), help="default: all")
    parser.add_argument("--repeats", type=int, default=7, help="measured steps per side and case")
    parser.add_argument("--threads", type=int, default=2, help="threads and cores per side")
    parser.add_argument(
        "--venv", type=Path, default=DEFAULT_VENV, help="virtual environment for adapters (created if missing)"
    )
    flags = parser.parse_args()
    if unknown := set(flags.cases) - set(CASES):
        parser.error(f"unknown --cases: {', '.join(sorted(unknown))} (has: {', '.join(CASES)}).")
    if flags.repeats < 1:
        parser.error(f"--repeats is {flags.repeats}; it must be at least 1.")
    return flags


def ready_environment(venv: Path, extra: tuple[str, ...] = ()) -> Path:
    """Prepares a virtual environment with `adapters`, and returns its Python.

    Creates the environment if it is missing, and installs missing packages, including ``extra``.
    """
    python = venv / "bin" / "python"
    if not python.exists():
        print(f"creating {venv} with {' and '.join(REQUIREMENTS)} ...", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    have = subprocess.run([python, "-m", "pip", "freeze"], check=True, capture_output=True, text=True).stdout
    installed = {line.split("+")[0].strip() for line in have.splitlines()}
    required = {*REQUIREMENTS, *extra}
    if not installed.issuperset(required):
        subprocess.run([python, "-m", "pip", "install", *sorted(required)], check=True, stdout=sys.stderr)
    return python


def compare(case: Case, pythons: dict[str, str], repeats: int, threads: int) -> dict[str, Any]:
    """Runs the steps of both sides alternately, and returns times and memory."""
    with contextlib.ExitStack() as stack:
        # worker() returns once its step is prepared, so the first side is idle while the second prepares.
        workers = [
            stack.enter_context(worker(side, pythons[side.library], threads)) for side in (case.first, case.second)
        ]
        seconds: tuple[list[float], list[float]] = ([], [])
        for _ in range(repeats):
            for process, times in zip(workers, seconds, strict=True):
                times.append(ask(process, "step")["seconds"])
        memory = [ask(process, "stop")["peak_memory_gb"] for process in workers]
    medians = [statistics.median(times) for times in seconds]
    ratio = medians[0] / medians[1]
    return {
        "first": dataclasses.asdict(case.first),
        "second": dataclasses.asdict(case.second),
        "median_s": medians,
        "seconds": seconds,
        "ratio": ratio,
        "wanted": case.wanted(),
        "met": case.at_least <= ratio <= case.at_most,
        "peak_memory_gb": memory,
        "steps": repeats,
    }


@contextlib.contextmanager
def worker(side: Side, python: str, threads: int) -> Iterator[subprocess.Popen[str]]:
    """Starts a worker, waits until it has prepared its step, and kills it at the end."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        # These settings let the threads of the idle side sleep. OMP_WAIT_POLICY=PASSIVE would also slow down
        # PyTorch's steps.
        "GOMP_SPINCOUNT": "30000",
        "KMP_BLOCKTIME": "0",
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
    }
    flags = [f"--{name}={value}" for name, value in dataclasses.asdict(side).items()]
    process = subprocess.Popen(
        [python, str(WORKER), *flags, f"--threads={threads}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        ready = ask(process, "")
        print(f"  {ready['version']}: ready after {ready['prepare_s']:.0f} s", file=sys.stderr, flush=True)
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str], request: str) -> dict[str, Any]:
    """Sends a request and returns the answer.

    With an empty request, it sends nothing and only waits for the worker's first line.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    if request:
        print(request, file=process.stdin, flush=True)
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"A worker ended with code {process.wait()}; its error is above.")
    return json.loads(line)


def table(results: list[dict[str, Any]]) -> str:
    rows = [
        "| case | first | second | first, median s | second, median s | ratio | wanted | first / second, GB | steps |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        cells = [
            result["case"],
            *(describe(result[side]) for side in ("first", "second")),
            *(f"{median:.3f}" for median in result["median_s"]),
            f"{result['ratio']:.2f}",
            f"{result['wanted']}: {'met' if result['met'] else 'not met'}" if result["wanted"] else "",
            " / ".join(f"{peak:.2f}" for peak in result["peak_memory_gb"]),
            str(result["steps"]),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def describe(side: dict[str, Any]) -> str:
    return f"{side['library']}, N={side['num_adapters']}" if side["method"] == "fusion" else side["library"]


def processor_name() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
