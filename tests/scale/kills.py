"""Kills a job of two processes again and again, and looks at what is left of it. A script, as it takes minutes::

    python tests/scale/kills.py --trunk=FOLDER --folder=FOLDER --moments=20 --seed=0

At a random moment each process, or one of them, gets SIGTERM or SIGKILL. After SIGTERM the newest checkpoint must be
that of the last step that was logged; after SIGKILL it may be as old as the checkpoints' interval and one that was
being written. The run that goes on must end with the bits of one that was never stopped.
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

EVERY = 10


def last_logged(workdir: Path) -> int:
    path = workdir / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    whole = [line for line in lines if line.endswith("}")]
    return max((json.loads(line)["step"] for line in whole), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trunk", required=True, type=Path)
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--moments", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    arguments = parser.parse_args()
    words = ["--runs=adapter:2,4,1", f"--steps={arguments.steps}", f"--checkpoint_every={EVERY}"]
    folder, cache, name = arguments.folder, arguments.folder / "cache", "adapter-2x4x1"

    whole = Job(arguments.trunk, folder / "whole", words, processes=2, cache=cache)
    assert whole.wait(1200) == [0, 0], whole.said()
    expected = result(folder / "whole", name)

    random_, workdir = random.Random(arguments.seed), folder / "killed" / name
    done = moments = 0
    while moments < arguments.moments:
        job = Job(arguments.trunk, folder / "killed", words, processes=2, cache=cache)
        started = last_logged(workdir)
        while last_logged(workdir) <= started and all(process.exitcode is None for process in job.processes):
            time.sleep(0.02)
        time.sleep(random_.uniform(0.0, 3.0))
        sign = random_.choice([signal.SIGTERM, signal.SIGKILL])
        for process in random_.choice([job.processes, job.processes[:1], job.processes[1:]]):
            os.kill(process.pid, sign)
        begin = time.monotonic()
        codes = job.wait(120)
        took = time.monotonic() - begin
        if codes == [0, 0]:
            print("the run came to its end; starting another")
            done += 1
            break
        moments += 1
        logged, steps = last_logged(workdir), checkpoint_steps(workdir)
        newest = max(steps, default=0)
        print(
            f"{moments}: {sign.name}, exit codes {codes} after {took:.0f} s, step {logged}, checkpoints {steps}",
            flush=True,
        )
        if sign == signal.SIGTERM:
            assert codes == [75, 75], job.said()
            assert newest == logged, "SIGTERM lost a step"
        else:
            assert took < 60, "a process outlived another by more than a minute"
            # The newest may have been in the making.
            assert newest >= logged - logged % EVERY - EVERY, "SIGKILL lost more than an interval"
    if not done:
        job = Job(arguments.trunk, folder / "killed", words, processes=2, cache=cache)
        assert job.wait(1200) == [0, 0], job.said()
    found = result(folder / "killed", name)
    assert all(np.array_equal(expected[path], found[path]) for path in expected), "other bits"
    print(f"{moments} moments; the same bits as the run that was never stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
