"""Kills and resumes a job of two processes many times, and checks its result.

This is a script and not a test, because it takes minutes::

    python tests/scale/kills.py --trunk=FOLDER --folder=FOLDER --moments=20 --seed=0

At random moments, one or both processes get SIGTERM or SIGKILL. After SIGTERM, the newest checkpoint must be at the
last logged step. After SIGKILL, the newest complete checkpoint may be up to two checkpoint intervals older. In the end,
the resumed run's result must be bit-identical to the result of an uninterrupted run.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
from jobs import Job, checkpoint_steps, result

CHECKPOINT_EVERY = 10


def last_logged(workdir: Path) -> int:
    """Returns the last logged step, or 0.

    A line that is still being written is ignored.
    """
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    complete = [line for line in lines if line.endswith("}")]
    return max((json.loads(line)["step"] for line in complete), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trunk", required=True, type=Path)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    arguments = ["--runs=adapter:2,4,1", f"--steps={options.steps}", f"--checkpoint_every={CHECKPOINT_EVERY}"]
    folder, cache, name = options.folder, options.folder / "cache", "adapter-2x4x1"

    uninterrupted = Job(options.trunk, folder / "uninterrupted", arguments, processes=2, cache=cache)
    assert uninterrupted.wait(1200) == [0, 0], uninterrupted.output()
    expected = result(folder / "uninterrupted", name)

    draw, workdir = random.Random(options.seed), folder / "killed" / name
    done = moments = 0
    while moments < options.moments:
        job = Job(options.trunk, folder / "killed", arguments, processes=2, cache=cache)
        started = last_logged(workdir)
        while last_logged(workdir) <= started and all(process.exitcode is None for process in job.processes):
            time.sleep(0.02)
        time.sleep(draw.uniform(0.0, 3.0))
        sent = draw.choice([signal.SIGTERM, signal.SIGKILL])
        for process in draw.choice([job.processes, job.processes[:1], job.processes[1:]]):
            os.kill(process.pid, sent)
        begin = time.monotonic()
        codes = job.wait(120)
        seconds = time.monotonic() - begin
        if codes == [0, 0]:
            print("The run finished before it was killed.")
            done += 1
            break
        moments += 1
        logged, steps = last_logged(workdir), checkpoint_steps(workdir)
        newest = max(steps, default=0)
        print(
            f"{moments}: {sent.name}, exit codes {codes} after {seconds:.0f} s, step {logged}, checkpoints {steps}",
            flush=True,
        )
        if sent == signal.SIGTERM:
            assert codes == [75, 75], job.output()
            assert newest == logged, "SIGTERM lost a step"
        else:
            assert seconds < 60, "a process ran for more than a minute after the other was killed"
            # The last checkpoint may be incomplete. The newest complete checkpoint is then one interval older.
            assert newest >= logged - logged % CHECKPOINT_EVERY - CHECKPOINT_EVERY, (
                "SIGKILL lost more than the latest checkpoint"
            )
    if not done:
        job = Job(options.trunk, folder / "killed", arguments, processes=2, cache=cache)
        assert job.wait(1200) == [0, 0], job.output()
    resumed = result(folder / "killed", name)
    assert all(np.array_equal(expected[path], resumed[path]) for path in expected), "the results differ"
    print(f"Killed {moments} times. The result is bit-identical to the result of the uninterrupted run.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
