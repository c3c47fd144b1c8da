"""Files are written atomically, and devices and pipes are not replaced."""

import os
import stat
import threading
from pathlib import Path

import pytest

from afjax.storage.writing import replacing, write_json, write_text


def test_file_is_replaced_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    write_text(path, "old")

    def fail_halfway() -> None:
        with replacing(path) as part:
            part.write_text("half of the new text")
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["scores.csv"]
    write_json(path, {"a": 1})
    assert path.read_text() == '{\n "a": 1\n}\n'


def test_symlink_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write_text(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_pipe_is_written_and_not_replaced(tmp_path: Path) -> None:
    pipe, received = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: received.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through the pipe")
    reader.join(timeout=300)
    assert received == ["through the pipe"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_device_raises_an_error_and_is_not_replaced() -> None:
    with pytest.raises(OSError, match="No space left"):
        write_text("/dev/full", "text")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_text(tmp_path, "text")
