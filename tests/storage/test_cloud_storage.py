"""Workdirs, stores, trunks and data can be in Google Cloud Storage.

The tests use a local emulator. gcsfs and TensorStore's own driver send it the same requests as Google's servers.
"""

import functools
import http.server
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import requests
from etils import epath
from facts import has_facts
from gcp_storage_emulator.handlers.buckets import create_bucket
from gcp_storage_emulator.server import RequestHandler
from gcp_storage_emulator.storage import Storage
from gcsfs.retry import ChecksumError, HttpError
from google.api_core.exceptions import Forbidden, ServiceUnavailable
from google.auth.exceptions import DefaultCredentialsError, TransportError

from afjax import share, store
from afjax.analysis.parameters import trunk_architecture
from afjax.cli.explain import explain
from afjax.cli.main import main
from afjax.config.experiment import ExperimentConfig
from afjax.config.tasks import TaskConfig
from afjax.errors import TemporaryError, UserError
from afjax.storage import paths
from afjax.storage.paths import file_error, is_temporary, open_path
from afjax.tasks.load import load_split
from afjax.train.workdir import claim_workdir, release_workdir

pytestmark = pytest.mark.slow

CONFIG = """
import ml_collections

def get_config(partition="adapter", trunk={trunk!r}, data={data!r}, max_steps=12):
    config = ml_collections.ConfigDict()
    config.trunk = trunk
    config.partition = partition
    config.task = {{"name": "quantity", "source": data}}
    config.train = {{
        "max_steps": max_steps, "batch_size": 8, "max_length": 8, "buckets": (8,), "eval_every": 6,
        "checkpoint_every": 3, "learning_rate": 1e-2,
    }}
    return config
"""
ROWS = [
    {"text": f"{word} of the {number}", "label": "many" if word == "all" else "few"}
    for number in ("two", "three", "four", "five", "six", "seven", "eight", "nine")
    for word in ("all", "some")
]
# Buckets that refuse requests. OBJECTS_ONLY refuses only requests about the bucket itself, as if the account's roles
# only covered objects.
FORBIDDEN, PRIVATE, OBJECTS_ONLY = "forbidden", "private", "objects-only"


class Bucket(Storage):
    """Keeps the emulator's objects in memory."""

    def _write_config_to_file(self) -> None:
        """Does nothing.

        The original method rewrites almost every object whenever an object is written.
        """

    def generation(self, path: str) -> str:
        """Returns the generation of the object in a request's path.

        It is "0" if the object does not exist.
        """
        parts = urllib.parse.urlsplit(path)
        bucket, _, name = parts.path.partition("/b/")[2].partition("/o")
        name = urllib.parse.unquote(name[1:]) or urllib.parse.parse_qs(parts.query).get("name", [""])[0]
        return self.objects.get(bucket, {}).get(name, {}).get("generation", "0")


class Handler(RequestHandler):
    """The emulator's handler, with refusals, generations and preconditions.

    Some buckets refuse requests. TensorStore uses generations and preconditions to replace its manifests safely.
    """

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        status = self._refusal()
        if status is None:
            return True
        # Read the whole body first. A client that is still sending would not read the response.
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"error": {"code": status, "message": f"no access to {self.path}"}}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return False

    def _refusal(self) -> HTTPStatus | None:
        if f"/b/{FORBIDDEN}" in self.path or self.path.endswith(f"/b/{OBJECTS_ONLY}"):
            return HTTPStatus.FORBIDDEN
        if f"/b/{PRIVATE}" in self.path:
            return HTTPStatus.UNAUTHORIZED
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
        generation = [self.storage.generation(self.path)]
        if query.get("ifGenerationMatch", generation) != generation:
            return HTTPStatus.PRECONDITION_FAILED
        if generation != ["0"] and query.get("ifGenerationNotMatch") == generation:
            return HTTPStatus.NOT_MODIFIED
        return None

    def end_headers(self) -> None:
        if self.command == "GET" and (generation := self.storage.generation(self.path)) != "0":
            self.send_header("x-goog-generation", generation)
        super().end_headers()


class Server(http.server.HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Logs nothing, because clients may disconnect at any time."""


@pytest.fixture(scope="module", autouse=True)
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """Runs the emulator, and returns its storage.

    Environment variables make this process and its children use the emulator.
    """
    storage = Bucket(use_memory_fs=True)
    for name in ("bucket", FORBIDDEN, PRIVATE, OBJECTS_ONLY):
        create_bucket(name, storage)
    with Server(("127.0.0.1", 0), functools.partial(Handler, storage)) as server, pytest.MonkeyPatch.context() as patch:
        address = f"http://127.0.0.1:{server.server_port}"
        patch.setenv("STORAGE_EMULATOR_HOST", address)
        patch.setenv("TENSORSTORE_GCS_HTTP_URL", address)
        # Do not use this machine's credentials, and do not search for credentials on its network.
        patch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "none")
        patch.setenv("NO_GCE_CHECK", "true")
        patch.setenv("CLOUDSDK_CONFIG", str(tmp_path_factory.mktemp("gcloud")))
        patch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
        # The emulator has no gRPC service that reports a bucket's kind.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield storage
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def config(tiny_trunk_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a config file and its data, and returns the path of the file."""
    folder = tmp_path_factory.mktemp("experiment")
    for split in ("train", "dev"):
        write_rows(folder / "data" / f"{split}.jsonl")
    (folder / "config.py").write_text(CONFIG.format(trunk=str(tiny_trunk_folder), data=str(folder / "data")))
    return folder / "config.py"


def write_rows(path: Any, rows: list[dict] = ROWS) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def upload(folder: Path, to: str) -> epath.Path:
    for path in folder.iterdir():
        (epath.Path(to) / path.name).write_bytes(path.read_bytes())
    return epath.Path(to)


def names_in(cloud: Bucket, prefix: str) -> list[str]:
    return [name for name in list(cloud.objects.get("bucket", {})) if name.startswith(prefix)]


@pytest.fixture(scope="module")
def trained(config: Path, cloud: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains the same run locally and in a bucket, and returns the local workdir.

    The run in ``gs://bucket/run`` is killed and resumed. Its store is ``gs://bucket/store``.
    """
    local = tmp_path_factory.mktemp("local") / "run"
    arguments = ["train", f"--config={config}", "--workdir=gs://bucket/run", "--store=gs://bucket/store"]
    assert main([*arguments[:2], f"--workdir={local}"]) == 0
    process = subprocess.Popen([sys.executable, "-m", "afjax", *arguments], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    complete = re.compile(r"run/target/checkpoints/\d+/commit_success.txt")
    while not any(complete.fullmatch(name) for name in names_in(cloud, "run/")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    # The names are reserved, but no artifact has been saved.
    assert {name.split("/")[1] for name in names_in(cloud, "store/")} == {".runs"}
    assert main(arguments) == 0
    return local


def test_killed_run_resumes_bit_identical_to_a_local_run(trained: Path, cloud: Bucket) -> None:
    found, expected = store.entries("gs://bucket/store"), store.entries(trained / "store")
    assert [(entry.kind, entry.name, entry.digest, entry.metrics) for entry in found] == [
        (entry.kind, entry.name, entry.digest, entry.metrics) for entry in expected
    ]
    assert [entry.kind for entry in found] == ["adapters", "heads"]
    remote, local = epath.Path("gs://bucket/run/target"), trained / "target"
    assert (remote / "metrics.jsonl").read_text() == (local / "metrics.jsonl").read_text()
    assert (remote / "result.json").read_text() == (local / "result.json").read_text()
    steps = [line["step"] for line in map(json.loads, (local / "metrics.jsonl").read_text().splitlines())]
    assert sorted(set(steps)) == list(range(1, 13))
    # The killed process wrote an event file up to its last checkpoint. The second process wrote another event file.
    boards = [name for name in names_in(cloud, "run/target/tensorboard/") if name.rpartition(".")[2] != "0"]
    assert len(boards) == 1
    assert len(names_in(cloud, "run/target/tensorboard/")) == 2
    assert not [name for name in names_in(cloud, "") if name.endswith(".part") or ".afjax-" in name]


def test_repeating_a_finished_run_does_not_train(
    trained: Path, config: Path, cloud: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: cloud.objects["bucket"][name]["generation"] for name in names_in(cloud, "run/target/")}
    assert main(["train", f"--config={config}", "--workdir=gs://bucket/run", "--store=gs://bucket/store"]) == 0
    assert "Store: gs://bucket/store" in capsys.readouterr().out
    assert before == {name: cloud.objects["bucket"][name]["generation"] for name in names_in(cloud, "run/target/")}


def test_different_config_is_refused(trained: Path, config: Path, refused: Callable[..., str]) -> None:
    arguments = [f"--config={config}", "--workdir=gs://bucket/run", "--config.seed=1"]
    assert has_facts(refused("train", *arguments), "gs://bucket/run ", "a different config", "seed: 0 ", " 1 ")


def test_claim_of_a_workdir_is_undone(cloud: Bucket) -> None:
    workdir = open_path("gs://bucket/claimed")
    config = ExperimentConfig(task=TaskConfig(name="quantity", source="rows"))
    assert claim_workdir(workdir, config, {}, "gs://bucket/store")
    assert len(names_in(cloud, "claimed/")) == 3
    release_workdir(workdir)
    assert names_in(cloud, "claimed/") == []


def test_store_commands_work_on_a_bucket(
    trained: Path, config: Path, tiny_trunk_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for place in ("gs://bucket/store", str(trained / "store")):
        assert main(["store", "ls", f"--store={place}"]) == 0
        assert main(["store", "show", "quantity", f"--store={place}"]) == 0
        assert main(["store", "verify", f"--store={place}"]) == 0
        model = [f"--store={place}", f"--trunk={tiny_trunk_folder}", "--adapter=quantity", "--head=quantity"]
        assert main(["eval", *model, f"--source={config.parent / 'data'}"]) == 0
        output = tmp_path / "predictions.jsonl"
        assert main(["predict", *model, f"--input={config.parent / 'data' / 'dev.jsonl'}", f"--output={output}"]) == 0
        lines = capsys.readouterr().out.splitlines()
        # Remove identifiers and times, because they differ between runs.
        lines = [re.sub(r"20\d\d-[\d-]+[ T][\d:.+]+", "", line) for line in lines if not line.startswith("  run ")]
        printed.append((lines, output.read_text()))
    assert printed[0] == printed[1]


def save(value: float, *, overwrite: bool = False) -> None:
    params = {"up": {"kernel": np.full((3, 4), value, np.float32), "bias": np.zeros(4, np.float32)}}
    store.save("gs://bucket/artifacts", store.Draft("adapters", "a", params, config={}, trunk={}), overwrite=overwrite)


def test_artifacts_are_overwritten_and_incomplete_ones_are_detected(cloud: Bucket) -> None:
    save(1.0)
    with pytest.raises(UserError, match="already exists"):
        save(2.0)
    save(2.0, overwrite=True)
    assert store.load("gs://bucket/artifacts", "adapters", "a").params["up"]["kernel"][0, 0] == 2.0
    assert store.names("gs://bucket/artifacts", "adapters") == ["a"]
    assert not [name for name in names_in(cloud, "artifacts/") if "," in name]
    # A writer that is killed before it writes the manifest leaves an artifact without a manifest.
    (epath.Path("gs://bucket/artifacts/adapters/a") / "manifest.json").unlink()
    assert store.names("gs://bucket/artifacts", "adapters") == []
    with pytest.raises(UserError, match=r"adapters/a .*no manifest\.json"):
        store.load("gs://bucket/artifacts", "adapters", "a")
    assert len(store.verify("gs://bucket/artifacts")) == 1
    save(3.0)
    (epath.Path("gs://bucket/artifacts/adapters/a/params/up.kernel/0.0")).unlink()
    (problem,) = store.verify("gs://bucket/artifacts")
    assert has_facts(problem, "- missing", "+ unexpected", "-up/kernel")


def test_old_artifact_is_used_until_the_new_one_is_complete(cloud: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    from afjax.store import checkpoint

    save(1.0, overwrite=True)

    def fail(folder: epath.Path, params: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write", fail)
        with pytest.raises(KeyboardInterrupt):
            save(2.0, overwrite=True)
    assert store.load("gs://bucket/artifacts", "adapters", "a").params["up"]["kernel"][0, 0] == 1.0
    save(2.0, overwrite=True)
    assert store.load("gs://bucket/artifacts", "adapters", "a").params["up"]["kernel"][0, 0] == 2.0


def test_artifacts_written_by_another_process_are_visible(cloud: Bucket) -> None:
    save(1.0, overwrite=True)
    assert store.names("gs://bucket/artifacts", "adapters") == ["a"]
    for name in names_in(cloud, "artifacts/adapters/a/"):
        other = name.replace("adapters/a/", "adapters/b/")
        cloud.create_file(
            "bucket", other, cloud.get_file("bucket", name), {**cloud.objects["bucket"][name], "name": other}
        )
    assert store.names("gs://bucket/artifacts", "adapters") == ["a", "b"]


def test_pack_from_and_unpack_to_a_bucket(cloud: Bucket, tmp_path: Path) -> None:
    params = {"up": {"kernel": np.ones((3, 4), np.float32)}}
    trunk = {"name": "gs://bucket/trunk", "sha256": "ab" * 32}
    saved = store.save("gs://bucket/shared", store.Draft("adapters", "a", params, config={}, trunk=trunk))
    share.pack("gs://bucket/shared", "a", tmp_path / "a.tar")
    assert b"bucket" not in (tmp_path / "a.tar").read_bytes()
    share.unpack(tmp_path / "a.tar", "gs://bucket/unpacked", name="b")
    assert store.verify("gs://bucket/unpacked") == []
    assert store.read_manifest("gs://bucket/unpacked", "adapters", "b").digest == saved.digest
    before = names_in(cloud, "unpacked/")
    with pytest.raises(UserError, match=r"already has adapters/b\..*--overwrite"):
        share.unpack(tmp_path / "a.tar", "gs://bucket/unpacked", name="b")
    assert names_in(cloud, "unpacked/") == before


def test_trunk_and_data_are_read_from_a_bucket(
    config: Path, tiny_trunk_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trunk, data = upload(tiny_trunk_folder, "gs://bucket/tiny"), upload(config.parent / "data", "gs://bucket/data")
    runs = []
    for name, options in (("local", ""), ("remote", f",trunk={trunk},data={data}")):
        workdir = "gs://bucket/full" if name == "remote" else str(tmp_path / "full")
        arguments = [f"--config={config}:partition=layernorm,max_steps=2{options}", f"--workdir={workdir}"]
        assert main(["train", *arguments]) == 0
        messages = capsys.readouterr().err
        assert (f"fetching {trunk}" in messages) == (name == "remote")
        assert (
            main(
                ["eval", f"--store={workdir}/store", f"--trunk={workdir}/trunk", "--head=quantity", f"--source={data}"]
            )
            == 0
        )
        runs.append((store.read_manifest(f"{workdir}/store", "heads", "quantity").digest, capsys.readouterr().out))
    assert runs[0] == runs[1]
    architecture = trunk_architecture(str(tiny_trunk_folder), None)
    assert architecture is not None
    assert trunk_architecture(trunk, None) == architecture
    assert trunk_architecture("unknown", epath.Path("gs://bucket/full/trunk")) == architecture
    assert trunk_architecture("gs://bucket/missing", None) is None


def test_dev_file_next_to_a_train_file_is_read_from_a_bucket(config: Path) -> None:
    data = upload(config.parent / "data", "gs://bucket/files")
    for dev in ("dev.jsonl", f"{data}/dev.jsonl", str(config.parent / "data" / "dev.jsonl")):
        task = TaskConfig(name="quantity", source=f"{data}/train.jsonl", dev=dev)
        assert list(load_split(task, "dev").text_a) == [row["text"] for row in ROWS]
    with pytest.raises(UserError, match="gs://bucket/files/nothing"):
        load_split(TaskConfig(name="quantity", source=f"{data}/train.jsonl", dev="nothing.jsonl"), "dev")


def test_folder_is_fetched_again_only_after_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AFJAX_CACHE", str(tmp_path))
    task = TaskConfig(name="t", source="gs://bucket/rows", dev_share=0)
    write_rows(epath.Path("gs://bucket/rows/train.jsonl"))
    for _ in range(2):
        assert len(load_split(task, "train")) == len(ROWS)
    assert capsys.readouterr().err.count("fetching gs://bucket/rows") == 1
    write_rows(epath.Path("gs://bucket/rows/train.jsonl"), ROWS[:2])
    assert len(load_split(task, "train")) == 2
    for setting in ("train", "source"):
        single_file = TaskConfig(
            name="t",
            dev_share=0,
            **{setting: "gs://bucket/rows/train.jsonl"},  # type: ignore[arg-type]
        )
        assert len(load_split(single_file, "train")) == 2
    # An interrupted download leaves no files.
    write_rows(epath.Path("gs://bucket/rows/train.jsonl"), ROWS[:4])
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            load_split(task, "train")
    assert sorted(tmp_path.rglob("*")) == before


def test_object_with_a_path_outside_its_folder_is_refused(tmp_path: Path) -> None:
    """Cloud Storage accepts any name."""
    target = tmp_path / "cache" / "rows"
    source = epath.Path("gs://bucket/rows")
    with pytest.raises(UserError) as raised:
        paths._fetch(None, "bucket/rows", {"bucket/rows/../../out.txt": 1}, target, source)
    assert has_facts(str(raised.value), "gs://bucket/rows", "bucket/rows/../../out.txt")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.skipif(importlib.util.find_spec("array_record") is None, reason="array_record is not installed")
def test_prepared_tfds_dataset_is_read_from_a_bucket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tensorflow_datasets as tfds

    class Quantity(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            label = tfds.features.ClassLabel(names=["few", "many"])
            features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "label": label})
            return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

        def _split_generators(self, _: Any) -> dict[str, Any]:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Iterator[tuple[int, dict[str, Any]]]:
            yield from enumerate(ROWS)

    Quantity(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    folder = upload(tmp_path / "quantity" / "1.0.0", "gs://bucket/tfds/quantity/1.0.0")
    shutil.rmtree(tmp_path / "quantity")
    found = load_split(TaskConfig(name="t", source=f"tfds:{folder}"), "train")
    assert list(found.text_a) == [row["text"] for row in ROWS]
    assert f"fetching {folder}" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"gs://bucket/data .*no dataset_info\.json"):
        load_split(TaskConfig(name="t", source="tfds:gs://bucket/data"), "train")


def test_hugging_face_dataset_is_read_from_a_bucket(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    folder = upload(tmp_path / "saved", "gs://bucket/saved")
    shutil.rmtree(tmp_path / "saved")
    found = load_split(TaskConfig(name="t", source=str(folder), dev_share=0), "train")
    assert list(found.text_a) == [row["text"] for row in ROWS]


# Tests of bad input.


@pytest.fixture
def refused(cloud: Bucket, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Returns a function that runs an invalid command and returns its message.

    The function checks that the exit code is 2, that the message is one line, and that nothing is written.
    """

    def run(*arguments: str) -> str:
        before = {bucket: set(objects) for bucket, objects in cloud.objects.items() if objects}
        capsys.readouterr()
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert {bucket: set(objects) for bucket, objects in cloud.objects.items() if objects} == before
        return err.removeprefix("afjax: ").rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("place", "facts"),
    [
        ("gs://nowhere/x", ("gs://nowhere ", "not exist")),
        (f"gs://{FORBIDDEN}/x", ("(403)", "Storage Object Admin", "gs://for")),
        (f"gs://{PRIVATE}/x", ("credentials", "gcloud auth application-default login")),
        ("gs://", ("unsupported object store",)),
        ("file:///data/store", ("file:///data/store", "without file://")),
        ("s3://bucket/x", ("unsupported object store", "gs://BUCKET/PATH")),
        ("gs://bucket/x#1", ("gs://bucket/x#1 ", '"#"')),
        ("gs://bucket/x*", ("gs://bucket/x* ", '"*"')),
        ("gs://bucket/x?y", ("gs://bucket/x?y ", '"?"')),
        ("gs://bucket/x[1]", ("gs://bucket/x[1] ", '"["')),
        ("gs://bucket/x/../y", ("gs://bucket/x/../y ", '".."')),
        ("gs://bucket/./x", ("gs://bucket/./x ", '"."')),
    ],
)
def test_unusable_paths_are_refused(
    place: str,
    facts: tuple[str, ...],
    config: Path,
    tiny_trunk_folder: Path,
    tmp_path: Path,
    refused: Callable[..., str],
) -> None:
    source = f"--source={config.parent / 'data'}"
    for arguments in (
        ["train", f"--config={config}", f"--workdir={place}"],
        ["train", f"--config={config}", f"--workdir={tmp_path / 'run'}", f"--store={place}"],
        ["store", "ls", f"--store={place}"],
        ["store", "verify", f"--store={place}"],
        ["eval", f"--store={place}", f"--trunk={tiny_trunk_folder}", "--head=x", source],
        ["eval", f"--store={tmp_path}", f"--trunk={place}", "--head=x", source],
        ["table", "pals", f"--runs={place}"],
        ["report", f"--workdir={place}", f"--output={tmp_path / 'report.html'}"],
        ["compare", place, place, source],
    ):
        assert has_facts(refused(*arguments), *facts)
        assert not (tmp_path / "run").exists()


def test_bucket_without_get_permission_is_refused(config: Path, refused: Callable[..., str]) -> None:
    message = refused("train", f"--config={config}", f"--workdir=gs://{OBJECTS_ONLY}/x")
    assert has_facts(message, "storage.buckets.get ", f"gs://{OBJECTS_ONLY}; ")


def test_remote_paths_are_refused_for_flags_that_need_local_paths(config: Path, refused: Callable[..., str]) -> None:
    message = refused("sweep", f"--config={config}", "--workdir=gs://bucket/sweep")
    assert has_facts(message, "--workdir is gs://bucket/sweep", "object store")
    message = refused("data", "show", "rte", "--data_dir=gs://bucket/glue")
    assert has_facts(message, "data_dir is gs://bucket/glue", "object store")
    message = refused("data", "show", "gs://bucket/mine.toml")
    assert has_facts(message, "task file is gs://bucket/mine.toml", "object store")


@pytest.mark.parametrize(
    "command",
    [
        "report --workdir=x --output",
        "table pals --runs=x --output",
        "plot tradeoff --runs=x --output",
        "plot activations --store=x --fusion=f --source=y --output",
        "plot spans --store=x --adapter=a --source=y --output",
        "export adapterhub --store=x --name=a --output",
        "predict --store=x --adapter=a --input",
        "submit --benchmark=glue --store=x --output=y --data_dir",
    ],
)
def test_remote_files_are_refused_for_flags_that_need_local_files(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split()[:-1], f"{command.split()[-1]}=gs://bucket/file"])
    assert ended.value.code == 2
    assert has_facts(capsys.readouterr().err.splitlines()[-1], command.split()[-1], "gs://bucket/file ", "local path")


def test_missing_gcsfs_is_reported(config: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    message = refused("train", f"--config={config}", "--workdir=gs://bucket/other")
    assert has_facts(message, "gs://bucket/other", "gcsfs", "pip install 'afjax[gcs]'")
    assert "pip install 'afjax[gcs]'" in refused("store", "ls", "--store=gs://bucket/store")


def test_bucket_error_during_a_run_is_reported(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def expired(*arguments: object) -> None:
        raise HttpError({"code": 401, "message": "Invalid Credentials"})

    with monkeypatch.context() as patch:
        patch.setattr("afjax.train.logs.write_text", expired)
        assert main(["train", f"--config={config}:max_steps=2", "--workdir=gs://bucket/expired"]) == 2
    assert has_facts(capsys.readouterr().err.splitlines()[-1], "(Invalid Credentials, 401)", "credentials")


def unavailable(*arguments: object) -> None:
    raise HttpError({"code": 503, "message": "Service Unavailable"})


@pytest.mark.parametrize(
    "failing",
    [
        "afjax.train.logs.write_text",
        "afjax.train.record.write_json",
        "afjax.store.saving._write",
        "afjax.store.checkpoint._checkpointer",
        "afjax.store.files.read_current",
        "orbax.checkpoint.CheckpointManager.wait_until_finished",
    ],
)
def test_temporary_failure_during_a_run_has_its_own_exit_code(
    failing: str,
    config: Path,
    cloud: Bucket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["train", f"--config={config}:max_steps=2", f"--workdir=gs://bucket/{failing}"]
    with monkeypatch.context() as patch:
        patch.setattr(failing, unavailable)
        assert main(arguments) == 1
    errors = capsys.readouterr().err
    assert has_facts(errors.splitlines()[-1], "503", "again")
    assert "Free up space" not in errors
    assert "Traceback" not in errors
    # The same command then finishes the run.
    assert main(arguments) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (HttpError({"code": 503, "message": "Service Unavailable"}), 1),
        (HttpError({"code": 429, "message": "Too Many Requests"}), 1),
        (HttpError({"code": 403, "message": "Forbidden"}), 2),
        (HttpError({"code": 412, "message": "Precondition Failed"}), 2),
        (ChecksumError("The digests differ."), 1),
        (aiohttp.ClientConnectionError("Connect call failed"), 1),
        (aiohttp.ServerTimeoutError(), 1),
        (TimeoutError(), 1),
        (TransportError(OSError("no route")), 1),
        (ServiceUnavailable("busy"), 1),
        (Forbidden("no"), 2),
        (requests.exceptions.ProxyError(), 1),
        (aiohttp.InvalidURL("gs"), 2),
        (DefaultCredentialsError("no credentials"), 2),
        (OSError(28, "No space left on device", "file"), 2),
        (TimeoutError(110, "Connection timed out", "file"), 2),
    ],
)
def test_exit_code_tells_temporary_failures_from_others(error: Exception, code: int) -> None:
    given, message = explain(error) or (0, "")
    assert given == code
    assert "()" not in message
    assert is_temporary(error) == (code == 1)
    assert isinstance(file_error("F", error, cause="c", advice="A."), TemporaryError) == (code == 1)


def test_error_with_a_temporary_cause_is_temporary() -> None:
    error = UserError("The artifact cannot be read; train it again.")
    error.__cause__ = HttpError({"code": 503, "message": "Service Unavailable"})
    code, message = explain(error) or (0, "")
    assert code == 1
    assert has_facts(message, "train it again.", "failed", "run the same command again")


def test_tensorstore_reports_temporary_failures_by_their_status() -> None:
    assert is_temporary(ValueError("UNAVAILABLE: Error writing gs://bucket/x"))
    assert not is_temporary(ValueError("NOT_FOUND: Error opening gs://bucket/x"))


def test_home_folder_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell does not expand it in ``--workdir=~/runs``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("~/runs/x", Path("~/runs/x")):
        assert os.fspath(paths.open_path(path)) == f"{tmp_path}/runs/x"


def test_bucket_in_a_pathlib_path_is_refused() -> None:
    """``pathlib.Path`` turns ``gs://bucket`` into the local path ``gs:/bucket``."""
    with pytest.raises(UserError, match="gs:/bucket/run"):
        paths.open_path(Path("gs://bucket/run"))
    # Sources have schemes too.
    assert str(paths.open_path("tfds:/data/rte")) == "tfds:/data/rte"


def test_local_paths_are_unchanged(tmp_path: Path) -> None:
    assert paths.fetched(tmp_path / "x") == tmp_path / "x"
    assert not paths.is_remote("tfds:gs://bucket/x")
    assert os.fspath(paths.open_path("runs/x")) == "runs/x"
    assert paths.absolute(paths.open_path("runs/x")) == epath.Path(os.getcwd()) / "runs" / "x"
