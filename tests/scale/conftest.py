"""Defines fixtures for tests that need several devices or hosts."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a folder for the compilation cache that all workers share."""
    return tmp_path_factory.mktemp("compiled")
