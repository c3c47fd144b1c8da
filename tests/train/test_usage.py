"""A run's time is summed over its starts, up to its last checkpoint."""

from pathlib import Path

import pytest
from etils import epath

from afjax.train import usage


def test_usage_is_summed_over_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 10.0, 25.0, 100.0, 104.0])
    monkeypatch.setattr(usage.time, "monotonic", lambda: next(clock))
    folder = epath.Path(tmp_path)
    first = usage.Usage(folder, 0)
    first.write(5)
    first.write(8)
    assert (usage.read_usage(folder)["seconds"], usage.read_usage(folder)["starts"]) == (25, 1)
    second = usage.Usage(folder, 8)
    second.write(8)  # The second start has not computed a step yet.
    second.write(9)
    found = usage.read_usage(folder)
    assert (found["step"], found["seconds"], found["starts"]) == (9, 29, 2)
    assert found["host_memory"] > 1e7


def test_unreadable_usage_is_empty(tmp_path: Path) -> None:
    assert usage.read_usage(epath.Path(tmp_path)) == {}
    (tmp_path / usage.USAGE).write_text("[")
    assert usage.read_usage(epath.Path(tmp_path)) == {}


def test_invalid_values_are_dropped(tmp_path: Path) -> None:
    (tmp_path / usage.USAGE).write_text('{"seconds": null, "starts": true, "step": -1, "x": 1}')
    assert usage.read_usage(epath.Path(tmp_path)) == {"x": 1}
