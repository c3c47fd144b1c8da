"""Tests of ``afjax store pack``, ``unpack``, ``push`` and ``pull``."""

import shutil
from pathlib import Path

import pytest
from facts import has_facts
from made_store import save

from afjax import share, store
from afjax.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["store", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.rstrip("\n")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["store", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("afjax: ")
    assert err.count("\n") == 1
    return err


def test_pack_and_unpack(example_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, new = tmp_path / "x.tar", tmp_path / "new"
    text = run(capsys, "pack", "rte", f"--store={example_store}", f"--output={file}", "--license=mit")
    assert has_facts(text, f"{file} ", "adapters/rte, heads/rte, ", " kB, ", "trunk ./mine ", "ab" * 32)
    text = run(capsys, "unpack", str(file), f"--store={new}", "--name=mine")
    assert has_facts(text, f"{new} ", "adapters/mine, heads/mine, ")
    assert run(capsys, "verify", f"--store={new}").splitlines() == ["adapters/mine: ok", "heads/mine: ok"]
    message = refused(capsys, "unpack", str(file), f"--store={new}", "--name=mine")
    assert has_facts(message, "already has adapters/mine", "--overwrite", "--name")
    run(capsys, "unpack", str(file), f"--store={new}", "--name=mine", "--overwrite")
    text = run(capsys, "pack", "mnli", f"--store={example_store}", f"--output={file}")
    assert has_facts(text, 'No head "mnli"', "not predict")
    message = refused(capsys, "pack", "rte", f"--store={tmp_path / 'x'}", f"--output={file}")
    assert has_facts(message, "no store", str(tmp_path / "x"))
    assert "No such file" in refused(capsys, "unpack", str(tmp_path / "no.tar"), f"--store={new}")


def test_control_characters_in_labels_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "store", "adapters", "rte", labels=("fine", "\x1b[2J\nadapters/all: ok"))
    text = run(capsys, "show", "rte", f"--store={tmp_path / 'store'}")
    assert "labels       fine, \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}adapters/all: ok" in text


def test_push_and_pull_pass_their_flags(
    example_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple] = []

    def push(path: str, name: str, repository: str, **options: object) -> str:
        calls.append((path, name, repository, options))
        return "https://huggingface.co/me/rte"

    def pull(repository: str, path: str, **options: object) -> tuple[store.Manifest, ...]:
        calls.append((repository, path, options))
        return (store.read_manifest(example_store, "adapters", "rte"),)

    monkeypatch.setattr(share, "push", push)
    monkeypatch.setattr(share, "pull", pull)
    arguments = ["push", "rte", "--store=s", "--repo=me/rte", "--private", "--license=mit", "--kind=adapters"]
    assert run(capsys, *arguments) == "https://huggingface.co/me/rte"
    out = run(capsys, "pull", "me/rte", "--store=s", "--revision=v1", "--name=mine", "--overwrite")
    assert has_facts(out, "s ", "adapters/rte, ")
    assert calls == [
        ("s", "rte", "me/rte", {"kind": "adapters", "head": "", "license": "mit", "private": True}),
        ("me/rte", "s", {"revision": "v1", "name": "mine", "overwrite": True}),
    ]


def test_invalid_repository_is_refused_without_network(example_store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be USER/REPO" in refused(capsys, "push", "rte", f"--store={example_store}", "--repo=rte")
    assert "must be USER/REPO" in refused(capsys, "pull", "rte", f"--store={example_store}")


@pytest.mark.parametrize("action", ["ls", "show", "verify", "pack", "unpack", "push", "pull"])
def test_help_shows_an_example(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["store", action, "--help"])
    assert raised.value.code == 0
    assert f"afjax store {action} " in capsys.readouterr().out.split("example", 1)[1]


def test_unknown_action_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert 'Did you mean "store pack"' in refused(capsys, "pck")


@pytest.mark.parametrize(
    "arguments", [["pack", "rte", "--store=x"], ["unpack", "--store=x"], ["push", "rte", "--store=x"]]
)
def test_missing_flags_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["store", *arguments])
    assert raised.value.code == 2


def test_unwritable_store_is_refused(example_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    share.pack(example_store, "rte", tmp_path / "x.tar")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, "unpack", str(tmp_path / "x.tar"), f"--store={tmp_path / 'file'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "x.tar"]
    shutil.copytree(example_store, tmp_path / "s")
    message = refused(capsys, "unpack", str(tmp_path / "x.tar"), "--store=s3://bucket/x")
    assert has_facts(message, "s3://bucket/x ", "unsupported object store")
