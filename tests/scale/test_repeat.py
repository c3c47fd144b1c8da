"""``repeat.py`` runs tests repeatedly, records the runs, and resumes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("repeat.py")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Writes a results file with one run and an incomplete line.

    The incomplete line is from a second run that was killed.
    """
    (tmp_path / "test_now_and_then.py").write_text(
        "import pathlib\n"
        "def test_it():\n"
        "    path = pathlib.Path(__file__).with_name('pass')\n"
        "    assert path.exists(), 'not this time'\n"
    )
    path = tmp_path / "results.jsonl"
    run = {"run": 1, "tests": [str(tmp_path)], "busy_loops": 1, "code": 0, "seconds": 0.1}
    path.write_text(json.dumps(run) + '\n{"run": 2, "tes')
    return path


def repeat(results: Path, times: int, busy_loops: int = 1) -> subprocess.CompletedProcess[str]:
    arguments = [f"--results={results}", f"--times={times}", f"--busy_loops={busy_loops}", "--", str(results.parent)]
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=300)


def test_runs_are_counted_and_resumed(results: Path) -> None:
    failed = repeat(results, times=2)
    assert failed.returncode == 1, failed.stderr
    assert failed.stdout.splitlines()[-1] == "2 runs, 1 failed ([2])."
    (results.parent / "pass").touch()
    repeat(results, times=3)
    runs = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(run["run"], run["code"]) for run in runs] == [(1, 0), (2, 1), (3, 0)]
    assert ["not this time" in run.get("log", "") for run in runs] == [False, True, False]
    # All three runs are recorded, so the tests are not run again.
    assert repeat(results, times=3).stdout.splitlines() == ["3 runs, 1 failed ([2])."]


def test_results_with_other_settings_are_refused(results: Path) -> None:
    before = results.read_text()
    assert repeat(results, times=2, busy_loops=0).returncode == 2
    assert results.read_text() == before
