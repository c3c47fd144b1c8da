"""Runs afjax on bad inputs of all kinds and counts the outcomes.

    python tests/hostile/run_hostile.py
    python tests/hostile/run_hostile.py --only=trunk-config,manifest/predict --output=outcomes.jsonl
    PYTHONPATH=OTHER_CHECKOUT python tests/hostile/run_hostile.py --output=before.jsonl

Each case runs in a new folder, which is removed afterwards. Most bad inputs must be refused with exit code 2 and a
one-line message, or with a UserError in Python, without writing or changing files. Good inputs (good/...) must be
accepted. Cases that may use too much memory or hang run in a separate process with limits. The exit code is 1 if a
case fails.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

from hostile_base import prepare
from hostile_cases import all_cases, select
from hostile_harness import OUTCOMES, Outcome, run_case
from xla_flags import compile_quickly

# Limits for a case that runs in a separate process: address space in bytes, and seconds. JAX and its libraries reserve
# 2 GB of address space on import.
MAX_ADDRESSES = 8 * 2**30
SEPARATE_TIMEOUT = 60


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="ID,...", help="run only cases whose ids start with one of these")
    parser.add_argument("--output", type=Path, metavar="FILE.jsonl", help="output file, one JSON object per case")
    parser.add_argument("--list", action="store_true", help="print the ids and run nothing")
    parser.add_argument("--base", type=Path, help="base folder from an earlier run with --keep_base")
    parser.add_argument("--keep_base", type=Path, help="prepare the base folder here, and keep it")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    words = [word for word in arguments.only.split(",") if word]
    cases = select(words)
    if not cases:
        parser.error(f"no case has an id that starts with {arguments.only}")
    if arguments.list:
        print("\n".join(case.id for case in cases))
        return 0
    # These must be set before JAX and the Hugging Face libraries are imported.
    compile_quickly()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if arguments.one:
        return _run_one(arguments.one, arguments.base)
    with tempfile.TemporaryDirectory(prefix="afjax-hostile-") as folder:
        os.environ.setdefault("AFJAX_CACHE", str(Path(folder) / "cache"))
        base = arguments.base or arguments.keep_base or Path(folder) / "base"
        if not arguments.base:
            base.mkdir(parents=True)
            prepare(base)
        base = base.resolve()
        outcomes = []
        started = time.monotonic()
        with _writer(arguments.output) as write:
            for number, case in enumerate(cases, start=1):
                if case.separate:
                    outcome = _in_a_process(case.id, base)
                else:
                    place = Path(folder) / "case"
                    outcome = run_case(case, base, place)
                    shutil.rmtree(place)
                outcomes.append(outcome)
                write(outcome)
                if sys.stderr.isatty():
                    print(f"\r{number} of {len(cases)} {case.id[:80]:80}", end="", file=sys.stderr)
        print(f"{len(cases)} cases in {time.monotonic() - started:.0f} s\n", file=sys.stderr)
    print("\n".join(table(outcomes)))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """Formats outcome counts by family, then all failed cases."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for outcome in outcomes:
        counts[outcome.id.partition("/")[0]][outcome.outcome] += 1
    shown = [name for name in OUTCOMES if any(name in of_family for of_family in counts.values())]
    shown = ["cases", *reversed(shown)]
    counts["all"] = sum(counts.values(), collections.Counter())
    lines = [f"{'family':20}" + "".join(f"{name:>{len(name) + 2}}" for name in shown)]
    for family, of_family in counts.items():
        numbers = {**of_family, "cases": sum(of_family.values())}
        lines.append(f"{family:20}" + "".join(f"{numbers.get(name, 0) or '-':>{len(name) + 2}}" for name in shown))
    wrong = [outcome for outcome in outcomes if not outcome.passed]
    lines += ["", f"Failed: {len(wrong)}"]
    for outcome in sorted(wrong, key=lambda outcome: OUTCOMES.index(outcome.outcome)):
        lines.append(f"{outcome.outcome}: {outcome.id}: {' '.join(outcome.detail.split())[-240:]}")
    return lines


@contextlib.contextmanager
def _writer(path: Path | None) -> Iterator:
    if path is None:
        yield lambda outcome: None
        return
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:

        def write(outcome: Outcome) -> None:
            file.write(json.dumps({**dataclasses.asdict(outcome), "passed": outcome.passed}) + "\n")
            file.flush()

        yield write


def _in_a_process(name: str, base: Path) -> Outcome:
    """Runs a case in a new process with memory and time limits."""
    command = [sys.executable, __file__, f"--one={name}", f"--base={base}"]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SEPARATE_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(name, "timeout", "", SEPARATE_TIMEOUT)
    try:
        return Outcome(**json.loads(done.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        return Outcome(name, "killed", f"exit code {done.returncode}: {done.stderr[-400:]}", time.monotonic() - started)


def _run_one(name: str, base: Path) -> int:
    """Runs a case in the separate process, and prints the outcome as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESSES, MAX_ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    case = next(case for case in all_cases() if case.id == name)
    with tempfile.TemporaryDirectory(prefix="afjax-hostile-") as folder:
        outcome = run_case(case, base, Path(folder) / "case", timeout=SEPARATE_TIMEOUT - 15)
        print(json.dumps(dataclasses.asdict(outcome)), flush=True)
    # A normal exit would wait for threads that are still compiling.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
