"""Runs a fixed sample of the hostile cases in one process. ``python tests/hostile/run_hostile.py`` runs all."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
from hostile_base import prepare
from hostile_case import Case
from hostile_cases import bad_cases, good_cases, sample
from hostile_harness import run_case

pytestmark = pytest.mark.slow

BAD = sample(100)
# Good inputs that need little compilation.
QUICK = ("lists", "store-", "table", "predict", "predict-single-texts", "predict-with-a-byte-order-mark", "eval-csv")
GOOD = [case for case in good_cases() if case.id.removeprefix("good/").startswith(QUICK[:3]) or case.id[5:] in QUICK]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Prepares the base folder. Each case damages a copy."""
    folder = tmp_path_factory.mktemp("base")
    prepare(folder)
    return folder


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevents network access for misspelled trunk names."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("case", BAD, ids=[case.id for case in BAD])
def test_bad_input_is_refused_in_one_line_and_writes_nothing(case: Case, base: Path, tmp_path: Path) -> None:
    outcome = run_case(case, base, tmp_path / "case")
    shutil.rmtree(tmp_path / "case")
    assert outcome.passed, f"{case.id}: {outcome.outcome}: {outcome.detail}"


@pytest.mark.parametrize("case", GOOD, ids=[case.id for case in GOOD])
def test_good_input_is_accepted(case: Case, base: Path, tmp_path: Path) -> None:
    outcome = run_case(case, base, tmp_path / "case")
    assert outcome.passed, f"{case.id}: {outcome.outcome}: {outcome.detail}"


def test_there_are_500_bad_inputs_and_the_sample_covers_every_family() -> None:
    assert len(bad_cases()) >= 500
    assert {case.family for case in BAD} == {case.family for case in bad_cases() if not case.slow and not case.separate}
