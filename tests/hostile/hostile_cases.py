"""Collects all hostile cases, and draws the fixed sample that runs with the other tests."""

import functools
import random
from collections.abc import Sequence

import hostile_commands
import hostile_data
import hostile_settings
import hostile_stores
import hostile_trunks
import hostile_workdirs
from hostile_case import Case

MODULES = (hostile_data, hostile_settings, hostile_trunks, hostile_stores, hostile_workdirs, hostile_commands)
# Random seed of the sample.
SEED = 32


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """Returns all bad and good cases in a fixed order, with unique ids."""
    cases = tuple(case for module in MODULES for case in module.cases())
    ids = [case.id for case in cases]
    twice = sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []
    assert not twice, f"duplicate case ids: {twice}"
    return cases


def bad_cases() -> tuple[Case, ...]:
    return tuple(case for case in all_cases() if case.wanted != "accepted")


def good_cases() -> tuple[Case, ...]:
    return tuple(case for case in all_cases() if case.wanted == "accepted")


def sample(count: int) -> tuple[Case, ...]:
    """Draws ``count`` bad cases that are neither slow nor separate, alternating between families.

    The order within a family depends only on its own cases, so new cases in one family do not affect the others.
    """
    by_family: dict[str, list[Case]] = {}
    for case in bad_cases():
        if not case.slow and not case.separate:
            by_family.setdefault(case.family, []).append(case)
    for family, cases in by_family.items():
        random.Random(f"{SEED} {family}").shuffle(cases)
    chosen: list[Case] = []
    while len(chosen) < count and any(by_family.values()):
        for cases in by_family.values():
            if cases and len(chosen) < count:
                chosen.append(cases.pop())
    return tuple(chosen)


def select(words: Sequence[str]) -> tuple[Case, ...]:
    """Selects the cases whose ids start with one of the words, or all cases if there are no words."""
    return tuple(case for case in all_cases() if not words or case.id.startswith(tuple(words)))
