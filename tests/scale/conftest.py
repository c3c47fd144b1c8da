"""What the tests of several devices and hosts share."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where workers keep their compiled programs, for those that come after them."""
    return tmp_path_factory.mktemp("compiled")
