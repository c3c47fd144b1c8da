"""A store to share from, and what refused imports must look like."""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from made_store import contents, save

from afjax.errors import UserError


@pytest.fixture(scope="module", autouse=True)
def _no_waiting() -> Iterator[None]:
    """Nobody pulls the plug here; to wait for the disk takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters rte and mnli, of which rte has a head, and their fusion both with a head. Not to be changed."""
    path = tmp_path_factory.mktemp("made") / "store"
    members = [save(path, "adapters", name, seed) for seed, name in enumerate(("rte", "mnli"))]
    save(path, "heads", "rte", 2)
    save(path, "heads", "both", 3)
    fused = [{"name": member.name, "sha256": member.digest} for member in members]
    save(path, "fusion", "both", 4, adapters=fused)
    return path


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    """A copy of the store, to be changed."""
    return shutil.copytree(made, tmp_path / "source")


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., contextlib.AbstractContextManager[None]]:
    """A block that must be refused with a sentence, and leave the disk as it was."""

    @contextlib.contextmanager
    def run(words: str = "") -> Iterator[None]:
        before = contents(tmp_path)
        with pytest.raises(UserError) as raised:
            yield
        assert words in str(raised.value)
        assert contents(tmp_path) == before

    return run
