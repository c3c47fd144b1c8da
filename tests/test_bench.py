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
from fusion_study import GTE_SMALL, Run
from results_file import read_results
from routed_batches import random_rows
from study_tables import DOCS, PAGES, comparisons_table, interval, subtract, updated

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


def test_documentation_has_the_tables_of_the_recorded_runs() -> None:
    results = read_results(GTE_SMALL.results, Run)
    outdated = [page for page in PAGES if updated(text := (DOCS / page).read_text(), results) != text]
    assert outdated == [], "run bench/study_tables.py"


def test_comparison_uses_only_pairs_of_runs_with_the_same_task_and_seed() -> None:
    scores = {
        ("pfeiffer", "mnli"): (0.50, 0.52, 0.54),
        ("head", "mnli"): (0.40, 0.44, 0.42),
        ("pfeiffer", "cb"): (39 / 56, 40 / 56),
        ("head", "cb"): (38 / 56, 33 / 56),
        ("pfeiffer", "qqp"): (0.80,),
    }
    results = {
        Run(method, task, seed): {"score": score}
        for (method, task), found in scores.items()
        for seed, score in enumerate(found)
    }
    found = subtract(results, "pfeiffer", "head")
    assert {
        task: {seed: round(points, 6) for seed, points in by_seed.items()}
        for task, by_seed in found.differences.items()
    } == {"mnli": {0: 10, 1: 8, 2: 12}, "cb": {0: round(100 / 56, 6), 1: 12.5}}
    # With seed 0, cb differs by one dev row.
    assert (found.tasks(1), found.tasks(-1)) == (["mnli"], [])
    assert list(comparisons_table(results))[2:] == [
        "| `pfeiffer` - `head` | 2 | +5.9 | +10.2 | +12.0 (1 of 2) |  |  | mnli |  |"
    ]


def test_interval_is_the_t_interval_of_the_mean() -> None:
    # The 97.5% quantile of Student's t with two degrees of freedom is 4.303.
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 4.303 / math.sqrt(3), 2 + 4.303 / math.sqrt(3)), abs=1e-3)
