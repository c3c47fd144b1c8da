"""Lock files keep two processes from writing the same folder."""

import shutil
from pathlib import Path

import pytest

from afjax.errors import UserError
from afjax.storage.locking import only_holder, wait_until_free


def test_second_holder_is_refused(tmp_path: Path) -> None:
    with (
        only_holder(tmp_path / ".lock", "held"),
        pytest.raises(UserError, match="held"),
        only_holder(tmp_path / ".lock", "held"),
    ):
        pass
    with only_holder(tmp_path / ".lock", "held"):
        pass


def test_holder_notices_that_its_file_was_moved_or_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with only_holder(folder / ".lock", "held") as is_in_place:
        assert is_in_place()
        folder.rename(tmp_path / "moved")
        assert not is_in_place()
        folder.mkdir()
        with only_holder(folder / ".lock", "held") as other_is_in_place:
            assert other_is_in_place()
            assert not is_in_place()
        shutil.rmtree(folder)
        (tmp_path / "moved").rename(folder)
        assert is_in_place()


def test_waiting_ends_when_all_locks_are_free_or_the_time_is_over(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("held", "free", "missing")]
    paths[1].touch()
    with only_holder(paths[0], "held"):
        assert wait_until_free(paths[1:], seconds=0.0)
        assert not wait_until_free(paths, seconds=0.05)
    assert wait_until_free(paths, seconds=60.0)
    assert not paths[2].exists()
