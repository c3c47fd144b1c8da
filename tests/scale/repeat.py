"""Runs tests many times, to find tests that fail occasionally.

``--busy_loops`` keeps cores busy during the tests. For example::

    python tests/scale/repeat.py --results=/tmp/results.jsonl --times=200 --busy_loops=2 -- \\
        "tests/scale/test_hosts.py::test_hosts_exit_before_training_if_they_differ_or_one_fails[given2-expected2]"

Each run appends one JSON line to the results file. The line has the run's number, the tests, the number of busy loops,
pytest's exit code, the seconds and, if the run failed, the end of pytest's output. If a run takes longer than
``--timeout``, pytest's exit code is ``null``. Running the same command again resumes, because ``--times`` includes the
runs in the file. The script's exit code is 1 if any run failed.
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
# Number of characters of pytest's output that are recorded for a failed run.
TAIL = 20_000


@contextlib.contextmanager
def busy_loops(number: int) -> Iterator[None]:
    """Keeps ``number`` cores busy during the block.

    If this process is killed, the loops end too.
    """
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(number)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_once(tests: list[str], timeout: float) -> dict[str, Any]:
    """Runs the tests once.

    Returns:
      A dictionary with the exit code and the seconds. If the tests failed, it also has the end of the output.
    """
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
    # Start a new session, so that all processes of the tests can be killed after a timeout.
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
    outcome = {"code": code, "seconds": round(time.monotonic() - begin, 1)}
    return outcome if code == 0 else {**outcome, "log": output[-TAIL:]}


def earlier_runs(results: Path) -> list[dict[str, Any]]:
    """Returns the runs in a results file.

    If the script was killed, the last line can be incomplete. An incomplete line is ignored.
    """
    lines = results.read_text().splitlines(keepends=True) if results.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="output file, one JSON line per run")
    parser.add_argument("--times", type=int, default=20, help="total number of runs, including the runs in the file")
    parser.add_argument("--busy_loops", type=int, default=0, help="number of cores to keep busy during the tests")
    parser.add_argument("--timeout", type=float, default=3600, help="seconds after which a run is killed")
    parser.add_argument("--nice", type=int, default=0, help="added to the niceness of tests and busy loops")
    parser.add_argument("tests", nargs="+", help="arguments for pytest")
    arguments = parser.parse_args()
    settings = {"tests": arguments.tests, "busy_loops": arguments.busy_loops}
    runs = earlier_runs(arguments.results)
    if any({name: run[name] for name in settings} != settings for run in runs):
        parser.error(f"{arguments.results} contains runs with other tests or --busy_loops. Give another --results.")
    os.nice(arguments.nice)
    arguments.results.parent.mkdir(parents=True, exist_ok=True)
    arguments.results.write_text("".join(json.dumps(run) + "\n" for run in runs))
    # Without a handler, SIGTERM would end this process before it has killed the tests.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with busy_loops(arguments.busy_loops):
        for number in range(len(runs) + 1, arguments.times + 1):
            run = {"run": number, **settings, **run_once(arguments.tests, arguments.timeout)}
            runs.append(run)
            with arguments.results.open("a") as file:
                file.write(json.dumps(run) + "\n")
            print(f"{number}: {'passed' if run['code'] == 0 else 'FAILED'} in {run['seconds']} s", flush=True)
    failed = [run["run"] for run in runs if run["code"] != 0]
    print(f"{len(runs)} runs, {len(failed)} failed{f' ({failed})' if failed else ''}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
