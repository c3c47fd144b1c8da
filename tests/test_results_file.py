"""Studies skip runs that are already in their results file, and refuse lines from another study."""

import argparse
import dataclasses
import functools
import json
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

import afjax
from afjax.errors import UserError

# Worker processes import results_file by name, so its folder must be on the path.
sys.path.append(str(Path(__file__).parents[1] / "bench"))
import results_file
from results_file import (
    FORMER_INPUTS,
    add_missing,
    add_missing_in_groups,
    add_missing_in_processes,
    add_selection,
    add_to_csv,
    read_csv,
    read_results,
    run_parts,
    selected_runs,
    sources_to_repeat,
)


@dataclasses.dataclass(frozen=True)
class Run:
    task: str
    seed: int


RUNS = [Run("rte", 0), Run("rte", 1), Run("cb", 0)]


def inputs_of(run: Run) -> dict[str, Any]:
    return {"trunk": "aa", "rows": f"rows of {run.task}", "lengths": (32, 64)}


def measure(run: Run) -> dict[str, Any]:
    return {"score": run.seed / 2, "inputs": inputs_of(run)}


def test_csv_has_one_header(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    columns = ("method", "ms", "gb")
    assert read_csv(path, columns) == []
    add_to_csv(path, columns, {"method": "full", "ms": "2.5"})
    add_to_csv(path, columns, {"method": "head", "ms": "0.5", "gb": "1"})
    assert path.read_bytes() == b"method,ms,gb\r\nfull,2.5,\r\nhead,0.5,1\r\n"
    assert read_csv(path, columns)[1] == {"method": "head", "ms": "0.5", "gb": "1"}
    with pytest.raises(UserError) as refused:
        read_csv(path, ("method", "rows", "ms", "gb"))
    assert has_facts(str(refused.value), str(path), "method, ms, gb", "method, rows, ms, gb")


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


def test_a_group_is_measured_without_its_finished_runs(tmp_path: Path) -> None:
    path, measured = tmp_path / "study.jsonl", []

    def counted(group: Sequence[Run]) -> list[dict[str, Any]]:
        measured.append(list(group))
        return [measure(run) for run in group]

    results: dict[Run, dict[str, Any]] = {}
    add_missing(path, [RUNS[0], RUNS[2]], results, measure)
    add_missing_in_groups(path, [RUNS[:2], RUNS[2:]], results, counted)
    assert measured == [[RUNS[1]]]
    assert list(read_results(path, Run, inputs_of)) == [RUNS[0], RUNS[2], RUNS[1]]
    add_missing_in_groups(path, [RUNS[:2], RUNS[2:]], results, counted, repeated=RUNS[:1])
    assert measured == [[RUNS[1]], [RUNS[0]]]
    assert read_results(path, Run, inputs_of) == results


@pytest.mark.parametrize(
    ("name", "value"), [("trunk", "bb"), ("rows", "rows of cb"), ("lengths", [32]), ("more", 1), ("trunk", None)]
)
def test_line_from_another_study_is_refused(name: str, value: Any, tmp_path: Path) -> None:
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


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Returns a function that runs a study with run_parts and returns the lines of its results file."""

    def resume(*, trunk: str, train_rows: int) -> list[dict[str, Any]]:
        path = tmp_path / "study.jsonl"
        monkeypatch.setattr(sys, "argv", ["study.py", f"--results={path}", f"--trunk={trunk}"])
        # The trunks are named after their digests.
        monkeypatch.setattr(afjax, "load_trunk", lambda name: types.SimpleNamespace(sha256=name))
        # The compilation cache is the same for all tests of the process.
        monkeypatch.setattr(results_file, "jax", types.SimpleNamespace(config=types.SimpleNamespace(update=print)))

        def task_of(run: Run, data: str) -> afjax.TaskConfig:
            return afjax.TaskConfig(name=run.task, source="builtin:entail", train_rows=train_rows)

        run_parts("", Run, lambda _: (), [lambda _: RUNS], lambda run, *_: {"score": run.seed / 2}, task_of)
        return list(map(json.loads, path.read_text().splitlines()))

    return resume


def test_study_in_parts_records_its_inputs(study: Callable[..., list[dict[str, Any]]]) -> None:
    lines = study(trunk="aa", train_rows=8)
    assert [line["inputs"]["trunk"] for line in lines] == ["aa"] * 3
    assert study(trunk="aa", train_rows=8) == lines


@pytest.mark.parametrize(("trunk", "train_rows", "name"), [("bb", 8, "trunk"), ("aa", 16, "rows")])
def test_study_in_parts_refuses_other_inputs(
    trunk: str, train_rows: int, name: str, study: Callable[..., list[dict[str, Any]]]
) -> None:
    study(trunk="aa", train_rows=8)
    with pytest.raises(UserError, match=name):
        study(trunk=trunk, train_rows=train_rows)


def test_lines_without_inputs_are_from_minilm(study: Callable[..., list[dict[str, Any]]], tmp_path: Path) -> None:
    add_missing(tmp_path / "study.jsonl", RUNS[:1], {}, lambda _: {"score": 0.5})
    minilm = FORMER_INPUTS["trunk"]
    with pytest.raises(UserError) as refused:
        study(trunk="aa", train_rows=8)
    assert has_facts(str(refused.value), repr(minilm), "'aa'")
    assert [line.get("inputs", {}).get("trunk") for line in study(trunk=minilm, train_rows=8)] == [None, minilm, minilm]


def sources(run: Run) -> list[Run]:
    """Returns the runs whose files a run reads. A run with seed 1 reads the file from the task's seed 0 run."""
    return [Run(run.task, 0)] if run.seed else []


def open_study(folder: Path, failing: Run | None) -> Callable[[Run], dict[str, Any]]:
    """Returns a function that measures a run by reading its sources' files and storing its own."""

    def measure_and_store(run: Run) -> dict[str, Any]:
        if run == failing:
            raise UserError("no rows")
        text = "".join(stored(folder, source).read_text() for source in sources(run))
        stored(folder, run).write_text(f"{text}{run.task}-{run.seed} ")
        return measure(run)

    return measure_and_store


def stored(folder: Path, run: Run) -> Path:
    return folder / f"{run.task}-{run.seed}"


def add_all(folder: Path, num_processes: int, failing: Run | None = None) -> dict[Run, dict[str, Any]]:
    path, runs, open_measure = (
        folder / "study.jsonl",
        [*RUNS, Run("cb", 1)],
        functools.partial(open_study, folder, failing),
    )
    results = read_results(path, Run, inputs_of)
    repeated = sources_to_repeat(runs, results, sources, lambda run: stored(folder, run).exists())
    if num_processes == 1:
        add_missing(path, runs, results, open_measure(), repeated=repeated)
    else:
        add_missing_in_processes(
            path, runs, results, open_measure, sources=sources, num_processes=num_processes, repeated=repeated
        )
    return results


@pytest.mark.parametrize("num_processes", [1, 2])
def test_run_starts_when_its_sources_are_stored(num_processes: int, tmp_path: Path) -> None:
    results = add_all(tmp_path, num_processes)
    assert set(results) == {*RUNS, Run("cb", 1)}
    assert read_results(tmp_path / "study.jsonl", Run, inputs_of) == results
    assert stored(tmp_path, Run("cb", 1)).read_text() == "cb-0 cb-1 "


@pytest.mark.parametrize("num_processes", [1, 2])
def test_lost_source_is_stored_again_and_its_line_does_not_change(num_processes: int, tmp_path: Path) -> None:
    add_all(tmp_path, num_processes)
    path = tmp_path / "study.jsonl"
    kept = [line for line in path.read_text().splitlines(keepends=True) if '"cb", "seed": 1' not in line]
    path.write_text("".join(kept))
    for run in RUNS:
        stored(tmp_path, run).unlink()
    assert Run("cb", 1) in add_all(tmp_path, num_processes)
    assert path.read_text().splitlines(keepends=True)[:3] == kept
    assert len(path.read_text().splitlines()) == 4
    # Both rte runs have results, so their files are not needed.
    assert [stored(tmp_path, run).exists() for run in RUNS] == [False, False, True]


def test_sources_of_lost_sources_are_repeated() -> None:
    chain = [Run("rte", seed) for seed in range(4)]

    def repeated(finished: int, kept: tuple[Run, ...]) -> set[Run]:
        before = {run: chain[max(0, run.seed - 1) : run.seed] for run in chain}
        return sources_to_repeat(chain, chain[:finished], before.__getitem__, kept.__contains__)

    assert repeated(3, ()) == set(chain[:3])
    assert repeated(3, (chain[1],)) == {chain[2]}
    assert repeated(4, ()) == repeated(0, ()) == set()


def test_failed_run_stops_only_the_runs_that_read_its_files(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        add_all(tmp_path, num_processes=2, failing=Run("rte", 0))
    (error,) = failed.value.exceptions
    assert isinstance(error, UserError)
    assert repr(Run("rte", 0)) in error.__notes__[-1]
    assert set(read_results(tmp_path / "study.jsonl", Run)) == {Run("cb", 0), Run("cb", 1)}


def test_flags_select_runs(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_selection(parser, task=("rte", "cb"), seed=(0, 1))

    def selected(*flags: str) -> list[Run]:
        return selected_runs(parser, RUNS, parser.parse_args(flags))

    assert selected() == RUNS
    assert selected("--tasks=rte") == RUNS[:2]
    assert selected("--tasks=rte,cb", "--seeds=0") == [RUNS[0], RUNS[2]]
    with pytest.raises(SystemExit):
        selected("--tasks=cb", "--seeds=1")
    assert has_facts(capsys.readouterr().err, "--tasks=cb", "--seeds=1")
    with pytest.raises(SystemExit):
        selected("--tasks=rte,sst2")
    assert has_facts(capsys.readouterr().err.splitlines()[-1], "--tasks", "sst2", "rte, cb")
