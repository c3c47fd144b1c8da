"""Related artifacts are saved together or not at all.

Runs cannot replace the artifacts of other runs. Older formats of manifests can be read.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fork_server import fork_server

from afjax import share, store
from afjax.config.experiment import ExperimentConfig
from afjax.config.tasks import TaskConfig
from afjax.config.values import MAX_NAME_BYTES, check_name
from afjax.errors import UserError
from afjax.store import checkpoint, files
from afjax.store.manifest import CHECKSUM
from afjax.store.reservations import WORKDIR_FILE
from afjax.train import workdir as workdirs

TRUNK = {"name": "minilm", "sha256": "ab" * 32, "hidden_size": 4, "num_layers": 2, "family": "bert"}
ROUNDS = 12


def draft(kind: str, seed: int, name: str = "rte") -> store.Draft:
    params = {"kernel": np.full((4, 4), seed, np.float32)}
    return store.Draft(kind=kind, name=name, params=params, config={}, trunk=TRUNK, seed=seed)


def pair(seed: int, name: str = "rte") -> list[store.Draft]:
    return [draft("adapters", seed, name), draft("heads", seed, name)]


def seeds(folder: Path) -> dict[str, int]:
    assert store.verify(folder) == []
    return {f"{entry.kind}/{entry.name}": entry.seed for entry in store.entries(folder)}


def make_workdir(folder: Path, run: str) -> Path:
    folder.mkdir()
    (folder / WORKDIR_FILE).write_text(json.dumps({"store": "../store", "run": run}))
    return folder


@pytest.fixture
def fail_at_second(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Returns a function that makes the second write of a checkpoint raise an error."""

    def set_error(error: BaseException) -> None:
        original, written = checkpoint.write, []

        def write(folder: Any, params: Any) -> dict[str, str]:
            if written:
                raise error
            written.append(folder)
            return original(folder, params)

        monkeypatch.setattr(checkpoint, "write", write)

    return set_error


# Tests of saving either all artifacts or none.


def test_nothing_is_saved_if_one_name_exists(tmp_path: Path) -> None:
    store.save_all(tmp_path, [draft("heads", 1)])
    with pytest.raises(UserError, match=r'"rte" already exists .*heads'):
        store.save_all(tmp_path, pair(2))
    assert seeds(tmp_path) == {"heads/rte": 1}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()])
def test_error_while_writing_keeps_all_old_artifacts(
    tmp_path: Path, fail_at_second: Callable[[BaseException], None], error: BaseException
) -> None:
    store.save_all(tmp_path, pair(1))
    fail_at_second(error)
    with pytest.raises((UserError, KeyboardInterrupt)):
        store.save_all(tmp_path, pair(2), overwrite=True)
    assert seeds(tmp_path) == {"adapters/rte": 1, "heads/rte": 1}


def test_error_between_renames_keeps_all_old_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save_all(tmp_path, pair(1))
    rename = os.rename

    def failing(source: Any, target: Any) -> None:
        if os.fspath(source).endswith("heads/.rte,new"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with pytest.raises(UserError, match="cannot be written"):
            store.save_all(tmp_path, pair(2), overwrite=True)
    assert seeds(tmp_path) == {"adapters/rte": 1, "heads/rte": 1}
    store.save_all(tmp_path, pair(3), overwrite=True)
    assert seeds(tmp_path) == {"adapters/rte": 3, "heads/rte": 3}


def test_two_drafts_with_the_same_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"same .*heads/rte"):
        store.save_all(tmp_path / "store", [draft("heads", 1), draft("heads", 2)])
    assert not (tmp_path / "store").exists()


def save_every_name(folder: Path, seed: int, barrier: Any, results: Any) -> None:
    names = []
    for number in range(ROUNDS):
        barrier.wait(timeout=120)
        try:
            store.save_all(folder, pair(seed, f"name{number}"))
            names.append(f"name{number}")
        except UserError:
            pass
    results.put((seed, names))


def test_concurrent_saves_are_not_mixed(tmp_path: Path) -> None:
    context = fork_server()
    barrier, results = context.Barrier(3), context.Queue()
    processes = [
        context.Process(target=save_every_name, args=(tmp_path, seed, barrier, results), daemon=True)
        for seed in range(3)
    ]
    for process in processes:
        process.start()
    names_by_seed = dict(results.get(timeout=300) for _ in processes)
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert sorted(name for names in names_by_seed.values() for name in names) == sorted(
        f"name{n}" for n in range(ROUNDS)
    )
    expected = {
        f"{kind}/{name}": seed
        for seed, names in names_by_seed.items()
        for name in names
        for kind in ("adapters", "heads")
    }
    assert seeds(tmp_path) == expected


def test_overwritten_writer_on_an_object_store_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two writers find the same names free. The other writer saves its artifacts just before this writer finishes.
    monkeypatch.setattr("afjax.store.saving.is_remote", lambda path: True)
    release = store.saving.reservations.release

    def other_writer(root: Any, kind: str, name: str) -> None:
        release(root, kind, name)
        monkeypatch.undo()
        store.save_all(tmp_path, pair(2), overwrite=True)
        monkeypatch.setattr("afjax.store.saving.is_remote", lambda path: True)

    monkeypatch.setattr(store.saving.reservations, "release", other_writer)
    monkeypatch.setattr(files, "only_writer", unlocked)
    with pytest.raises(UserError, match=r"replaced .*another process"):
        store.save_all(tmp_path, pair(1))


class unlocked:  # noqa: N801
    """A lock that does nothing, because object stores have no locks."""

    def __init__(self, store: Path) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


# Tests of stores that several runs use.


def test_run_replaces_only_its_own_artifacts(tmp_path: Path) -> None:
    store.save_all(tmp_path, pair(1), run="one")
    store.save_all(tmp_path, pair(2), run="one")
    assert {entry.run for entry in store.entries(tmp_path)} == {"one"}
    with pytest.raises(UserError, match="saved by another run"):
        store.save_all(tmp_path, pair(2), run="two")
    with pytest.raises(UserError, match=r"overwrite=True .*run='two'"):
        store.save_all(tmp_path, pair(2), run="two", overwrite=True)
    assert seeds(tmp_path) == {"adapters/rte": 2, "heads/rte": 2}


def test_artifact_without_run_is_replaced_only_if_identical(tmp_path: Path) -> None:
    store.save_all(tmp_path, pair(1)[:1])
    store.save_all(tmp_path, pair(1), run="one")
    store.save_all(tmp_path, pair(1, "other")[:1])
    with pytest.raises(UserError, match="saved by another run"):
        store.save_all(tmp_path, pair(2, "other"), run="one")
    assert seeds(tmp_path) == {"adapters/rte": 1, "heads/rte": 1, "adapters/other": 1}


NAMES = [("adapters", "rte"), ("heads", "rte")]


def test_second_run_with_reserved_names_is_refused(tmp_path: Path) -> None:
    one, two = (make_workdir(tmp_path / run, run) for run in ("one", "two"))
    folder = tmp_path / "store"
    store.reserve(folder, NAMES, run="one", workdir=one)
    store.reserve(folder, NAMES, run="one", workdir=one)
    with pytest.raises(UserError, match=str(one)):
        store.reserve(folder, [("heads", "other"), ("heads", "rte")], run="two", workdir=two)
    with pytest.raises(UserError, match=str(one)):
        store.save_all(folder, pair(2), run="two")
    for overwrite in (False, True):
        with pytest.raises(UserError, match=str(one)):
            store.save_all(folder, pair(2), overwrite=overwrite)
    # The refused call did not reserve heads/other, although this name was free.
    store.reserve(folder, [("heads", "other")], run="one", workdir=one)
    store.save_all(folder, pair(1), run="one")
    with pytest.raises(UserError, match=r"saved .*another run"):
        store.reserve(folder, NAMES, run="two", workdir=two)
    assert seeds(folder) == {"adapters/rte": 1, "heads/rte": 1}


@pytest.mark.parametrize("change", ["deleted", "another run", "damaged"])
def test_names_are_freed_if_the_workdir_no_longer_has_the_run(tmp_path: Path, change: str) -> None:
    one, two = (make_workdir(tmp_path / run, run) for run in ("one", "two"))
    store.reserve(tmp_path / "store", NAMES, run="one", workdir=one)
    file = one / WORKDIR_FILE
    if change == "deleted":
        file.unlink()
    else:
        file.write_text('{"store": "s", "run": "three"}' if change == "another run" else "{")
    store.reserve(tmp_path / "store", NAMES, run="two", workdir=two)
    store.save_all(tmp_path / "store", pair(2), run="two")
    assert seeds(tmp_path / "store") == {"adapters/rte": 2, "heads/rte": 2}


def test_names_stay_reserved_if_the_workdir_cannot_be_read(tmp_path: Path) -> None:
    one, two = (make_workdir(tmp_path / run, run) for run in ("one", "two"))
    store.reserve(tmp_path / "store", NAMES, run="one", workdir=one)
    # Reading a folder fails even for root, who may read other users' private folders.
    (one / WORKDIR_FILE).unlink()
    (one / WORKDIR_FILE).mkdir()
    with pytest.raises(UserError, match=str(one)):
        store.reserve(tmp_path / "store", NAMES, run="two", workdir=two)


def test_damaged_reservation_is_refused(tmp_path: Path) -> None:
    one = make_workdir(tmp_path / "one", "one")
    store.reserve(tmp_path / "store", NAMES, run="one", workdir=one)
    [path] = (tmp_path / "store" / ".runs").glob("heads-*")
    for text in ("{", "[]", "{}", '{"run": 1, "workdir": 2}'):
        path.write_text(text)
        with pytest.raises(UserError, match=path.name):
            store.save_all(tmp_path / "store", pair(2)[1:])


def test_moved_store_has_no_reservations_of_a_run_that_saves_elsewhere(tmp_path: Path) -> None:
    one = make_workdir(tmp_path / "one", "one")
    store.reserve(tmp_path / "store", NAMES, run="one", workdir=one)
    (tmp_path / "store").rename(tmp_path / "moved")
    store.reserve(tmp_path / "store", NAMES, run="one", workdir=one)
    store.save_all(tmp_path / "moved", pair(1), run="two")
    with pytest.raises(UserError, match=str(one)):
        store.save_all(tmp_path / "store", pair(1), run="two")


def test_reservations_are_not_artifacts_and_are_not_shared(tmp_path: Path) -> None:
    one = make_workdir(tmp_path / "one", "one")
    store.reserve(tmp_path / "store", [("heads", "other")], run="one", workdir=one)
    store.save_all(tmp_path / "store", [draft("adapters", 1)])
    assert store.folders(tmp_path / "store") == [("adapters", "rte")]
    share.pack(tmp_path / "store", "rte", tmp_path / "rte.tar")
    assert bytes(one) not in (tmp_path / "rte.tar").read_bytes()
    share.unpack(tmp_path / "rte.tar", tmp_path / "store", name="again")
    with pytest.raises(UserError, match=str(one)):
        store.reserve(tmp_path / "store", [("adapters", "again"), ("heads", "other")], run="two", workdir=tmp_path)
    store.reserve(tmp_path / "store", [("adapters", "third")], run="one", workdir=one)
    with pytest.raises(UserError, match=str(one)):
        share.unpack(tmp_path / "rte.tar", tmp_path / "store", name="third", overwrite=True)


def test_workdirs_and_store_agree_on_the_file_name() -> None:
    assert WORKDIR_FILE == workdirs.STORE


# Tests of older formats.


def convert_to_format_1(manifest: Path) -> None:
    values = json.loads(manifest.read_text())
    for key in ("trained_with", "run", CHECKSUM):
        del values[key]
    values["format_version"] = 1
    checksum = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps({**values, CHECKSUM: checksum}, indent=2) + "\n")


def test_format_1_store_can_be_read_packed_and_unpacked(tmp_path: Path) -> None:
    store.save_all(tmp_path / "old", pair(1)[:1])
    path = tmp_path / "old" / "adapters" / "rte" / "manifest.json"
    convert_to_format_1(path)
    manifest = store.load(tmp_path / "old", "adapters", "rte").manifest
    assert (manifest.format_version, manifest.trained_with, manifest.run) == (1, {}, "")
    assert store.verify(tmp_path / "old") == []
    share.pack(tmp_path / "old", "rte", tmp_path / "rte.tar")
    share.unpack(tmp_path / "rte.tar", tmp_path / "new", name="again")
    assert store.read_manifest(tmp_path / "new", "adapters", "again").format_version == 1
    text = path.read_text()
    path.write_text(text.replace('"seed": 1', '"seed": 2'))
    assert len(store.verify(tmp_path / "old")) == 1
    for version in ("3", "0", "true", '"1"'):
        path.write_text(text.replace('"format_version": 1', f'"format_version": {version}'))
        with pytest.raises(UserError, match="format_version"):
            store.read_manifest(tmp_path / "old", "adapters", "rte")


def test_deeply_nested_or_mistyped_manifests_are_refused(tmp_path: Path) -> None:
    store.save_all(tmp_path, pair(1)[:1])
    path = tmp_path / "adapters" / "rte" / "manifest.json"
    good = json.loads(path.read_text())
    for text in (
        "[" * 100_000,
        "null",
        json.dumps({**good, "adapters": [3]}),
        json.dumps({**good, "trained_with": {"kind": 3}}),
        json.dumps({**good, "task": [[]]}),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=r"manifest\.json"):
            store.read_manifest(tmp_path, "adapters", "rte")


# Tests of names.


@pytest.mark.parametrize("name", ["x" * 300, "ä" * 130, "x" * (MAX_NAME_BYTES + 1)])
def test_too_long_names_are_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    store.save_all(tmp_path / "store", pair(1)[:1])
    share.pack(tmp_path / "store", "rte", tmp_path / "rte.tar")
    attempts: list[Callable[[], Any]] = [
        lambda: store.save_all(tmp_path / "new", pair(1, name)),
        lambda: store.reserve(tmp_path / "new", [("heads", name)], run="one", workdir=tmp_path),
        lambda: share.unpack(tmp_path / "rte.tar", tmp_path / "new", name=name),
        lambda: ExperimentConfig(task=TaskConfig(name="rte"), name=name),
    ]
    before = sorted(tmp_path.iterdir())
    for attempt in attempts:
        with pytest.raises(UserError, match=f"{len(name.encode())} bytes"):
            attempt()
    assert sorted(tmp_path.iterdir()) == before


def test_longest_name_works_everywhere(tmp_path: Path) -> None:
    name = "x" * MAX_NAME_BYTES
    check_name(name, "artifact")
    one = make_workdir(tmp_path / "one", "one")
    store.reserve(tmp_path / "store", [("adapters", name)], run="one", workdir=one)
    for _ in range(2):
        store.save_all(tmp_path / "store", pair(1, name)[:1], run="one")
    share.pack(tmp_path / "store", name, tmp_path / "x.tar")
    share.unpack(tmp_path / "x.tar", tmp_path / "new")
    assert seeds(tmp_path / "new") == {f"adapters/{name}": 1}


def test_combined_experiment_and_task_name_must_not_be_too_long() -> None:
    task = TaskConfig(name="t" * 100)
    with pytest.raises(UserError, match="bytes"):
        ExperimentConfig(recipe="multitask", tasks=(task,), name="n" * 200)
