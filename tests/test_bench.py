"""The benchmark scripts use names that exist. They run for hours before they reach some of these names."""

import ast
import math
import sys
from pathlib import Path

import numpy as np
import pytest

import afjax

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from check_adapterhub import LIMIT, compare
from routed_batches import random_rows

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


@pytest.mark.parametrize(
    ("differences", "code"), [((0.0, LIMIT), 0), ((0.0, 2 * LIMIT), 1), ((0.0, math.nan), 1), ((math.nan, 0.0), 1)]
)
def test_check_fails_if_a_difference_is_large_or_nan(differences: tuple[float, ...], code: int) -> None:
    def direction(*_: object) -> list[tuple[str, str, float]]:
        return [("there", str(case), difference) for case, difference in enumerate(differences)]

    with pytest.raises(SystemExit) as ended:
        compare(("minilm",), Path(sys.executable), [direction])
    assert ended.value.code == code


def test_a_part_of_the_random_rows_has_the_same_tokens() -> None:
    whole, part = random_rows({0: 3, 1: 5, 2: 4}), random_rows({1: 5, 2: 4})
    assert np.array_equal(whole.tokens[3:], part.tokens)
    assert part.offsets.tolist() == [0, 5, 9]
    assert not np.array_equal(part.tokens[:4], part.tokens[5:])
