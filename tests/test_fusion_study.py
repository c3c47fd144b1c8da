"""The fusion study trains runs that differ in their seed in one program."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from fusion_study import GTE_SMALL, SEEDS, Run, all_runs, grouped


def test_one_slot_keeps_the_order_of_the_runs() -> None:
    runs = all_runs(GTE_SMALL)
    assert grouped(GTE_SMALL, runs, 1) == [[run] for run in runs]


def test_the_seeds_of_a_method_and_task_are_grouped_after_their_sources() -> None:
    runs = [Run(method, task, seed) for seed in SEEDS for method in ("pfeiffer", "fusion") for task in ("rte", "cb")]
    assert grouped(GTE_SMALL, runs, 2) == [
        [Run("pfeiffer", "cb", 0), Run("pfeiffer", "cb", 1)],
        [Run("pfeiffer", "cb", 2)],
        [Run("pfeiffer", "rte", 0), Run("pfeiffer", "rte", 1)],
        [Run("pfeiffer", "rte", 2)],
        [Run("fusion", "cb", 0), Run("fusion", "cb", 1)],
        [Run("fusion", "cb", 2)],
        [Run("fusion", "rte", 0), Run("fusion", "rte", 1)],
        [Run("fusion", "rte", 2)],
    ]


def test_fusions_on_the_trunk_of_one_seed_are_grouped() -> None:
    runs = [Run("fusion_mt", task, seed) for seed in (0, 1) for task in ("rte", "cb")]
    assert grouped(GTE_SMALL, runs, 3) == [
        [Run("fusion_mt", "rte", 0), Run("fusion_mt", "cb", 0)],
        [Run("fusion_mt", "rte", 1), Run("fusion_mt", "cb", 1)],
    ]
