"""--trunk and --head default to the store's records, and mistyped commands get a suggestion."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from facts import has_facts

from afjax import store as artifacts
from afjax.cli.main import main
from tests.cli.conftest import Refused


def copy_head(store: Path, name: str, new: str, **changes: Any) -> None:
    """Saves a copy of a stored head under a new name or with a changed manifest."""
    head = artifacts.load(store, "heads", name)
    fields = ("config", "trunk", "task", "labels", "metrics", "seed", "trained_with")
    values = {field: getattr(head.manifest, field) for field in fields}
    artifacts.save(store, artifacts.Draft("heads", new, head.params, **{**values, **changes}), overwrite=True)


@pytest.mark.parametrize("flag", ["--fusion=target-fusion", "--adapter=first"])
def test_eval_and_predict_read_trunk_and_head_from_the_store(
    flag: str, store: Path, data: Path, tiny_trunk_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"--trunk={tiny_trunk_folder}", f"--head={flag.partition('=')[2]}"]
    shared = [f"--store={store}", flag]
    assert main(["eval", *shared, *given, f"--source={data}"]) == 0
    expected = capsys.readouterr()
    assert main(["eval", *shared, f"--source={data}"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out) == json.loads(expected.out)
    # The command logs the values it chose, but not the values of flags.
    assert str(tiny_trunk_folder) in found.err
    assert str(tiny_trunk_folder) not in expected.err
    rows = f"--input={data / 'dev.jsonl'}"
    assert main(["predict", *shared, rows, f"--output={tmp_path / 'one.jsonl'}"]) == 0
    assert main(["predict", *shared, *given, rows, f"--output={tmp_path / 'two.jsonl'}"]) == 0
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_single_matching_head_is_selected(
    store: Path, data: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", f"--store={store}", "--adapter=first", f"--source={data}"]
    copy_head(store, "first", "other")
    shutil.rmtree(store / "heads" / "first")
    assert main(words) == 0
    assert '"other"' in capsys.readouterr().err
    copy_head(store, "other", "third")
    assert has_facts(refused(*words), "--head", "other, third")
    for name in ("other", "third"):
        shutil.rmtree(store / "heads" / name)
    assert has_facts(refused(*words), "no head ", 'adapter "first"', "--head")


def test_command_without_a_model_is_refused(store: Path, data: Path, refused: Refused) -> None:
    sentence = refused("eval", f"--store={store}", f"--source={data}")
    assert all(flag in sentence for flag in ("--adapter", "--fusion", "--head"))
    assert 'Did you mean "first"?' in refused("eval", f"--store={store}", "--adapter=frist", f"--source={data}")


def test_missing_recorded_trunk_is_refused_and_the_flag_suggested(
    store: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = artifacts.load(store, "adapters", "first")
    trunk = {**adapter.manifest.trunk, "name": str(tmp_path / "gone")}
    artifacts.save(
        store,
        artifacts.Draft("adapters", "first", adapter.params, config=adapter.manifest.config, trunk=trunk),
        overwrite=True,
    )
    assert main(["eval", f"--store={store}", "--adapter=first", f"--source={data}"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert str(tmp_path / "gone") in last
    assert "--trunk" in last


def test_activations_need_a_source_for_a_fusion_trained_from_python(
    store: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plot", "activations", f"--store={store}", "--fusion=target-fusion", f"--output={tmp_path / 'figure'}"]
    # Runs from Python take their rows as lists, so their tasks have no source.
    task = artifacts.read_manifest(store, "heads", "target-fusion").task
    copy_head(store, "target-fusion", "target-fusion", task={**task, "source": ""})
    assert main(words) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "pass --source" in last
    assert '"target-fusion"' in last
    assert not list(tmp_path.glob("figure*"))
    assert main([*words, f"--source={data}"]) == 0
    assert (tmp_path / "figure.csv").is_file()


# Mistyped commands.


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["trian"], "train"),
        (["predct", "--store=x"], "predict"),
        (["store", "unpakc"], "store unpack"),
        (["plot", "activation"], "plot activations"),
        (["import", "adapterhb"], "import adapterhub"),
        (["export", "stablehl"], "export stablehlo"),
    ],
)
def test_mistyped_command_gets_a_suggestion(words: list[str], suggestion: str, refused: Refused) -> None:
    sentence = refused(*words)
    assert f'"{" ".join(words[:2] if len(suggestion.split()) == 2 else words[:1])}"' in sentence
    assert f'Did you mean "{suggestion}"?' in sentence


@pytest.mark.parametrize(
    ("words", "suggestion"),
    [
        (["data", "shwo"], "show"),
        (["submit", "gleu", "--store=x", "--trunk=x", "--data_dir=x", "--output=x"], "glue"),
        (["eval", "--store=x", "--source=x", "--adaptr=x"], "--adapter"),
        (["store", "ls", "--store=x", "--stor=x"], "--store"),
    ],
)
def test_mistyped_subcommand_or_flag_gets_a_suggestion(
    words: list[str], suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2
    assert f'Did you mean "{suggestion}"?' in capsys.readouterr().err


def test_commands_run_with_closed_streams(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python sets a stream to None if it is closed when the process starts, as by ``2>&-``."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", None)
        assert main(["store", "ls", f"--store={store}"]) == 0
        sys.stdout.close()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", None)
        assert main(["store", "ls", f"--store={store / 'none'}"]) == 2
        sys.stderr.close()
    assert capsys.readouterr() == ("", "")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    import afjax

    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"afjax {afjax.__version__}\n"
