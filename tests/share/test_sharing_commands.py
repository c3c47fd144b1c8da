"""Tests the commands ``afjax store pack``, ``unpack``, ``push`` and ``pull``."""

import shutil
from pathlib import Path

import pytest
from facts import has_facts
from made_store import save

from afjax import share, store
from afjax.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["store", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.rstrip("\n")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["store", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("afjax: ")
    assert err.count("\n") == 1
    return err


def test_pack_and_unpack(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, new = tmp_path / "x.tar", tmp_path / "new"
    text = run(capsys, "pack", "rte", f"--store={made}", f"--output={file}", "--license=mit")
    assert has_facts(text, f"{file} ", "adapters/rte, heads/rte, ", " kB, ", "trunk ./mine ", "ab" * 32)
    text = run(capsys, "unpack", str(file), f"--store={new}", "--name=mine")
    assert has_facts(text, f"{new} ", "adapters/mine, heads/mine, ")
    assert run(capsys, "verify", f"--store={new}").splitlines() == ["adapters/mine: ok", "heads/mine: ok"]
    sentence = refused(capsys, "unpack", str(file), f"--store={new}", "--name=mine")
    assert has_facts(sentence, "already has adapters/mine", "--overwrite", "--name")
    run(capsys, "unpack", str(file), f"--store={new}", "--name=mine", "--overwrite")
    text = run(capsys, "pack", "mnli", f"--store={made}", f"--output={file}")
    assert has_facts(text, 'No head "mnli"', "not predict")
    sentence = refused(capsys, "pack", "rte", f"--store={tmp_path / 'x'}", f"--output={file}")
    assert has_facts(sentence, "no store", str(tmp_path / "x"))
    assert "No such file" in refused(capsys, "unpack", str(tmp_path / "no.tar"), f"--store={new}")


def test_control_characters_in_labels_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "store", "adapters", "rte", labels=("fine", "\x1b[2J\nadapters/all: ok"))
    text = run(capsys, "show", "rte", f"--store={tmp_path / 'store'}")
    assert "labels       fine, \N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}adapters/all: ok" in text


def test_push_and_pull_pass_their_flags(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple] = []

    def push(path: str, name: str, repository: str, **options: object) -> str:
        calls.append((path, name, repository, options))
        return "https://huggingface.co/me/rte"

    def pull(repository: str, path: str, **options: object) -> tuple[store.Manifest, ...]:
        calls.append((repository, path, options))
        return (store.read_manifest(made, "adapters", "rte"),)

    monkeypatch.setattr(share, "push", push)
    monkeypatch.setattr(share, "pull", pull)
    words = ["push", "rte", "--store=s", "--repo=me/rte", "--private", "--license=mit", "--kind=adapters"]
    assert run(capsys, *words) == "https://huggingface.co/me/rte"
    out = run(capsys, "pull", "me/rte", "--store=s", "--revision=v1", "--name=mine", "--overwrite")
    assert has_facts(out, "s ", "adapters/rte, ")
    assert calls == [
        ("s", "rte", "me/rte", {"kind": "adapters", "license": "mit", "private": True}),
        ("me/rte", "s", {"revision": "v1", "name": "mine", "overwrite": True}),
    ]


def test_invalid_repository_is_refused_without_network(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "must be USER/REPO" in refused(capsys, "push", "rte", f"--store={made}", "--repo=rte")
    assert "must be USER/REPO" in refused(capsys, "pull", "rte", f"--store={made}")


@pytest.mark.parametrize("action", ["ls", "show", "verify", "pack", "unpack", "push", "pull"])
def test_help_shows_an_example(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["store", action, "--help"])
    assert raised.value.code == 0
    assert f"afjax store {action} " in capsys.readouterr().out.split("example", 1)[1]


def test_unknown_action_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert 'Did you mean "store pack"' in refused(capsys, "pck")


@pytest.mark.parametrize("words", [["pack", "rte", "--store=x"], ["unpack", "--store=x"], ["push", "rte", "--store=x"]])
def test_missing_flags_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["store", *words])
    assert raised.value.code == 2


def test_unwritable_store_is_refused(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    share.pack(made, "rte", tmp_path / "x.tar")
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, "unpack", str(tmp_path / "x.tar"), f"--store={tmp_path / 'file'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "x.tar"]
    shutil.copytree(made, tmp_path / "s")
    sentence = refused(capsys, "unpack", str(tmp_path / "x.tar"), "--store=s3://bucket/x")
    assert has_facts(sentence, "s3://bucket/x ", "unsupported object store")
