"""Runs tests again and again, also on a busy machine, to find those that fail now and then. A script::

    python tests/scale/repeat.py --results=/tmp/results.jsonl --times=200 --busy_loops=2 -- \\
        "tests/scale/test_hosts.py::test_hosts_agree_before_anything_is_spent[given2-expected2]"

Each run appends one line to the results file: its number, the tests, the busy loops, the exit code of pytest (or
``null`` if the run took longer than ``--timeout``), the seconds it took, and what pytest printed last if it failed. The
same command resumes: it counts the runs that the file has, and makes those that are missing. It ends with 1 if a run
failed.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1_000_000))"
# Characters of what pytest printed that a failed run's line keeps.
TAIL = 20_000


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Keeps so many processors busy during the block. The loops end when this process does, however it ends."""
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_once(tests: list[str], timeout: float) -> dict[str, Any]:
    """Runs the tests once: exit code, seconds, and the end of the log if they failed."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
    # A group of its own, so that a run that takes too long ends with all processes that its tests started.
    process = subprocess.Popen(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    code: int | None = None
    try:
        output, _ = process.communicate(timeout=timeout)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    found = {"code": code, "seconds": round(time.monotonic() - begin, 1)}
    return found if code == 0 else {**found, "log": output[-TAIL:]}


def earlier_runs(results: Path) -> list[dict[str, Any]]:
    """The runs that a results file has, without a line that a killed script left unfinished."""
    lines = results.read_text().splitlines(keepends=True) if results.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="file with one JSON line per run")
    parser.add_argument("--times", type=int, default=20, help="number of runs, those of the file included")
    parser.add_argument("--busy_loops", type=int, default=0, help="processes that compute while the tests run")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds after which a run is killed")
    parser.add_argument("--nice", type=int, default=0, help="added to the niceness of loops and tests")
    parser.add_argument("tests", nargs="+", help="what pytest is to run")
    arguments = parser.parse_args()
    what = {"tests": arguments.tests, "busy_loops": arguments.busy_loops}
    runs = earlier_runs(arguments.results)
    if any({name: run[name] for name in what} != what for run in runs):
        parser.error(f"{arguments.results} has runs of other tests or with other busy loops; give another --results.")
    os.nice(arguments.nice)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text("".join(json.dumps(run) + "\n" for run in runs))
    # Also at SIGTERM the busy loops and the tests are ended.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with busy_loops(arguments.busy_loops):
        for number in range(len(runs) + 1, arguments.times + 1):
            run = {"run": number, **what, **run_once(arguments.tests, arguments.timeout)}
            runs.append(run)
            with arguments.results.open("a") as file:
                file.write(json.dumps(run) + "\n")
            print(f"{number}: {'passed' if run['code'] == 0 else 'FAILED'} in {run['seconds']} s", flush=True)
    failed = [run["run"] for run in runs if run["code"] != 0]
    print(f"{len(runs)} runs, {len(failed)} failed{f' ({failed})' if failed else ''}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
