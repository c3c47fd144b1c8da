"""The benchmark scripts use names that exist. They run for hours before they reach some of these names."""

import ast
from pathlib import Path

import pytest

import afjax

SCRIPTS = sorted((Path(__file__).parents[1] / "bench").glob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_script_uses_public_names_that_exist(path: Path) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "afjax"
    }
    assert sorted(used - {*afjax.__all__, "__version__"}) == []


def test_scripts_were_found() -> None:
    assert {"fusion_study", "vs_adapterhub"} <= {path.stem for path in SCRIPTS}
