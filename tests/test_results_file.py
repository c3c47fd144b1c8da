"""Results files of studies: finished runs are skipped, and lines of another study are refused."""

import dataclasses
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from afjax.errors import UserError

MODULE = runpy.run_path(str(Path(__file__).parents[1] / "bench" / "results_file.py"))
add_missing, read_results = MODULE["add_missing"], MODULE["read_results"]


@dataclasses.dataclass(frozen=True)
class Run:
    task: str
    seed: int


RUNS = [Run("rte", 0), Run("rte", 1), Run("cb", 0)]


def inputs_of(run: Run) -> dict[str, Any]:
    return {"trunk": "aa", "rows": f"rows of {run.task}", "lengths": (32, 64)}


def measure(run: Run) -> dict[str, Any]:
    return {"score": run.seed / 2, "inputs": inputs_of(run)}


def test_missing_runs_are_measured_once(tmp_path: Path) -> None:
    path, measured = tmp_path / "results" / "study.jsonl", []

    def counted(run: Run) -> dict[str, Any]:
        measured.append(run)
        return measure(run)

    results = read_results(path, Run)
    assert results == {}
    add_missing(path, RUNS[:2], results, counted)
    again = read_results(path, Run, inputs_of)
    assert list(again) == RUNS[:2]
    add_missing(path, RUNS, again, counted)
    assert measured == RUNS
    assert read_results(path, Run, inputs_of) == again
    assert [line["score"] for line in again.values()] == [0.0, 0.5, 0.0]


def test_a_finished_run_is_kept_if_a_later_one_fails(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"

    def fails_for_cb(run: Run) -> dict[str, Any]:
        if run.task == "cb":
            raise UserError("no rows")
        return measure(run)

    with pytest.raises(UserError, match="no rows"):
        add_missing(path, RUNS, {}, fails_for_cb)
    assert list(read_results(path, Run)) == RUNS[:2]


@pytest.mark.parametrize(
    ("name", "value"), [("trunk", "bb"), ("rows", "rows of cb"), ("lengths", [32]), ("more", 1), ("trunk", None)]
)
def test_line_of_another_study_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    add_missing(path, RUNS[:2], {}, measure)
    first, second = map(json.loads, path.read_text().splitlines())
    second["inputs"][name] = value
    if value is None:
        del second["inputs"][name]
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n")
    with pytest.raises(UserError) as refused:
        read_results(path, Run, inputs_of)
    assert all(part in str(refused.value) for part in ("line 2", name, repr(value)))
    assert len(read_results(path, Run)) == 2


def test_run_that_is_not_in_the_study_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    add_missing(path, RUNS, {}, measure)
    assert list(read_results(path, Run, inputs_of, RUNS)) == RUNS
    with pytest.raises(UserError, match="line 3") as refused:
        read_results(path, Run, inputs_of, RUNS[:2])
    assert "cb" in str(refused.value)


@pytest.mark.parametrize("line", ["{", "[]", '{"task": "rte"}', '{"task": "rte", "seed": 0}'])
def test_damaged_and_repeated_lines_are_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "study.jsonl"
    path.write_text(f'{{"task": "rte", "seed": 0}}\n{line}\n')
    with pytest.raises(UserError, match="line 2"):
        read_results(path, Run)
