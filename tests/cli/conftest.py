"""Creates tiny data and a store filled by one ``afjax train``, and checks that commands are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from afjax.cli.main import main

CONFIG = """
import ml_collections

def get_config(recipe="fusion", task="target"):
    config = ml_collections.ConfigDict()
    config.recipe = recipe
    config.trunk = {trunk!r}
    train = {{"max_steps": 2, "batch_size": 8, "max_length": 16, "buckets": (16,), "learning_rate": 1e-3}}
    config.task = {{"name": task, "source": {data!r}}}
    config.train = train
    if recipe == "fusion":
        config.sources = {{name: {{"task": {{"source": {data!r}}}, "train": train}} for name in ("first", "second")}}
    return config
"""

ROWS = [
    {"text_a": f"{word} of the {number}", "text_b": "some of the two", "label": "many" if word == "all" else "few"}
    for number in ("two", "three", "four", "five")
    for word in ("all", "some")
]

WriteRows = Callable[..., Path]


@pytest.fixture(scope="session")
def write_rows() -> WriteRows:
    """Returns a function that writes rows to a JSONL file, by default eight pairs labeled few or many."""

    def write(path: Path, rows: list[dict] = ROWS) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture(scope="session")
def trained(tiny_trunk_folder: Path, write_rows: WriteRows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains ``tiny.py``, and returns the folder with ``tiny.py``, ``data`` and the workdir ``run``.

    The run trains two adapters and a fusion.
    """
    folder = tmp_path_factory.mktemp("trained")
    for split in ("train", "dev"):
        write_rows(folder / "data" / f"{split}.jsonl")
    (folder / "tiny.py").write_text(CONFIG.format(trunk=str(tiny_trunk_folder), data=str(folder / "data")))
    assert main(["train", f"--config={folder / 'tiny.py'}", f"--workdir={folder / 'run'}"]) == 0
    return folder


@pytest.fixture
def data(trained: Path, tmp_path: Path) -> Path:
    """Copies the data, so that a test can damage it."""
    return shutil.copytree(trained / "data", tmp_path / "data")


@pytest.fixture
def store(trained: Path, tmp_path: Path) -> Path:
    """Copies the store, so that a test can damage it.

    It contains the adapters first and second and the fusion target-fusion, each with its head.
    """
    return shutil.copytree(trained / "run" / "store", tmp_path / "store")


@pytest.fixture
def config(tiny_trunk_folder: Path, data: Path, tmp_path: Path) -> Path:
    """Writes a config file that uses ``data`` and takes the arguments ``recipe`` and ``task``."""
    path = tmp_path / "tiny.py"
    path.write_text(CONFIG.format(trunk=str(tiny_trunk_folder), data=str(data)))
    return path


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Returns a function that checks that a command is refused, and returns its message.

    The command must exit with code 2, print a one-line message, and write nothing.
    """

    def run(*words: str) -> str:
        before = contents(tmp_path)
        capsys.readouterr()
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("afjax: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert contents(tmp_path) == before
        return err.removeprefix("afjax: ").rstrip("\n")

    return run
