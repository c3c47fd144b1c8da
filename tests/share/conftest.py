"""Makes a store to share from, and checks imports that must be refused."""

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
def _no_waiting() -> Iterator[None]:
    """Skips syncing to disk. No test simulates a power failure, and syncing would take most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a store with the adapters rte (with a head) and mnli, and their fusion both (with a head).

    Tests must not change it.
    """
    path = tmp_path_factory.mktemp("made") / "store"
    members = [save(path, "adapters", name, seed) for seed, name in enumerate(("rte", "mnli"))]
    save(path, "heads", "rte", 2)
    save(path, "heads", "both", 3)
    fused = [{"name": member.name, "sha256": member.digest} for member in members]
    save(path, "fusion", "both", 4, adapters=fused)
    return path


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """Returns a copy of the store that a test may change."""
    return shutil.copytree(made, tmp_path / "source")


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """Returns a context manager for a block that must raise UserError and leave the disk unchanged.

    Its arguments are facts that the message must contain.
    """

    @contextlib.contextmanager
    def run(*facts: str) -> Iterator[None]:
        before = contents(tmp_path)
        with pytest.raises(UserError) as raised:
            yield
        assert has_facts(str(raised.value), *facts)
        assert contents(tmp_path) == before

    return run
