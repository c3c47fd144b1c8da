"""Stores are lossless, detect damage, and survive crashes and concurrent access."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from facts import has_facts
from fork_server import fork_server

from afjax import store, trees
from afjax.cli.store_lines import list_lines, shared_lines, show_lines, verify_lines
from afjax.config.adapters import AdapterConfig
from afjax.config.from_dict import to_dict
from afjax.config.tasks import TaskConfig
from afjax.errors import UserError
from afjax.store import checkpoint, files

pytestmark = pytest.mark.slow

TRUNK = {"name": "minilm", "sha256": "ab" * 32, "hidden_size": 4, "num_layers": 2, "family": "bert"}


def make_params(seed: int = 0) -> trees.Tree:
    """Makes a tree whose leaves have several dtypes.

    "ffn" sorts before "ffn-scale", but the path "ffn/down" sorts after "ffn-scale".
    """
    draw = np.random.default_rng(seed)
    return {
        "ffn": {
            "down": {"kernel": draw.normal(size=(2, 4, 3)).astype(np.float32), "bias": jnp.ones((2, 3), "bfloat16")}
        },
        "ffn-scale": draw.normal(size=()).astype(np.float16),
        "layers": np.array([0, 1, seed], np.int32),
    }


def save(
    path: pathlib.Path,
    params: trees.Tree,
    kind: str = "adapters",
    name: str = "rte",
    *,
    overwrite: bool = False,
    **kwargs,
) -> store.Manifest:
    draft = store.Draft(kind, name, params, **{"config": to_dict(AdapterConfig()), "trunk": TRUNK, **kwargs})
    return store.save(path, draft, overwrite=overwrite)


def is_same(left: trees.Tree, right: trees.Tree) -> bool:
    return trees.tree_digest(left) == trees.tree_digest(right)


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    save(tmp_path, make_params())
    return tmp_path


@pytest.fixture
def folder(saved: pathlib.Path) -> pathlib.Path:
    return saved / "adapters" / "rte"


def load_error(path: pathlib.Path, *, kind: str = "adapters", name: str = "rte", **kwargs) -> str:
    with pytest.raises(UserError) as raised:
        store.load(path, kind, name, **kwargs)
    return str(raised.value)


# Tests of saving and loading.


def test_round_trip_keeps_every_bit_and_the_metadata(tmp_path: pathlib.Path) -> None:
    params = make_params()
    manifest = save(
        tmp_path,
        params,
        task=to_dict(TaskConfig(name="rte")),
        labels=("entailment", "not_entailment"),
        metrics={"accuracy": np.float32(0.5), "matthews": float("nan")},
        seed=7,
        adapters=[{"name": "mnli", "sha256": "cd" * 32}],
    )
    artifact = store.load(tmp_path, "adapters", "rte", trunk={"sha256": TRUNK["sha256"]})

    assert artifact.manifest == manifest
    assert manifest.metrics == {"accuracy": 0.5, "matthews": None}
    assert manifest.digest == trees.tree_digest(params)
    found, expected = trees.flatten(artifact.params), trees.flatten(params)
    assert list(found) == list(expected)
    for path, leaf in found.items():
        assert type(leaf) is np.ndarray
        assert (leaf.dtype, leaf.shape) == (expected[path].dtype, expected[path].shape)
        assert leaf.tobytes() == np.asarray(expected[path]).tobytes()


def test_folder_contains_only_manifest_and_checkpoint(folder: pathlib.Path) -> None:
    assert sorted(os.listdir(folder)) == ["manifest.json", "params"]
    assert os.listdir(folder.parent) == ["rte"]
    assert json.loads((folder / "manifest.json").read_text())["trunk"] == TRUNK


def test_orbax_restores_without_afjax_on_another_device_count(folder: pathlib.Path) -> None:
    script = """
import sys
sys.modules["afjax"] = None  # Makes "import afjax" fail.
import jax, numpy as np, orbax.checkpoint as ocp
assert jax.device_count() == 3
tree = ocp.StandardCheckpointer().restore(sys.argv[1])
leaves = [tree["ffn"]["down"]["bias"], tree["ffn"]["down"]["kernel"], tree["layers"]]
print(*[f"{leaf.dtype.name} {np.asarray(leaf).tobytes().hex()}" for leaf in leaves], sep="\\n")
"""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    command = [sys.executable, "-c", script, str(folder / "params")]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    params = make_params()
    leaves = [params["ffn"]["down"]["bias"], params["ffn"]["down"]["kernel"], params["layers"]]
    assert printed.splitlines() == [f"{leaf.dtype.name} {np.asarray(leaf).tobytes().hex()}" for leaf in leaves]


def test_nothing_is_printed(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    save(tmp_path, make_params())
    store.load(tmp_path, "adapters", "rte")
    assert capfd.readouterr() == ("", "")


# Tests of names.


def test_names_and_entries_ignore_incomplete_artifacts(saved: pathlib.Path) -> None:
    save(saved, make_params(1), name="cb.v2")
    save(saved, make_params(2), kind="heads")
    (saved / "adapters" / ".mrpc,new").mkdir()
    (saved / "adapters" / "half").mkdir()
    (saved / "adapters" / "notes.txt").write_text("")
    assert store.names(saved, "adapters") == ["cb.v2", "rte"]
    assert store.names(saved, "fusion") == []
    assert store.names(saved / "nowhere", "adapters") == []
    assert [(entry.kind, entry.name) for entry in store.entries(saved)] == [
        ("adapters", "cb.v2"),
        ("adapters", "rte"),
        ("heads", "rte"),
    ]


def test_missing_name_gets_a_suggestion(saved: pathlib.Path) -> None:
    assert 'Did you mean "rte"?' in load_error(saved, name="rtee")


@pytest.mark.parametrize("name", ["../rte", "a/b", "..", "", ".hidden", "a,b"])
def test_bad_names_are_refused_and_nothing_is_written(tmp_path: pathlib.Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        save(tmp_path / "store", make_params(), name=name)
    assert "cannot be used" in load_error(tmp_path / "store", name=name)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("params", "fact"),
    [
        ({}, "no parameters"),
        ({"ffn": {}}, "no parameters"),
        ({"ffn": {"kernel": np.array("x")}}, "ffn/kernel"),
        ({"ffn": [np.zeros(2)]}, "list"),
        ({"ffn": {"kernel": np.zeros((0, 2))}}, "ffn/kernel"),
        ({"ffn": None}, "ffn"),
        ({"a.b": np.zeros(2), "a": {"b": np.zeros(2)}}, "a.b"),
        ([np.zeros(2)], "list"),
        ({"..": np.zeros(2)}, "'..'"),
        ({"a\\b": np.zeros(2)}, "a"),
        ({"ffn": {"a/b": np.zeros(2)}}, "'a/b'"),
        ({0: np.zeros(2)}, "0"),
    ],
)
def test_trees_that_cannot_be_restored_are_refused(tmp_path: pathlib.Path, params: Any, fact: str) -> None:
    with pytest.raises(UserError) as raised:
        save(tmp_path / "store", params)
    assert has_facts(str(raised.value), 'adapter "rte"', fact)
    assert not (tmp_path / "store").exists()


def test_keys_with_dots_and_numbers_are_restored(tmp_path: pathlib.Path) -> None:
    save(tmp_path, {"layer.0": {"scale": 0.5}, "on": True})
    loaded = store.load(tmp_path, "adapters", "rte").params
    assert (float(loaded["layer.0"]["scale"]), bool(loaded["on"])) == (0.5, True)


def test_unknown_kind_is_refused(saved: pathlib.Path) -> None:
    assert 'Did you mean "adapters"?' in load_error(saved, kind="adapter")


def test_existing_artifact_is_kept_unless_overwritten(saved: pathlib.Path) -> None:
    with pytest.raises(UserError, match="already exists"):
        save(saved, make_params(1))
    assert is_same(store.load(saved, "adapters", "rte").params, make_params())
    save(saved, make_params(1), overwrite=True)
    assert is_same(store.load(saved, "adapters", "rte").params, make_params(1))
    assert os.listdir(saved / "adapters") == ["rte"]


# Tests of artifacts that do not match.


def test_saving_the_same_artifact_again_changes_nothing(saved: pathlib.Path, folder: pathlib.Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    manifest = store.read_manifest(saved, "adapters", "rte")
    assert save(saved, make_params()) == manifest
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    # The artifact is refused with other metadata, or together with an artifact that is not in the store.
    draft = store.Draft(
        kind="adapters",
        name="rte",
        params=make_params(),
        **{field: getattr(manifest, field) for field in ("config", "trunk", "task", "labels", "metrics", "seed")},
    )
    assert store.save_all(saved, [draft]) == (manifest,)
    for other in (dataclasses.replace(draft, seed=manifest.seed + 1), dataclasses.replace(draft, metrics={"f1": 0.5})):
        with pytest.raises(UserError, match="already exists"):
            store.save_all(saved, [other])
    with pytest.raises(UserError, match="already exists"):
        store.save_all(saved, [draft, dataclasses.replace(draft, kind="heads")])
    assert store.names(saved, "heads") == []


def test_missing_store_and_parent_of_a_store_are_reported(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(UserError, match="There is no store") as refused:
        store.load(tmp_path / "nowhere", "adapters", "rte")
    assert str(tmp_path / "nowhere") in str(refused.value)
    workdir = tmp_path / "workdir"
    workdir.mkdir()
    (workdir / "store").symlink_to(saved, target_is_directory=True)
    with pytest.raises(UserError, match="did you mean") as refused:
        store.load(workdir, "adapters", "rte")
    assert str(workdir / "store") in str(refused.value)


def test_parent_of_a_symbolic_link_is_the_parent_of_its_target(saved: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Python's and etils' abspath would find the parent of the link itself."""
    (saved.parent / "sub").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(saved.parent / "sub", target_is_directory=True)
    path = tmp_path / "elsewhere" / "link" / ".." / saved.name
    assert path.exists()
    assert store.names(path, "adapters") == store.names(saved, "adapters") != []
    assert store.verify(path) == []


def test_mismatched_trunk_error_names_both_trunks(saved: pathlib.Path) -> None:
    message = load_error(saved, trunk={"sha256": "ef" * 32})
    assert "minilm" in message
    assert TRUNK["sha256"] in message
    assert "ef" * 32 in message


def test_incomplete_artifacts_only_count_if_there_are_no_complete_ones(saved: pathlib.Path) -> None:
    (saved / "fusion" / "rte").mkdir(parents=True)
    assert store.kinds_of(saved, "rte") == ["adapters"]
    (saved / "fusion" / "started").mkdir()
    assert store.kinds_of(saved, "started") == ["fusion"]
    with pytest.raises(UserError, match="rte"):
        store.kinds_of(saved, "rta")
    with pytest.raises(UserError, match="no store"):
        store.kinds_of(saved / "missing", "rte")


def test_folder_moved_to_another_kind_or_name_is_refused(saved: pathlib.Path, folder: pathlib.Path) -> None:
    shutil.copytree(folder, saved / "heads" / "rte")
    shutil.copytree(folder, saved / "adapters" / "cb")
    assert has_facts(load_error(saved, kind="heads"), "holds adapters/rte,", "not heads/rte;", "back to adapters/rte.")
    assert has_facts(load_error(saved, name="cb"), "holds adapters/rte,", "not adapters/cb;", "back to adapters/rte.")


# Tests of damaged files.


def leaf_files(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in sorted((folder / "params").rglob("*")) if path.is_file()]


def test_flipped_bit_in_any_file_is_detected_and_names_the_leaf(saved: pathlib.Path, folder: pathlib.Path) -> None:
    paths = {path.replace("/", "."): path for path in trees.flatten(make_params())}
    damaged = leaf_files(folder)
    assert len(damaged) > 2 * len(paths)
    for file in damaged:
        contents = file.read_bytes()
        for position in {0, len(contents) // 2, len(contents) - 1}:
            changed = bytearray(contents)
            changed[position] ^= 1
            file.write_bytes(changed)
            message = load_error(saved)
            assert f'"{paths.get(file.parent.name, file.name)}" was changed' in message
        file.write_bytes(contents)
    store.load(saved, "adapters", "rte")


def test_flipped_bit_anywhere_in_the_manifest_is_detected(saved: pathlib.Path, folder: pathlib.Path) -> None:
    file = folder / "manifest.json"
    contents = file.read_bytes()
    intact = store.load(saved, "adapters", "rte")
    draw = random.Random(0)
    for _ in range(60):
        changed = bytearray(contents)
        changed[draw.randrange(len(contents))] ^= 1 << draw.randrange(8)
        file.write_bytes(changed)
        try:
            artifact = store.load(saved, "adapters", "rte")
        except UserError:
            continue
        assert artifact.manifest == intact.manifest  # Only white space changed.
        assert is_same(artifact.params, intact.params)


def test_deleted_file_or_leaf_is_named(saved: pathlib.Path, folder: pathlib.Path) -> None:
    paths = {path.replace("/", "."): path for path in trees.flatten(make_params())}
    for file in leaf_files(folder):
        contents = file.read_bytes()
        file.unlink()
        assert f"-{paths.get(file.parent.name, file.name)}" in load_error(saved)
        file.write_bytes(contents)
    shutil.rmtree(folder / "params" / "layers")
    assert "-layers" in load_error(saved)


def test_extra_leaf_is_named(saved: pathlib.Path, folder: pathlib.Path) -> None:
    shutil.copytree(folder / "params" / "layers", folder / "params" / "more")
    assert "+more" in load_error(saved)


def test_missing_manifest_or_checkpoint_is_refused(saved: pathlib.Path, folder: pathlib.Path) -> None:
    shutil.move(folder / "params", saved / "params")
    assert "cannot be read" in load_error(saved)
    shutil.move(saved / "params", folder / "params")
    (folder / "manifest.json").unlink()
    assert "no manifest.json" in load_error(saved)
    assert store.names(saved, "adapters") == []
    assert len(store.verify(saved)) == 1


@pytest.mark.parametrize("contents", ["", "[]", "null", '{"kind": "adapters"}', b"\xff\xfe", "half"])
def test_malformed_manifest_is_refused(saved: pathlib.Path, folder: pathlib.Path, contents: str | bytes) -> None:
    file = folder / "manifest.json"
    original = file.read_bytes()
    contents = contents.encode() if isinstance(contents, str) else contents
    file.write_bytes(original[: len(original) // 2] if contents == b"half" else contents)
    message = load_error(saved)
    assert str(file) in message
    assert "train it again" in message
    assert len(list_lines(saved)) == 2


def set_format_version(values: dict) -> None:
    values["format_version"] = 99


def remove_key(values: dict) -> None:
    del values["seed"]


def add_key(values: dict) -> None:
    values["sead"] = 1


def change_type(values: dict) -> None:
    values["labels"] = "ab"


def add_leaf(values: dict) -> None:
    values["leaves"]["ffn/up/bias"] = values["leaves"]["layers"]


def remove_leaf(values: dict) -> None:
    del values["leaves"]["layers"]


def change_shape(values: dict) -> None:
    values["leaves"]["layers"]["shape"] = [4]


def break_leaf(values: dict) -> None:
    values["leaves"]["layers"] = [3]


def change_leaf_digest(values: dict) -> None:
    values["leaves"]["layers"]["sha256"] = "0" * 64


def swap_labels(values: dict) -> None:
    values["labels"] = ["b", "a"]


# Maps a path in the manifest to a value of the wrong type, and to a name that the message must contain.
WRONG_TYPES = {
    ("trunk", "sha256"): (["ab"], "trunk.sha256"),
    ("trunk", "name"): ({}, "trunk.name"),
    ("trunk", "dtype"): ("int7", "trunk.dtype"),
    ("trunk", "family"): (None, "trunk.family"),
    ("trunk", "architecture"): ([], "trunk.architecture"),
    ("trunk", "tokenizer"): ({"vocabulary": 1}, "trunk.tokenizer"),
    ("trunk", "trained"): ("yes", "trunk.trained"),
    ("trunk",): ([], "trunk"),
    ("trained_with",): ({"kind": "adapters"}, "trained_with"),
    ("adapters",): ([1], "adapters"),
    ("adapters", 0): ({"name": "rte"}, "adapters"),
    ("adapters", 0, "name"): (3, "adapters"),
    ("files", "more"): ([], '"more"'),
    ("task", "name"): ([], "task.name"),
    ("leaves", "layers", "dtype"): ("float99", '"layers"'),
    ("leaves", "layers", "shape"): ([True], '"layers"'),
    ("leaves", "layers/more"): ({"shape": [1], "dtype": "int32", "sha256": "0" * 64}, "prefix of another leaf's path"),
    ("leaves",): (None, "leaves"),
    ("config",): ("bert", "config"),
    ("seed",): (1.5, "seed"),
}


@pytest.mark.parametrize("keys", WRONG_TYPES, ids=lambda keys: ".".join(map(str, keys)))
def test_manifest_value_of_the_wrong_type_is_refused(tmp_path: pathlib.Path, keys: tuple) -> None:
    save(tmp_path, make_params(), adapters=[{"name": "mnli", "sha256": "cd" * 32}])
    value, expected = WRONG_TYPES[keys]
    file = tmp_path / "adapters" / "rte" / "manifest.json"
    values = json.loads(file.read_text())
    parent = values
    for key in keys[:-1]:
        parent = parent[key]
    parent[keys[-1]] = value
    # The manifest is refused whether or not its checksum is correct.
    del values["manifest_sha256"]
    for checksum in ("0" * 64, hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()):
        file.write_text(json.dumps({**values, "manifest_sha256": checksum}))
        message = load_error(tmp_path, trunk=TRUNK)
        assert str(file) in message
        assert expected in message
        assert len(store.verify(tmp_path)) == 1
        assert len(list_lines(tmp_path)) == 2


@pytest.mark.parametrize(
    "text", ['{"leaves": ' * 100_000, '{"seed": ' + "9" * 5000 + "}", '{"metrics": NaN}', '"a"', "1"]
)
def test_invalid_json_manifest_is_refused(saved: pathlib.Path, folder: pathlib.Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    assert str(folder / "manifest.json") in load_error(saved)
    assert len(store.verify(saved)) == 1


@pytest.mark.parametrize(
    ("edit", "facts"),
    [
        (set_format_version, ("format_version is 99",)),
        (remove_key, ("-seed",)),
        (add_key, ("+sead",)),
        (change_type, ("labels",)),
        (add_leaf, ("-ffn/up/bias",)),
        (remove_leaf, ("+layers",)),
        (change_shape, ('"layers"', "[3]", "[4]")),
        (break_leaf, ('"layers"',)),
        (change_leaf_digest, ('"layers"', "sha256")),
        (swap_labels, ("manifest.json ", "changed", "not match")),
    ],
)
def test_edited_manifest_is_refused(
    saved: pathlib.Path, folder: pathlib.Path, edit: Callable[[dict], None], facts: tuple[str, ...]
) -> None:
    file = folder / "manifest.json"
    values = json.loads(file.read_text())
    edit(values)
    file.write_text(json.dumps(values))
    assert has_facts(load_error(saved), *facts)


# Tests of failing disks.


def test_full_disk_loses_no_data(saved: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match=r'adapter "rte" .*No space left on device'):
            save(saved, make_params(1), overwrite=True)
        with pytest.raises(UserError, match="No space left"):
            save(saved, make_params(1), name="new")
    assert os.listdir(saved / "adapters") == ["rte"]
    assert is_same(store.load(saved, "adapters", "rte").params, make_params())


def test_failed_swap_is_undone(saved: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = os.rename

    def failing(source: os.PathLike[str], target: os.PathLike[str]) -> None:
        if os.fspath(source).endswith(",new"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with pytest.raises(UserError, match="cannot be written"):
            save(saved, make_params(1), overwrite=True)
    assert os.listdir(saved / "adapters") == ["rte"]
    assert is_same(store.load(saved, "adapters", "rte").params, make_params())


def test_file_in_place_of_the_store_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        save(tmp_path / "store", make_params())


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_read_only_store_can_be_read_but_not_written(saved: pathlib.Path) -> None:
    (saved / "adapters").chmod(0o555)
    try:
        with pytest.raises(UserError, match="Permission denied"):
            save(saved, make_params(1), overwrite=True)
        assert is_same(store.load(saved, "adapters", "rte").params, make_params())
    finally:
        (saved / "adapters").chmod(0o755)


# Tests with several processes. The processes are forked from a server that has already imported everything, so they
# start in milliseconds. A new interpreter would take seconds.


@pytest.fixture(scope="module")
def processes() -> multiprocessing.context.ForkServerContext:
    return fork_server()


@contextlib.contextmanager
def running(
    processes: multiprocessing.context.ForkServerContext, target: Callable[..., None], *arguments: object
) -> Iterator[multiprocessing.process.BaseProcess]:
    """Runs a process during the block, and then kills it."""
    process = processes.Process(target=target, args=arguments)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def overwrite_repeatedly(path: pathlib.Path) -> None:
    for count in range(1_000_000):
        save(path, make_params(count % 2), overwrite=True)


def overwrite_until_killed(path: pathlib.Path, last_step: int) -> None:
    """Overwrites the artifact, but kills this process at a step.

    The steps are the calls that move or delete a folder. Step ``last_step`` is not executed.
    """
    steps = iter(range(1_000_000))

    def kill_at_last_step(function: Callable[..., None]) -> Callable[..., None]:
        def wrapper(*args: object, **kwargs: object) -> None:
            if next(steps) == last_step:
                os.kill(os.getpid(), signal.SIGKILL)
            function(*args, **kwargs)

        return wrapper

    os.rename, shutil.rmtree = kill_at_last_step(os.rename), kill_at_last_step(shutil.rmtree)
    save(path, make_params(1), overwrite=True)


def write_with_little_space(path: pathlib.Path, messages: "multiprocessing.Queue[str]") -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))
    try:
        save(path, {"kernel": np.random.default_rng(0).normal(size=10_000)}, overwrite=True)
    except UserError as error:
        messages.put(str(error))


def check_complete(path: pathlib.Path) -> int:
    """Checks that the stored artifact is complete, and returns its seed."""
    params = store.load(path, "adapters", "rte").params
    seed = int(params["layers"][2])
    assert is_same(params, make_params(seed))
    return seed


def test_writer_killed_at_any_step_leaves_a_complete_artifact(
    saved: pathlib.Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    seeds = []
    for step in range(20):
        with running(processes, overwrite_until_killed, saved, step) as writer:
            writer.join()
        assert store.names(saved, "adapters") == ["rte"]
        seeds.append(check_complete(saved))
        if writer.exitcode == 0:
            break
        save(saved, make_params(), overwrite=True)
        assert os.listdir(saved / "adapters") == ["rte"]
    assert writer.exitcode == 0
    assert seeds == sorted(seeds)
    # At least two checks found the old artifact (seed 0), and at least two found the new one (seed 1).
    assert seeds.count(0) >= 2
    assert seeds.count(1) >= 2


def test_writer_killed_at_random_times_leaves_a_complete_artifact(
    saved: pathlib.Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    draw = random.Random(0)
    for _ in range(10):
        before = store.read_manifest(saved, "adapters", "rte")
        with running(processes, overwrite_repeatedly, saved) as writer:
            while store.read_manifest(saved, "adapters", "rte") == before:
                assert writer.is_alive()
                time.sleep(0.002)
            time.sleep(draw.uniform(0, 0.1))
        check_complete(saved)
    save(saved, make_params(), overwrite=True)
    assert os.listdir(saved / "adapters") == ["rte"]


# If a writer replaces files during a read, Orbax stops the read and closes its event loop. TensorStore's pending reads
# then fail.
CLOSED_LOOP = pytest.mark.filterwarnings(
    "ignore:(?s)Exception ignored in. None.*Event loop is closed:pytest.PytestUnraisableExceptionWarning"
)


@CLOSED_LOOP
def test_concurrent_readers_see_complete_artifacts(
    saved: pathlib.Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    seeds = []
    with running(processes, overwrite_repeatedly, saved):
        deadline = time.monotonic() + 300
        while len(seeds) < 40 or (len(set(seeds)) < 2 and time.monotonic() < deadline):
            seeds.append(check_complete(saved))
            assert store.names(saved, "adapters") == ["rte"]
    assert set(seeds) == {0, 1}


@CLOSED_LOOP
def test_concurrent_writers_take_turns(
    saved: pathlib.Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    with running(processes, overwrite_repeatedly, saved) as writer:
        for seed in range(2, 8):
            save(saved, make_params(seed), overwrite=True)
        assert writer.is_alive()
    check_complete(saved)


def test_disk_that_fills_up_while_saving_loses_no_data(
    saved: pathlib.Path, processes: multiprocessing.context.ForkServerContext
) -> None:
    messages = processes.Queue()
    with running(processes, write_with_little_space, saved, messages):
        assert "File too large" in messages.get(timeout=300)
    assert os.listdir(saved / "adapters") == ["rte"]
    assert is_same(store.load(saved, "adapters", "rte").params, make_params())


# Tests of object stores, which cannot rename folders.


@pytest.fixture
def object_store(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.setattr(files, "is_remote", lambda path: True)
    return tmp_path


def test_object_store_round_trip_and_overwrite(object_store: pathlib.Path) -> None:
    save(object_store, make_params())
    with pytest.raises(UserError, match="already exists"):
        save(object_store, make_params(1))
    assert is_same(store.load(object_store, "adapters", "rte").params, make_params())
    save(object_store, make_params(1), overwrite=True)
    assert is_same(store.load(object_store, "adapters", "rte").params, make_params(1))
    assert os.listdir(object_store / "adapters") == ["rte"]


def test_object_store_keeps_the_old_artifact_until_the_new_is_complete(
    object_store: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(object_store, make_params())
    write = checkpoint.write

    def write_and_fail(folder: pathlib.Path, params: trees.Tree) -> dict[str, str]:
        write(folder, params)
        assert check_complete(object_store) == 0
        assert store.names(object_store, "adapters") == ["rte"]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", write_and_fail)
        for _ in range(2):
            with pytest.raises(UserError, match="No space left"):
                save(object_store, make_params(1), overwrite=True)
            assert check_complete(object_store) == 0
    with pytest.raises(UserError, match="already exists"):
        save(object_store, make_params(1))
    save(object_store, make_params(1), overwrite=True)
    assert check_complete(object_store) == 1
    assert os.listdir(object_store / "adapters") == ["rte"]


# Tests of checks and commands.


@pytest.fixture
def fused(saved: pathlib.Path) -> pathlib.Path:
    adapter = store.read_manifest(saved, "adapters", "rte")
    task = to_dict(TaskConfig(name="cb", metric="f1"))
    sources = [{"name": "rte", "sha256": adapter.digest}]
    save(saved, make_params(1), kind="fusion", name="cb", adapters=sources, task=task, metrics={"f1": 0.75})
    return saved


def test_verify_accepts_a_valid_store(fused: pathlib.Path) -> None:
    assert store.verify(fused) == []
    assert verify_lines(fused) == (["adapters/rte: ok", "fusion/cb: ok"], True)


def test_verify_reports_a_fusion_whose_adapter_is_missing_or_changed(fused: pathlib.Path) -> None:
    save(fused, make_params(5), overwrite=True)
    (problem,) = store.verify(fused)
    assert has_facts(problem, 'fusion "cb"', 'adapter "rte"', "SHA-256", "train the fusion")
    shutil.rmtree(fused / "adapters" / "rte")
    (problem,) = store.verify(fused)
    assert has_facts(problem, 'fusion "cb"', 'adapter "rte"', "not in", str(fused))
    lines, all_ok = verify_lines(fused)
    assert not all_ok
    assert lines[0].startswith("fusion/cb: ")


def test_missing_adapter_with_the_name_of_a_head_is_explained(fused: pathlib.Path) -> None:
    assert has_facts(load_error(fused, name="cb"), 'adapter "cb"', "This is the name of: fusion.", "rte")


def test_shared_artifact_names_what_the_archive_lacks(tmp_path: pathlib.Path) -> None:
    manifest = store.save(
        tmp_path, store.Draft("adapters", "a", make_params(), config={}, trunk={**TRUNK, "trained": True})
    )
    for received, advice in ((False, "share its folder"), (True, "--trunk")):
        lines = shared_lines("x.tar contains", [manifest], received=received)
        assert any(has_facts(line, "trunk", "not included", advice) for line in lines)


def test_verify_prints_no_control_characters(fused: pathlib.Path) -> None:
    file = fused / "adapters" / "rte" / "manifest.json"
    file.write_text(file.read_text().replace('"name": "rte"', '"name": "\\u001b[31mrte"'))
    lines, _ = verify_lines(fused)
    assert "31mrte" in lines[0]
    assert all(line.isprintable() for line in lines)


def test_verify_finds_damage(fused: pathlib.Path) -> None:
    file = fused / "adapters" / "rte" / "params" / "layers" / "0"
    file.write_bytes(file.read_bytes()[:-1])
    (problem,) = store.verify(fused)
    assert '"layers" was changed' in problem


def test_list_shows_one_line_per_artifact(fused: pathlib.Path) -> None:
    heading, adapter, fusion = list_lines(fused)
    assert heading.split()[:4] == ["kind", "name", "task", "metric"]
    assert adapter.split()[:4] == ["adapters", "rte", "-", "-"]
    assert fusion.split()[:5] == ["fusion", "cb", "cb", "f1", "0.7500"]
    assert store.read_manifest(fused, "fusion", "cb").digest[:12] in fusion


def test_show_prints_the_artifacts_of_all_kinds_with_the_name(fused: pathlib.Path) -> None:
    save(fused, make_params(2), kind="heads", name="cb", labels=("yes", "no"))
    text = "\n".join(show_lines(fused, "cb"))
    for part in ("fusion/cb", "heads/cb", "yes, no", "minilm", "ffn/down/kernel", "bfloat16", "f1 0.7500"):
        assert part in text
    with pytest.raises(UserError, match='Did you mean "rte"'):
        show_lines(fused, "rtee")


@pytest.mark.parametrize("command", [list_lines, verify_lines])
def test_commands_refuse_a_missing_store(tmp_path: pathlib.Path, command: Callable[..., object]) -> None:
    with pytest.raises(UserError, match="There is no store"):
        command(tmp_path / "nowhere")
