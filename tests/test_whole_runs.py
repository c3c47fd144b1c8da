"""Entire runs are timed with the cache that their measurement names, also when a study is resumed."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from whole_runs import Machine, Measurement, measurements, table


class FakeMachine(Machine):
    """Records each process and whether the cache contains its group, instead of starting it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cached, self.started = folder, set(), list[tuple[str, bool]]()

    def _afjax(self, wanted: Measurement, output: Path) -> tuple[Any, float]:
        # Each task of the short runs has its own programs, and the study's runs share theirs.
        return self._start(wanted, output, wanted.task if wanted.part == "short" else wanted.part)

    def _sweep(self, wanted: Measurement, output: Path, **_: Any) -> tuple[Any, float]:
        return self._start(wanted, output, wanted.part + "slots" * wanted.way.startswith("slots"))

    def _adapters(self, wanted: Measurement, output: Path) -> tuple[Any, float]:
        output.mkdir(parents=True)
        return 0.5, 1.0

    def _start(self, wanted: Measurement, output: Path, programs: str) -> tuple[Any, float]:
        output.mkdir(parents=True)
        cache = self.folder / "cache" / programs
        self.started.append((wanted.way, cache.exists()))
        cache.mkdir(parents=True, exist_ok=True)
        return 0.5, 1.0


@pytest.mark.parametrize("part", ["short", "study", "accelerator"])
def test_resumed_measurements_have_the_cache_that_they_name(part: str, tmp_path: Path) -> None:
    listed = [each for each in measurements() if each.part == part]
    for start in range(len(listed)):
        shutil.rmtree(tmp_path)
        machine = FakeMachine(tmp_path)
        for wanted in listed[start:]:
            machine.measure(wanted)
            if wanted.way != "adapters":
                assert machine.started[-1] == (wanted.way, "cold" not in wanted.way)


def test_study_after_short_runs_has_a_warm_cache(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    for wanted in (Measurement("short", "cold", "cb"), Measurement("study", "sweep")):
        machine.measure(wanted)
    # The untimed run fills the cache.
    assert machine.started == [("cold", False), ("sweep", False), ("sweep", True)]


@pytest.mark.parametrize(("ways", "tasks"), [(("cold", "warm"), []), (("cold", "warm", "adapters"), ["cb"])])
def test_table_skips_tasks_that_lack_a_measurement(ways: Sequence[str], tasks: list[str]) -> None:
    results = {Measurement("short", way, "cb", 1e-3): {"seconds": 2.0} for way in ways}
    results[Measurement("short", "cold", "mrpc", 1e-3)] = {"seconds": 3.0}
    _, _, *rows = table(results)
    assert [row.split(",")[0].strip("| ") for row in rows] == tasks
