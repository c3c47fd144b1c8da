"""The papers' figures are drawn from the studies' results files, as far as their runs are recorded."""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from fusion_study import Run
from study_figures import figures

Results = dict[Run, Mapping[str, Any]]


def line(score: float, **values: Any) -> dict[str, Any]:
    return {"score": score, "metric": "accuracy", "inputs": {"trunk": "aa"}, **values}


def activations(own: list[float]) -> dict[str, Any]:
    return {"num_rows": 277, "means": {"output": {"rte": own, "nli": [1 - weight for weight in own]}}}


def drawn(folder: Path, name: str, *, fusion: Results | None = None, houlsby: Results | None = None) -> list[list[str]]:
    """Draws all figures, and returns the lines of a figure's CSV file."""
    paths = dict(figures(fusion or {}, houlsby or {}, folder))
    assert [path.suffix for path in paths[name]] == [".png", ".svg", ".csv"]
    with paths[name][-1].open(newline="") as file:
        return list(csv.reader(file))


def numbers(cells: list[str]) -> list[float]:
    return [float(cell) for cell in cells]


def test_no_figure_is_drawn_without_its_runs(tmp_path: Path) -> None:
    results: Results = {Run("head", "rte", 0): line(0.5)}
    assert {tuple(paths) for _, paths in figures(results, results, tmp_path)} == {()}
    assert list(tmp_path.iterdir()) == []


def test_differences_are_between_runs_with_the_same_seed(tmp_path: Path) -> None:
    results: Results = {
        Run("full", "rte", 0): line(0.5),
        Run("pfeiffer", "rte", 0): line(0.6),
        # This seed has no full fine-tuning.
        Run("pfeiffer", "rte", 1): line(0.9),
        Run("fusion_nli", "rte", 0): line(0.75),
    }
    header, *rows = drawn(tmp_path, "differences", fusion=results)
    assert header[:3] == ["task", "method", "difference_to_full"]
    assert [row[:2] for row in rows] == [["rte", "pfeiffer"], ["rte", "fusion_nli"]]
    assert numbers([row[2] for row in rows]) == pytest.approx([10, 25])


def test_differences_are_over_the_seeds_that_both_have(tmp_path: Path) -> None:
    results: Results = {
        Run("full", "rte", 0): line(0.5),
        Run("full", "rte", 1): line(0.9),
        Run("pfeiffer", "rte", 0): line(0.6),
        Run("pfeiffer", "rte", 1): line(0.8),
        # This method lacks the seed with the better full fine-tuning.
        Run("fusion_nli", "rte", 0): line(0.75),
    }
    header, *rows = drawn(tmp_path, "differences", fusion=results)
    assert numbers([row[2] for row in rows]) == pytest.approx([0, 25])
    assert header[5:] == ["seeds", "seeds_of_full"]
    assert [row[5:] for row in rows] == [["0 1", "0 1"], ["0", "0"]]


def test_activations_are_means_over_seeds(tmp_path: Path) -> None:
    results: Results = {
        Run("fusion_nli", "rte", 0): line(0.5, activations=activations([0.2, 0.4])),
        Run("fusion_nli", "rte", 2): line(0.5, activations=activations([0.4, 0.8])),
        # An older line, from before activations were recorded.
        Run("fusion_nli", "cb", 0): line(0.5),
    }
    _, *rows = drawn(tmp_path, "activations", fusion=results)
    assert [(row[0], row[4], row[5]) for row in rows] == [
        ("rte", "0", "rte"),
        ("rte", "0", "nli"),
        ("rte", "1", "rte"),
        ("rte", "1", "nli"),
    ]
    assert numbers([row[-1] for row in rows]) == pytest.approx([0.3, 0.7, 0.6, 0.4])


def test_tradeoff_shows_sizes_and_top_layers(tmp_path: Path) -> None:
    scores = {"full": 0.9, "houlsby": 0.8, "houlsby:2": 0.7, "top_k:3": 0.6, "layernorm": 0.5}
    results: Results = {
        Run(method, task, 0): line(score, trained_parameters=1000 * (index + 1))
        for task in ("sst2", "mrpc")
        for index, (method, score) in enumerate(scores.items())
    }
    # Scales are not sizes.
    results[Run("scale:0.1", "sst2", 0)] = line(0.1, trained_parameters=5)
    _, *rows = drawn(tmp_path, "tradeoff", houlsby=results)
    found = {row[1]: (row[0], *numbers(row[2:5:2])) for row in rows}
    assert found == {
        "houlsby:2": ("houlsby adapters", 3000, pytest.approx(-20)),
        "houlsby:64": ("houlsby adapters", 2000, pytest.approx(-10)),
        "top-3": ("top layers", 4000, pytest.approx(-30)),
        "layernorm": ("LayerNorm only", 5000, pytest.approx(-40)),
    }


def test_scales_include_the_default(tmp_path: Path) -> None:
    results: Results = {
        Run("houlsby", "sst2", 0): line(0.9),
        Run("houlsby", "sst2", 1): line(0.8),
        Run("scale:1.0", "sst2", 0): line(0.5),
        Run("scale:1e-07", "sst2", 0): line(0.7),
    }
    _, *rows = drawn(tmp_path, "scales", houlsby=results)
    assert [numbers([row[2], row[3], row[5]]) for row in rows] == [
        [1e-7, pytest.approx(70), 1],
        [0.01, pytest.approx(85), 2],
        [1.0, pytest.approx(50), 1],
    ]


def test_span_scores_are_means_over_seeds(tmp_path: Path) -> None:
    results: Results = {
        Run("houlsby", "cola", 0): line(0.5, without={"0-0": 0.4, "0-1": 0.1, "1-1": 0.3}),
        Run("houlsby", "cola", 1): line(0.3, without={"0-0": 0.2, "0-1": 0.1, "1-1": 0.1}),
    }
    _, whole, *rows = drawn(tmp_path, "spans-cola", houlsby=results)
    assert float(whole[3]) == pytest.approx(0.4)
    assert {(row[0], row[1]): numbers(row[2:]) for row in rows} == {
        ("0", "0"): pytest.approx([-0.25, 0.3]),
        ("0", "1"): pytest.approx([-0.75, 0.1]),
        ("1", "1"): pytest.approx([-0.5, 0.2]),
    }
