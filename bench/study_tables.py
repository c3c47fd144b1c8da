"""Writes the tables of the gte-small study in the documentation, from the recorded runs of ``fusion_study.py``.

    python bench/study_tables.py            # updates docs/results.md and docs/findings.md
    python bench/study_tables.py --check    # changes nothing; the exit code is 1 if a table is outdated

A page contains each table between ``<!-- table: NAME -->`` and ``<!-- end of table -->``. The tables are:

- ``gte-small scores``: the dev scores of every seed.
- ``gte-small small tasks``: the same for the methods that are only run on the small tasks.
- ``gte-small comparisons``: differences between methods, between runs with the same task and seed.
"""

import argparse
import dataclasses
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusion_study import GTE_SMALL, SEEDS, SMALL, Run, all_runs, score
from results_file import read_results
from scipy import stats

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("results.md", "findings.md")
BLOCK = re.compile(r"(<!-- table: (?P<name>.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)

METHODS = ("head", "full", "pfeiffer", "houlsby", "fusion")
SMALL_METHODS = ("pfeiffer", "fusion_nli", "fusion_without_own", "average_nli", "add_half_nli", "average_seeds")
# Dev rows of the tasks that have fewer than the study uses.
FEWER_DEV_ROWS = {"mrpc": 408, "rte": 277, "cb": 56}
COMPARISONS = (
    ("full", "head"),
    ("pfeiffer", "head"),
    ("pfeiffer", "full"),
    ("houlsby", "full"),
    ("houlsby", "pfeiffer"),
    ("fusion", "pfeiffer"),
    ("fusion", "full"),
    ("mt", "full"),
    ("fusion", "mt"),
    ("fusion_mt", "mt"),
    ("fusion_mt", "pfeiffer"),
    ("fusion_nli", "pfeiffer"),
    ("fusion_nli", "fusion"),
    ("fusion_without_own", "pfeiffer"),
    ("fusion_without_own", "fusion_nli"),
    ("average_nli", "pfeiffer"),
    ("average_seeds", "pfeiffer"),
)
# The last two columns of the comparisons.
ALWAYS = ("better with every seed", "worse with every seed")

Results = Mapping[Run, Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Score differences between two methods.

    Attributes:
      differences: ``{task: {seed: points}}``, for the tasks and seeds that both methods have.
    """

    differences: Mapping[str, Mapping[int, float]]

    def means(self) -> dict[int, tuple[float, int]]:
        """Returns the mean over the tasks and the number of tasks, for each seed."""
        found = {}
        for seed in SEEDS:
            if points := [by_seed[seed] for by_seed in self.differences.values() if seed in by_seed]:
                found[seed] = statistics.mean(points), len(points)
        return found

    def tasks(self, sign: int) -> list[str]:
        """Lists the tasks with at least two seeds whose differences all have this sign and exceed one dev row."""
        return [
            task
            for task, by_seed in self.differences.items()
            if len(by_seed) > 1 and all(sign * points > 1.5 * dev_row(task) for points in by_seed.values())
        ]


def dev_row(task: str) -> float:
    """Returns how many points one dev row of a task is worth."""
    return 100 / num_dev_rows(task)


def num_dev_rows(task: str) -> int:
    """Returns the number of dev rows of a task."""
    return FEWER_DEV_ROWS.get(task, GTE_SMALL.dev_rows)


def exact_score(results: Results, method: str, task: str, seed: int) -> float | None:
    """Returns a run's dev accuracy, or None. The file's scores have four digits, so they are rounded to whole rows."""
    found, rows = score(results, method, task, seed), num_dev_rows(task)
    return None if found is None else round(found * rows) / rows


def subtract(results: Results, method: str, other: str) -> Comparison:
    """Subtracts the scores of ``other`` from the scores of ``method``, in points."""
    differences: dict[str, dict[int, float]] = {}
    for task in GTE_SMALL.tasks:
        for seed in SEEDS:
            a, b = (exact_score(results, name, task, seed) for name in (method, other))
            if a is not None and b is not None:
                differences.setdefault(task, {})[seed] = 100 * (a - b)
    return Comparison(differences)


def interval(points: Sequence[float]) -> tuple[float, float]:
    """Returns the 95% confidence interval of the mean (Student's t)."""
    half = stats.t.ppf(0.975, len(points) - 1) * statistics.stdev(points) / math.sqrt(len(points))
    return statistics.mean(points) - half, statistics.mean(points) + half


def comparisons_table(results: Results) -> Iterator[str]:
    """Formats ``COMPARISONS``. Comparisons without a pair of runs are left out."""
    columns = ("comparison", "tasks", *(f"seed {seed}" for seed in SEEDS), "mean", "95% interval", *ALWAYS)
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    for method, other in COMPARISONS:
        found = subtract(results, method, other)
        if not (means := found.means()):
            continue
        most = max(count for _, count in means.values())
        cells = []
        for seed in SEEDS:
            mean, count = means.get(seed, (0.0, 0))
            some = f" ({count} of {most})" if count < most else ""
            cells.append(f"{mean:+.1f}{some}" if count else "")
        # An interval needs all seeds, on the same tasks.
        spread = ["", ""]
        if [count for _, count in means.values()] == [most] * len(SEEDS):
            values = [mean for mean, _ in means.values()]
            spread = [f"{statistics.mean(values):+.1f}", "{:+.1f} to {:+.1f}".format(*interval(values))]
        tasks = [", ".join(found.tasks(sign)) for sign in (1, -1)]
        yield f"| `{method}` - `{other}` | {most} | {' | '.join([*cells, *spread, *tasks])} |"


def scores_table(results: Results, tasks: Sequence[str], methods: Sequence[str]) -> Iterator[str]:
    """Formats the scores of all seeds in percent, with a dash for a missing run."""
    yield f"| task | {' | '.join(f'`{method}`' for method in methods)} |"
    yield "|" + "---|" * (1 + len(methods))
    for task in tasks:
        cells = [_percent([exact_score(results, method, task, seed) for seed in SEEDS]) for method in methods]
        yield f"| {task} | {' | '.join(cells)} |"
    means = [[_mean(results, tasks, method, seed) for seed in SEEDS] for method in methods]
    yield f"| mean | {' | '.join(_percent(found) for found in means)} |"


def _percent(scores: Sequence[float | None]) -> str:
    if all(value is None for value in scores):
        return ""
    return ", ".join("–" if value is None else f"{100 * value:.1f}" for value in scores)


def _mean(results: Results, tasks: Sequence[str], method: str, seed: int) -> float | None:
    """Returns the mean score over the tasks, or None if a task is missing."""
    found = [value for task in tasks if (value := exact_score(results, method, task, seed)) is not None]
    return statistics.mean(found) if len(found) == len(tasks) else None


def progress(results: Results) -> str:
    """Says how many runs are finished."""
    total = len(all_runs(GTE_SMALL))
    return (
        f"{len(results)} of {total} runs are finished." if len(results) < total else f"All {total} runs are finished."
    )


def gte_small_scores(results: Results) -> Iterator[str]:
    """Formats the progress and the scores of the methods that are run on all tasks."""
    yield progress(results)
    yield ""
    present = [method for method in (*METHODS, "mt", "fusion_mt") if any(run.method == method for run in results)]
    yield from scores_table(results, tuple(GTE_SMALL.tasks), present)


TABLES: Mapping[str, Callable[[Results], Iterator[str]]] = {
    "gte-small scores": gte_small_scores,
    "gte-small small tasks": lambda results: scores_table(results, SMALL, SMALL_METHODS),
    "gte-small comparisons": comparisons_table,
}


def updated(text: str, results: Results) -> str:
    """Replaces all tables of a page."""
    return BLOCK.sub(
        lambda block: f"{block[1]}\n" + "\n".join(TABLES[block["name"]](results)) + f"\n\n{block[3]}", text
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that the tables are up to date")
    arguments = parser.parse_args()
    results = read_results(GTE_SMALL.results, Run)
    outdated = []
    for page in PAGES:
        before = (DOCS / page).read_text(encoding="utf-8")
        if (after := updated(before, results)) != before:
            outdated.append(page)
            if not arguments.check:
                (DOCS / page).write_text(after, encoding="utf-8")
    print(f"{'outdated' if arguments.check else 'updated'}: {', '.join(outdated) or 'no page'}")
    sys.exit(bool(outdated and arguments.check))


if __name__ == "__main__":
    main()
