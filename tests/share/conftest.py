"""Fixtures: a store to share from, and a check that input is refused."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from facts import has_facts
from made_store import contents, save

from afjax.errors import UserError


@pytest.fixture(scope="module", autouse=True)
def _no_syncing() -> Iterator[None]:
    """Skips syncing to disk, which would take most of the time.

    No test simulates a power failure.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def example_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a store, which tests must not change.

    It has the adapters "rte" and "mnli", and their fusion "both". The adapter "rte" and the fusion have heads.
    """
    path = tmp_path_factory.mktemp("example_store") / "store"
    members = [save(path, "adapters", name, seed) for seed, name in enumerate(("rte", "mnli"))]
    save(path, "heads", "rte", 2)
    save(path, "heads", "both", 3)
    fused = [{"name": member.name, "sha256": member.digest} for member in members]
    save(path, "fusion", "both", 4, adapters=fused)
    return path


@pytest.fixture
def source(example_store: Path, tmp_path: Path) -> Path:
    """Copies the store, so that a test can change the copy."""
    return shutil.copytree(example_store, tmp_path / "source")


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """Returns a context manager that checks that a block is refused.

    The block must raise UserError and leave the disk unchanged. The arguments are facts that the message must contain.
    """

    @contextlib.contextmanager
    def run(*facts: str) -> Iterator[None]:
        before = contents(tmp_path)
        with pytest.raises(UserError) as raised:
            yield
        assert has_facts(str(raised.value), *facts)
        assert contents(tmp_path) == before

    return run
