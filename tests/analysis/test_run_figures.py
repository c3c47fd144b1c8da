"""The numbers in figures of synthetic runs match hand-computed values."""

import csv
import dataclasses
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from made_runs import adapter, experiment, finish, finish_all, fusion

from afjax.analysis.figures import COLUMN_WIDTH, new_figure
from afjax.analysis.run_figures import (
    BAR_COLORS,
    HATCHES,
    draw_differences,
    draw_tradeoff,
    parameters_axis,
    task_points,
    tradeoff_points,
)
from afjax.analysis.run_records import RunRecord
from afjax.analysis.runs import collect
from afjax.analysis.sweep_figures import draw_robustness, draw_search, robustness, search
from afjax.analysis.tables import make_grid
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError

TASKS = ("cb", "mrpc", "rte")


def read(paths: list[Path]) -> list[dict[str, str]]:
    assert [path.suffix for path in paths] == [".png", ".svg", ".csv"]
    with paths[-1].open() as file:
        return list(csv.DictReader(file))


def test_tradeoff_over_tasks(tmp_path: Path) -> None:
    """Each point has percentiles, across tasks, of the difference from full fine-tuning."""
    changes = {"houlsby": (-1.0, 0.0, 4.0), "layernorm": (-3.0, -2.0, -8.0), "top-2": (-2.0, 1.0, -5.0)}
    for number, task in enumerate(TASKS):
        full = 0.7 + number / 10
        finish(tmp_path / f"{task}-full", experiment(task, "full"), full)
        for method, points in changes.items():
            score = full + points[number] / 100
            finish(tmp_path / f"{task}-{method}", experiment(task, method), score, saved=1000 + number)
    points = tradeoff_points(make_grid(collect([tmp_path]), by_size=True))
    assert [(point.family, point.method, point.count) for point in points] == [
        ("LayerNorm only", "layernorm", 3),
        ("top layers", "top-2", 3),
        ("houlsby adapters", "houlsby:64", 3),
    ]
    for point, values in zip(points, (changes["layernorm"], changes["top-2"], changes["houlsby"]), strict=True):
        # The 20th, 50th and 80th percentiles of three values are interpolated at positions 0.4, 1 and 1.6.
        low, middle, high = sorted(values)
        expected = [low + 0.4 * (middle - low), middle, middle + 0.6 * (high - middle)]
        np.testing.assert_allclose([point.low, point.middle, point.high], expected, atol=1e-9)
    # The median task has 1001 parameters per artifact. Houlsby's method trains an adapter and a head, which makes 2002.
    # The method "layernorm" trains 13 LayerNorms with 768 parameters each, and a head.
    assert [points[2].parameters, points[0].parameters] == [2002, 13 * 768 + 1001]
    rows = read(draw_tradeoff(points, tmp_path / "picture"))
    assert [row["p50"] for row in rows] == [repr(point.middle) for point in points]


@pytest.mark.parametrize("parameters", [(159e3, 7.2e6), (2e5, 2e5), (41e3, 85e6), (900.0, 1100.0), (2.1e5, 4.8e5)])
def test_parameter_labels_do_not_overlap(parameters: tuple[float, float]) -> None:
    figure, (axes,) = new_figure(COLUMN_WIDTH, 2.7)
    axes.errorbar(parameters, (0, 1), yerr=0.1, marker="o")
    parameters_axis(axes, parameters)
    figure.canvas.draw()
    low, high = axes.get_xlim()
    ticks = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    labels = [label for tick, label in ticks if low <= tick <= high and label.get_text()]
    boxes = [label.get_window_extent() for label in labels]
    assert len({label.get_text() for label in labels}) == len(labels)
    assert not any(label.get_text() for label in axes.get_xticklabels(minor=True))
    assert len(boxes) >= (2 if parameters[0] < parameters[1] else 1)
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_tradeoff_of_one_task(tmp_path: Path) -> None:
    for seed, score in enumerate((0.5, 0.6)):
        finish(tmp_path / f"{seed}", experiment("rte", "houlsby", seed=seed), score, saved=10)
    grid = make_grid(collect([tmp_path]), by_size=True)
    (point,) = task_points(grid, "rte")
    assert (point.parameters, point.middle, point.count) == (20, 55.0, 2)
    assert point.high - point.middle == pytest.approx(50**0.5)
    assert len(read(draw_tradeoff([point], tmp_path / "picture", task="rte (accuracy)"))) == 1
    with pytest.raises(UserError, match=r"method full .*method=full"):
        tradeoff_points(grid)


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    """A single-seed point has no band, because a zero-width band would suggest that scores do not vary."""
    for size, scores in ((8, (0.5, 0.6)), (16, (0.7,)), (32, (0.6, 0.8))):
        for seed, score in enumerate(scores):
            config = experiment("rte", "houlsby", seed=seed, adapter=adapter("houlsby", size=size))
            finish(tmp_path / f"{size}-{seed}", config, score, saved=size)
    points = task_points(make_grid(collect([tmp_path]), by_size=True), "rte")
    assert [(point.low is None, point.high is None) for point in points] == [(False,) * 2, (True,) * 2, (False,) * 2]
    paths = draw_tradeoff(points, tmp_path / "picture", task="rte (accuracy)")
    assert [bool(row["mean_minus_std"]) for row in read(paths)] == [True, False, True]
    assert "one seed" in paths[1].read_text()
    paths = draw_tradeoff([points[0], points[2]], tmp_path / "all", task="rte (accuracy)")
    assert "one seed" not in paths[1].read_text()
    scores = robustness(records(tmp_path))
    assert "one seed" in draw_robustness(scores, tmp_path / "sizes")[1].read_text()


def test_tradeoff_without_usable_runs_is_refused(tmp_path: Path) -> None:
    finish_all(tmp_path, {("rte", "full"): (0.5,), ("rte", "head"): (0.5,)})
    with pytest.raises(UserError, match=r"no runs .*LayerNorms .*head, full"):
        tradeoff_points(make_grid(collect([tmp_path]), by_size=True))
    finish(tmp_path / "adapter", experiment("rte", "houlsby"), 0.5)
    with pytest.raises(UserError, match=r"parameters .*adapter .*counted.*store.*--runs"):
        tradeoff_points(make_grid(collect([tmp_path]), by_size=True))


def test_differences(tmp_path: Path) -> None:
    scores = {("rte", "full"): (0.5, 0.6), ("rte", "head"): (0.4,), ("cb", "head"): (0.4,), ("cb", "pfeiffer"): (0.9,)}
    grid = make_grid(collect([finish_all(tmp_path, scores)]))
    (row,) = read(draw_differences(grid, tmp_path / "picture"))
    assert (row["task"], row["method"]) == ("rte", "head")
    assert float(row["difference_to_full"]) == pytest.approx(-15)
    assert (row["seeds"], row["seeds_of_full"]) == ("0", "0 1")
    with pytest.raises(UserError, match=r"No task .*full fine-tuning"):
        draw_differences(dataclasses.replace(grid, methods=("full", "pfeiffer")), tmp_path / "other")
    assert not list(tmp_path.glob("other*"))


def test_bars_are_distinguishable_without_color(tmp_path: Path) -> None:
    methods = ("full", "head", "layernorm", "top-1", "top-2", "pfeiffer", "houlsby")
    grid = make_grid(collect([finish_all(tmp_path, {("rte", name): (len(name) / 10,) for name in methods})]))
    shown = draw_differences(grid, tmp_path / "picture")[1].read_text()
    patterns = re.findall(r"<pattern .*?</pattern>", shown, re.DOTALL)
    # "full" has no bars, because it is the reference, and the first bar has no hatching.
    assert len({re.search(r'<path d="([^"]*)"', pattern)[1] for pattern in patterns}) == len(methods) - 2
    looks = [(BAR_COLORS[of % len(BAR_COLORS)], HATCHES[of % len(HATCHES)]) for of in range(50)]
    assert len(set(looks)) == 50


def records(folder: Path) -> tuple[RunRecord, ...]:
    return collect([folder]).records


def test_robustness(tmp_path: Path) -> None:
    """Runs on one line share all other settings, so sizes and scales get separate lines."""

    def add(score: float, seed: int = 0, **settings: object) -> None:
        config = experiment("rte", "houlsby", seed=seed, adapter=adapter("houlsby", **settings))
        finish(tmp_path / f"{score}", config, score)

    for scale, score in ((1e-7, 0.50), (1e-2, 0.62), (1.0, 0.40)):
        add(score, init_scale=scale)
    add(0.60, seed=1, init_scale=1e-2)
    add(0.81, size=8, init_scale=0.5)
    add(0.82, size=16, init_scale=0.5)
    finish(tmp_path / "fused", fusion("rte", ("cb",)), 0.99)
    scores = robustness(records(tmp_path))
    assert [(of.setting, of.value, of.mean, of.seeds) for of in scores] == [
        ("init_scale", 1e-7, 50.0, 1),
        ("init_scale", 1e-2, 61.0, 2),
        ("init_scale", 1.0, 40.0, 1),
        ("size", 8.0, pytest.approx(81.0), 1),
        ("size", 16.0, pytest.approx(82.0), 1),
    ]
    assert scores[1].std == pytest.approx(2**0.5)
    assert next(row["std"] for row in read(draw_robustness(scores, tmp_path / "picture"))) == ""


def test_repeated_runs_of_a_sweep_are_ignored(tmp_path: Path) -> None:
    """As in tables, the first of two runs with the same settings and seed counts."""
    for size, position in ((8, "both"), (16, "both"), (8, "ffn")):
        own = adapter("houlsby", size=size, position=position)
        for folder, score in (("a", 0.5), ("b", 0.9)):
            finish(tmp_path / folder / f"{size}-{position}", experiment("rte", "houlsby", adapter=own), score)
    for found in (robustness(records(tmp_path)), search(records(tmp_path))):
        assert {(score.mean, score.seeds) for score in found} == {(50.0, 1)}


def test_names_may_contain_dollar_signs(tmp_path: Path) -> None:
    """matplotlib would draw ``$a_b$`` as a formula, and raise an error for ``$x_$``."""
    for name in ("$a_b$", "$x_$"):
        task = TaskConfig(name=name, source="data")
        for scale in (1e-7, 1.0):
            config = experiment("x", "houlsby", of=task, adapter=adapter("houlsby", init_scale=scale))
            finish(tmp_path / name / f"{scale}", config, 0.6)
        finish(tmp_path / name / "full", experiment("x", "full", of=task), 0.5)
    found = collect([tmp_path])
    paths = draw_differences(make_grid(found), tmp_path / "differences")
    shown = paths[1].read_text()
    paths = draw_robustness(robustness(found.records), tmp_path / "robustness")
    for text in (shown, paths[1].read_text()):
        assert ">$a_b$<" in text
        assert ">$x_$<" in text
    # The labels of a logarithmic axis are not formulas either.
    assert ">1e\N{MINUS SIGN}07<" in paths[1].read_text()


def test_task_whose_name_begins_with_an_underscore_is_in_the_legend(tmp_path: Path) -> None:
    task = TaskConfig(name="_rte", source="data")
    for scale in (1e-7, 1.0):
        config = experiment("x", "houlsby", of=task, adapter=adapter("houlsby", init_scale=scale))
        finish(tmp_path / f"{scale}", config, 0.6)
    paths = draw_robustness(robustness(collect([tmp_path]).records), tmp_path / "robustness")
    assert "_rte<" in paths[1].read_text()


def test_robustness_needs_a_sweep(tmp_path: Path) -> None:
    finish_all(tmp_path, {("rte", "houlsby"): (0.5, 0.6), ("rte", "head"): (0.5,)})
    with pytest.raises(UserError, match=r"No runs .*--grid\.adapter\.init_scale="):
        robustness(records(tmp_path))
    with pytest.raises(UserError, match=r"No runs .*pfeiffer_search\.py"):
        search(records(tmp_path))


def test_search(tmp_path: Path) -> None:
    """Step (b) uses only runs with the best position, and picks the activation with the better mean over seeds."""
    runs = [
        ("ffn", "both", "relu", 16.0, (0.80, 0.84)),
        ("ffn", "both", "tanh", 16.0, (0.81, 0.81)),
        ("ffn", "both", "relu", 2.0, (0.79,)),
        ("ffn", "before", "relu", 16.0, (0.60,)),
        ("attention", "both", "relu", 16.0, (0.70,)),
        ("attention", "none", "relu", 16.0, (0.75,)),
    ]
    for number, (position, norm, activation, factor, values) in enumerate(runs):
        settings = {"position": position, "pretrained_layer_norm": norm, "activation": activation}
        own = adapter("pfeiffer", **settings, reduction_factor=factor)
        for seed, score in enumerate(values):
            finish(tmp_path / f"{number}-{seed}", experiment("rte", "pfeiffer", seed=seed, adapter=own), score)
    scores = search(records(tmp_path))
    found = {(of.setting, of.option, of.value): of.mean for of in scores}
    assert found == {
        ("position", "ffn", -16.0): pytest.approx(82.0),
        ("position", "ffn", -2.0): pytest.approx(79.0),
        ("position", "attention", -16.0): pytest.approx(75.0),
        ("pretrained_layer_norm", "both", -16.0): pytest.approx(82.0),
        ("pretrained_layer_norm", "both", -2.0): pytest.approx(79.0),
        ("pretrained_layer_norm", "before", -16.0): pytest.approx(60.0),
    }
    rows = read(draw_search(scores, tmp_path / "picture"))
    assert {(row["value"], row["value_is"]) for row in rows} == {
        ("16.0", "reduction_factor"),
        ("2.0", "reduction_factor"),
    }


def test_other_experiments_are_not_mistaken_for_a_search(tmp_path: Path) -> None:
    """Runs that differ in both position and size, such as Pfeiffer's and Houlsby's adapters, are not a search."""
    finish_all(tmp_path / "usual", {("cb", "pfeiffer"): (0.5,), ("cb", "houlsby"): (0.6,)})
    with pytest.raises(UserError, match=r'"cb".* adapter\.position \(ffn: factor 16; both: size 64\)'):
        search(records(tmp_path))
    own = adapter("houlsby", size=None, reduction_factor=16.0)
    finish(tmp_path / "same", experiment("cb", "houlsby", adapter=own), 0.7)
    assert {score.setting for score in search(records(tmp_path))} == {"position"}
