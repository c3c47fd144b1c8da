"""CITATION.cff, the workflow and the commands in CONTRIBUTING.md match the project.

Links are checked in ``tests/test_readme.py``.
"""

import os
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import setuptools
import yaml

import afjax

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"


def read_yaml(path: Path) -> Any:
    """Parses a YAML file without converting values, so that ``on`` and ``3.10`` stay strings."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Returns the arguments that setup.py passes to ``setup``."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    return given


def test_citation_describes_the_software(settings: dict[str, Any]) -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["cff-version"] == "1.2.0"
    assert citation["version"] == settings["version"] == afjax.__version__
    assert citation["license"] == settings["license"]
    assert all(author.get("name") or author.get("family-names") for author in citation["authors"])


def test_citation_has_the_three_papers_of_the_readme() -> None:
    papers = read_yaml(ROOT / "CITATION.cff")["references"]
    assert len(papers) == 3
    readme = " ".join(page("README.md").split())
    for paper in papers:
        assert {"type", "title", "authors", "conference", "year", "start", "end", "url"} <= paper.keys()
        assert paper["title"] in readme
        assert re.search(rf"{re.escape(paper['title'])}\.\* [A-Z]+ {paper['year']}\.", readme), paper["title"]
        assert paper["authors"][0]["family-names"] in readme
        assert int(paper["start"]) < int(paper["end"])


def workflow_jobs() -> dict[str, dict[str, Any]]:
    return read_yaml(WORKFLOW)["jobs"]


def scripts(job: dict[str, Any]) -> list[str]:
    """Returns a job's commands. Commands that use its matrix are repeated for each value."""
    commands = [step["run"] for step in job["steps"] if "run" in step]
    for key, values in job.get("strategy", {}).get("matrix", {}).items():
        used = f"${{{{ matrix.{key} }}}}"
        commands = [
            command.replace(used, value) for command in commands for value in (values if used in command else [""])
        ]
    return commands


def test_workflow_runs_scripts_that_exist() -> None:
    commands = [command for job in workflow_jobs().values() for command in scripts(job)]
    checks = ("lint", "types", "docs", "wheel", "test")
    assert sorted(commands) == sorted(f"./launch/{name}.sh" for name in checks)
    for command in commands:
        assert os.access(ROOT / command, os.X_OK), command


def test_workflow_tests_the_supported_versions_of_python(settings: dict[str, Any]) -> None:
    supported = [version for line in settings["classifiers"] if (version := line.rpartition(":: ")[2])[:2] == "3."]
    assert workflow_jobs()["tests"]["strategy"]["matrix"]["python"] == supported
    assert settings["python_requires"] == f">={supported[0]}"


def test_workflow_has_few_permissions_and_pinned_actions() -> None:
    workflow = read_yaml(WORKFLOW)
    assert {"push", "pull_request"} <= workflow["on"].keys()
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow["concurrency"]["cancel-in-progress"] == "true"
    for job in workflow["jobs"].values():
        assert "permissions" not in job
        for action in (step["uses"] for step in job["steps"] if "uses" in step):
            assert re.fullmatch(r"actions/[\w-]+@v\d+", action), action


def test_test_script_runs_the_other_checks() -> None:
    commands = page("launch/test.sh")
    for name in ("lint", "types"):
        assert f"./launch/{name}.sh" in commands


def test_commands_of_contributing_exist() -> None:
    named = re.findall(r"`(\./launch/\w+\.sh|python tests/[\w/]+\.py)", page("CONTRIBUTING.md"))
    assert len(named) >= 6
    for command in named:
        assert (ROOT / command.removeprefix("python ")).exists(), command


def test_contributing_is_short() -> None:
    assert len(page("CONTRIBUTING.md").splitlines()) <= 90
