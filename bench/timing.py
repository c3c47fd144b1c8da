"""Times programs that alternate in one process."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

WARM_UP = 2


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def median_seconds(programs: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
    """Times the programs alternately, after a warm-up, and returns the median seconds of each."""
    rounds = [[timed(run) for run in programs] for _ in range(WARM_UP + repeats)]
    return [statistics.median(seconds) for seconds in zip(*rounds[WARM_UP:], strict=True)]
