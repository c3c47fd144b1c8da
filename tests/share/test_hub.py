"""Artifacts are pushed to and pulled from a fake hub.

The fake hub has the arguments and errors of the real client.
"""

import contextlib
import errno
import fnmatch
import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, ModelCard, errors
from made_store import HOME, digests, save

from afjax import share, store
from afjax.share import hub

Refused = Callable[..., contextlib.AbstractContextManager[None]]


class Hub:
    """A fake hub with repositories in memory.

    Calls must match the signatures of the real client's methods.
    """

    def __init__(self) -> None:
        self.commits: dict[str, list[dict[str, bytes]]] = {}
        self.private: dict[str, bool] = {}
        self.calls: list[str] = []
        self.sizes: dict[str, int] = {}
        self.error: Exception | None = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        signature, method = inspect.signature(getattr(HfApi, name)), getattr(type(self), f"do_{name}")

        def call(**kwargs: Any) -> Any:
            signature.bind(None, **kwargs)
            self.calls.append(name)
            if self.error:
                raise self.error
            return method(self, **kwargs)

        return call

    def do_create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> str:
        assert exist_ok
        if repo_id not in self.commits:
            self.commits[repo_id], self.private[repo_id] = [{".gitattributes": b""}], bool(private)
        return f"https://huggingface.co/{repo_id}"

    def do_repo_info(self, repo_id: str, revision: str | None = None, files_metadata: bool = False) -> Any:
        number = len(self.commits[repo_id]) - 1 if revision is None else int(revision)
        siblings = [
            SimpleNamespace(rfilename=path, size=self.sizes.get(path, len(contents)) if files_metadata else None)
            for path, contents in self.commits[repo_id][number].items()
        ]
        return SimpleNamespace(sha=str(number), private=self.private[repo_id], siblings=siblings)

    def do_create_commit(self, repo_id: str, operations: list, commit_message: str, parent_commit: str) -> None:
        assert parent_commit == str(len(self.commits[repo_id]) - 1)
        files = dict(self.commits[repo_id][-1])
        for operation in operations:
            if isinstance(operation, CommitOperationAdd):
                files[operation.path_in_repo] = Path(operation.path_or_fileobj).read_bytes()
            else:
                assert isinstance(operation, CommitOperationDelete)
                del files[operation.path_in_repo]
        self.commits[repo_id].append(files)

    def do_snapshot_download(self, repo_id: str, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        for path, contents in self.commits[repo_id][int(revision)].items():
            if any(fnmatch.fnmatch(path, pattern) for pattern in allow_patterns):
                (local_dir / path).parent.mkdir(parents=True, exist_ok=True)
                (local_dir / path).write_bytes(contents)
        # The real client stores metadata in this folder.
        (local_dir / ".cache" / "huggingface").mkdir(parents=True, exist_ok=True)


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Replaces the client of the hub with a fake hub, and returns the fake hub."""
    fake = Hub()
    monkeypatch.setattr(hub, "_client", lambda: fake)
    return fake


def test_pushed_artifacts_can_be_pulled(example_store: Path, tmp_path: Path, fake_hub: Hub) -> None:
    assert share.push(example_store, "both", "me/both", license="mit", private=True) == "https://huggingface.co/me/both"
    files = fake_hub.commits["me/both"][-1]
    assert fake_hub.private["me/both"]
    assert len(fake_hub.commits["me/both"]) == 2
    assert HOME.encode() not in b"".join(files.values())
    card = ModelCard(files["README.md"].decode())
    assert card.data.license == "mit"
    assert "afjax store pull me/both --store=store" in card.text
    files["picture.png"] = files["docs/more.md"] = b"unrelated"
    manifests = share.pull("me/both", tmp_path / "new", name="mixed")
    assert (manifests[-1].kind, manifests[-1].name) == ("fusion", "mixed")
    before = digests(example_store)
    assert digests(tmp_path / "new") == {
        "adapters/mnli": before["adapters/mnli"],
        "adapters/rte": before["adapters/rte"],
        "fusion/mixed": before["fusion/both"],
        "heads/mixed": before["heads/both"],
    }
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [".lock", "adapters", "fusion", "heads"]


def test_pushing_again_replaces_the_files(source: Path, tmp_path: Path, fake_hub: Hub) -> None:
    share.push(source, "rte", "me/rte")
    fake_hub.commits["me/rte"][-1]["picture.png"] = b""
    shutil.rmtree(source / "heads" / "rte")
    save(source, "adapters", "rte", 9, overwrite=True)
    share.push(source, "rte", "me/rte")
    assert [path for path in fake_hub.commits["me/rte"][-1] if path.startswith("heads")] == []
    assert "picture.png" in fake_hub.commits["me/rte"][-1]
    (newest,) = share.pull("me/rte", tmp_path / "new")
    assert newest.digest == store.read_manifest(source, "adapters", "rte").digest
    *_, older = share.pull("me/rte", tmp_path / "older", revision="1")
    assert older.digest != newest.digest


def test_unrelated_repository_is_not_changed(example_store: Path, fake_hub: Hub, refused: Refused) -> None:
    share.push(example_store, "both", "me/x")
    for name in ("rte", "mnli"):
        with refused("me/x ", "fusion/both", f"adapters/{name}", "--repo"):
            share.push(example_store, name, "me/x")
    fake_hub.do_create_repo("me/bert", None, True)
    fake_hub.commits["me/bert"][-1] |= {"config.json": b"{}", "model.safetensors": b""}
    with refused("me/bert ", "config.json, model.safetensors", "adapters/rte", "--repo"):
        share.push(example_store, "rte", "me/bert")
    with refused("me/x ", "public", "--private"):
        share.push(example_store, "both", "me/x", private=True)
    assert (len(fake_hub.commits["me/x"]), len(fake_hub.commits["me/bert"])) == (2, 1)


def test_artifact_that_cannot_be_packed_makes_no_hub_calls(source: Path, fake_hub: Hub, refused: Refused) -> None:
    (source / "adapters" / "mnli" / "manifest.json").unlink()
    with refused('needs the adapter "mnli"'):
        share.push(source, "both", "me/both")
    with refused("The license"):
        share.push(source, "rte", "me/rte", license="?")
    assert fake_hub.calls == []


@pytest.mark.parametrize("name", ["rte", "me/rte/x", "me/", "/rte", "me/r te", "../rte", "me/--rte", "https://hf.co/x"])
def test_invalid_repository_names_are_refused(
    example_store: Path, tmp_path: Path, fake_hub: Hub, refused: Refused, name: str
) -> None:
    with refused(f'"{name}"', "USER/REPO", "me/rte"):
        share.push(example_store, "rte", name)
    with refused(f'"{name}"', "USER/REPO", "me/rte"):
        share.pull(name, tmp_path / "new")
    assert fake_hub.calls == []


@pytest.mark.parametrize(
    ("path", "facts"),
    [
        ("adapters/../../evil", ("adapters/../../evil", "escapes")),
        ("heads/x,y/manifest.json", ("cannot be used",)),
        ("adapters/readme.txt", ("adapters/readme.txt", "does not belong")),
        ("heads/more/params/x", ("heads/more, ", "manifest.json")),
    ],
)
def test_listing_is_checked_before_anything_is_downloaded(
    example_store: Path, tmp_path: Path, fake_hub: Hub, refused: Refused, path: str, facts: tuple[str, ...]
) -> None:
    share.push(example_store, "rte", "me/rte")
    fake_hub.commits["me/rte"][-1][path] = b""
    fake_hub.calls.clear()
    with refused(*facts):
        share.pull("me/rte", tmp_path / "new")
    assert fake_hub.calls == ["repo_info"]


def test_manifests_are_checked_before_other_files_are_downloaded(
    example_store: Path, tmp_path: Path, fake_hub: Hub, refused: Refused
) -> None:
    share.push(example_store, "rte", "me/rte")
    files = fake_hub.commits["me/rte"][-1]
    fake_hub.calls.clear()
    fake_hub.sizes = {"adapters/rte/manifest.json": 2**30}
    with refused(f"{2**30} bytes", "manifest"):
        share.pull("me/rte", tmp_path / "new")
    fake_hub.sizes = {"adapters/rte/params/output.kernel/0.0": 2**40}
    with refused("manifest", "40 bytes of parameters"):
        share.pull("me/rte", tmp_path / "new")
    fake_hub.sizes = {}
    files["adapters/rte/params/more"] = b""
    with refused("+ unexpected): +params/more"):
        share.pull("me/rte", tmp_path / "new")
    assert fake_hub.calls == ["repo_info", *["repo_info", "snapshot_download"] * 2]
    del files["adapters/rte/params/more"]
    files["adapters/rte/params/output.kernel/0.0"] = b"damaged"
    with refused("me/rte/adapters/rte: ", '"output/kernel"', "changed"):
        share.pull("me/rte", tmp_path / "new")
    fake_hub.commits["me/rte"][-1] = {"README.md": b""}
    with refused("me/rte ", "no adapter", "afjax store pack"):
        share.pull("me/rte", tmp_path / "new")


def http_error(kind: type[errors.HfHubHTTPError], status: int) -> Exception:
    response = SimpleNamespace(headers={}, status_code=status, request=None)
    return kind(f"{status} from the server\nwith details", response=response)


@pytest.mark.parametrize(
    ("error", "facts"),
    [
        (http_error(errors.RepositoryNotFoundError, 404), ("not exist", "access", "hf auth login")),
        (http_error(errors.GatedRepoError, 403), ("gated", "access")),
        (http_error(errors.RevisionNotFoundError, 404), ("no such revision",)),
        (http_error(errors.HfHubHTTPError, 401), ("hf auth login",)),
        (http_error(errors.HfHubHTTPError, 403), ("permission denied (403)",)),
        (http_error(errors.BadRequestError, 400), ("(400: 400 from the server)", "again")),
        (errors.LocalTokenNotFoundError("none"), ("not logged in", "hf auth login")),
        (errors.OfflineModeIsEnabled("offline"), ("(OfflineModeIsEnabled: offline)", "network")),
        (errors.HTTPError("no route"), ("network",)),
        (OSError(errno.ENOSPC, "No space left on device"), ("(No space left on device)", "disk")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_hub_errors_are_explained(
    example_store: Path, tmp_path: Path, fake_hub: Hub, refused: Refused, error: Exception, facts: tuple[str, ...]
) -> None:
    fake_hub.error = error
    with refused(*facts):
        share.pull("me/rte", tmp_path / "new")
    with refused(*facts):
        share.push(example_store, "rte", "me/rte")


def test_real_client_sets_the_library_name() -> None:
    assert isinstance(hub._client(), huggingface_hub.HfApi)
    assert hub._client().library_name == "afjax"
