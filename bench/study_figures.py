"""Draws the papers' figures from the recorded runs of ``fusion_study.py`` and ``houlsby_pals_study.py``.

    python bench/study_figures.py --output=docs/figures/gte_small

A figure is drawn if its runs are recorded. Each has a PNG, an SVG and a CSV file:

- ``differences``: the target tasks' scores minus full fine-tuning's (AdapterFusion, figure 3), with the seeds that both
  have. The averages, ``nli`` and ``mt`` are left out.
- ``activations``: mean activations of the fusions with all adapters and ``nli`` (AdapterFusion, figure 4).
- ``tradeoff``: score against trained parameters (Houlsby 2019, figure 3).
- ``scales``: score against the initialization scale (Houlsby 2019, figure 6, right).
- ``spans-mnli``, ``spans-cola``: relative change of the score without the adapters of each span of layers (Houlsby
  2019, figure 6, left and center).

Scores, activations and span scores are means over the recorded seeds.
"""

import argparse
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import fusion_study
import houlsby_pals_study
import numpy as np
from etils import epath
from fusion_study import ACTIVATIONS, ALL_ROWS, PARTITIONS, SEEDS, Run
from houlsby_pals_study import SCALE_TASK, SCALES, SIZE_TASKS, SIZES, SPANS, TABLE
from results_file import read_results

import afjax
from afjax.analysis.activation_figures import draw_activations
from afjax.analysis.activations import Activations
from afjax.analysis.run_figures import draw_differences, draw_tradeoff, tradeoff_points
from afjax.analysis.run_records import Collection, RunRecord
from afjax.analysis.spans import SpanScores, draw_spans
from afjax.analysis.sweep_figures import Score, draw_robustness
from afjax.analysis.tables import make_grid
from afjax.config.adapters import AdapterConfig

Results = Mapping[Run, Mapping[str, Any]]
# Results files name the encoders by digest.
ENCODERS = {"e9a690a30f25": "gte-small", "fbc410743710": "mpnet-base"}


def differences(results: Results, output: Path) -> list[Path]:
    """Draws the methods' mean differences to full fine-tuning, over the seeds that both have.

    The averages, ``nli`` and ``mt`` are left out.
    """
    methods = [method for method in PARTITIONS if method not in ("nli", "mt")]
    records = [
        record(run, line, method=run.method)
        for run, line in results.items()
        if run.method in methods and Run("full", run.task, run.seed) in results
    ]
    if {run.method for run in records} <= {"full"}:
        return []
    # Keep the tasks and the methods in the study's order.
    present = [method for method in methods if any(run.method == method for run in records)]
    tasks = [task for task in fusion_study.TASKS if any(run.task == task for run in records)]
    grid = make_grid(Collection(tuple(records)), tasks=",".join(tasks), methods=",".join(present))
    return draw_differences(grid, output, same_seeds=True)


def activations(results: Results, output: Path) -> list[Path]:
    """Draws the mean activations of the fusions with ``nli``, averaged over the seeds."""
    found = []
    for task in fusion_study.SMALL:
        lines = [line[ACTIVATIONS] for line in lines_of(results, "fusion_nli", task) if ACTIVATIONS in line]
        if lines:
            slots = lines[0]["means"]
            # The arrays have the shape [layers, adapters].
            means = {
                slot: {ALL_ROWS: np.mean([np.transpose(list(line["means"][slot].values())) for line in lines], 0)}
                for slot in slots
            }
            names = tuple(next(iter(slots.values())))
            found.append(Activations(task, names, {ALL_ROWS: lines[0]["num_rows"]}, means))
    return draw_activations(found, output) if found else []


def tradeoff(results: Results, output: Path) -> list[Path]:
    """Draws the median difference to full fine-tuning against the number of trained parameters.

    Only tasks that have all recorded methods are used, so that all medians are over the same tasks.
    """
    chosen = [run for run in results if run.task in SIZE_TASKS and run.method in {**TABLE, **SIZES}]
    recorded = {(run.task, run.method) for run in chosen}
    complete = {run.task for run in chosen if all((run.task, other.method) in recorded for other in chosen)}
    records = []
    for run in chosen:
        if run.task in complete:
            name = run.method.partition(":")[0]
            method = run.method.replace(":", "-") if name == "top_k" else name
            records.append(record(run, results[run], method=method.replace("top_k", "top")))
    methods = {run.method for run in chosen}
    if "full" not in methods or len(methods) < 2:
        return []
    grid = make_grid(Collection(tuple(records)), by_size=True)
    return draw_tradeoff(tradeoff_points(grid), output)


def scales(results: Results, output: Path) -> list[Path]:
    """Draws the score against the standard deviation of the initial weights. The table's adapters have the default."""
    found = []
    for method in ("houlsby", *SCALES):
        adapter = houlsby_pals_study.SINGLE[method].adapter
        assert isinstance(adapter, AdapterConfig)
        scores = [100 * line["score"] for line in lines_of(results, method, SCALE_TASK)]
        if scores:
            spread = statistics.stdev(scores) if len(scores) > 1 else None
            mean = statistics.mean(scores)
            found.append(Score(SCALE_TASK, "init_scale", "", adapter.init_scale, mean, spread, len(scores)))
    found.sort(key=lambda score: score.value)
    return draw_robustness(found, output) if len(found) > 1 else []


def spans(results: Results, task: str, output: Path) -> list[Path]:
    """Draws the relative change of the score without the adapters of each span of layers."""
    lines = lines_of(results, "houlsby", task)
    if not lines:
        return []
    metric = lines[0]["metric"]
    whole = statistics.mean(line["score"] for line in lines)
    without = {
        tuple(map(int, span.split("-"))): {metric: statistics.mean(line["without"][span] for line in lines)}
        for span in lines[0]["without"]
    }
    layers = tuple(sorted({first for first, _ in without}))
    title = f"{task} on {encoder(lines[0])}, {len(lines)} seed{'s' if len(lines) > 1 else ''}"
    return draw_spans(SpanScores(layers, {metric: whole}, without), metric, output, title=title)


def lines_of(results: Results, method: str, task: str) -> list[Mapping[str, Any]]:
    """Returns the recorded lines of a method on a task, in the order of the seeds."""
    runs = [Run(method, task, seed) for seed in SEEDS]
    return [results[run] for run in runs if run in results]


def encoder(line: Mapping[str, Any]) -> str:
    """Returns the name of a line's encoder, or its digest if it is unknown."""
    digest = line["inputs"]["trunk"]
    return ENCODERS.get(digest, digest)


def record(run: Run, line: Mapping[str, Any], *, method: str) -> RunRecord:
    """Turns a line of a results file into a record for tables and figures."""
    single = houlsby_pals_study.SINGLE.get(run.method)
    return RunRecord(
        task_config=afjax.TaskConfig(name=run.task, metric=line["metric"]),
        method=method,
        seed=run.seed,
        metrics={line["metric"]: line["score"]},
        adapter=single.adapter if single is not None and single.partition == "adapter" else None,
        own_parameters=line.get("trained_parameters"),
        trunk=line["inputs"]["trunk"],
        trunk_name=encoder(line),
        trunk_parameters=None,
        folder=epath.Path(),
        store="",
    )


def figures(fusion_results: Results, houlsby_results: Results, folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """Draws all figures, and yields ``(name, paths)``. The paths are empty if runs are missing."""
    yield "differences", differences(fusion_results, folder / "differences")
    yield "activations", activations(fusion_results, folder / "activations")
    yield "tradeoff", tradeoff(houlsby_results, folder / "tradeoff")
    yield "scales", scales(houlsby_results, folder / "scales")
    for task in SPANS:
        yield f"spans-{task}", spans(houlsby_results, task, folder / f"spans-{task}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for the figures")
    parser.add_argument(
        "--fusion_results", type=Path, default=fusion_study.GTE_SMALL.results, help="results of fusion_study.py"
    )
    parser.add_argument(
        "--houlsby_results", type=Path, default=houlsby_pals_study.RESULTS, help="results of houlsby_pals_study.py"
    )
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    fusion_results = read_results(arguments.fusion_results, Run)
    houlsby_results = read_results(arguments.houlsby_results, Run)
    for name, paths in figures(fusion_results, houlsby_results, arguments.output):
        print(f"{name}: {', '.join(map(str, paths)) or 'not drawn, because its runs are not recorded yet'}")


if __name__ == "__main__":
    main()
