"""What the README shows runs as it is written, on a tiny trunk and for a few steps."""

import json
import re
import shlex
from pathlib import Path

import jax
import pytest

from afjax.cli.main import main
from afjax.data.builtin import builtin_rows

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFJAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    pairs = [{"text_a": "All cats sleep.", "text_b": "Some cats sleep."}, {"text_a": "A", "text_b": "B"}]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in pairs))
    return tmp_path


def test_python_examples(folder: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training, several, reuse = blocks("python")
    assert len([line for line in training.splitlines() if line.strip()]) <= 15
    # One padded length is one compilation.
    few_steps = training.replace('"minilm"', repr(str(tiny_trunk_folder))).replace(
        "epochs=2", "max_steps=2, buckets=(32,)"
    )
    names: dict = {}
    exec(few_steps, names)
    accuracy, label = capsys.readouterr().out.split(maxsplit=1)
    assert 0 <= float(accuracy) <= 1
    assert label.strip() in [f"['{name}']" for name in builtin_rows("target", "train").label_names]
    exec(several, names)
    accuracy, digest = capsys.readouterr().out.split()
    assert 0 <= float(accuracy) <= 1
    assert digest == names["models"]["paraphrase"].trunk.sha256 != names["trunk"].sha256
    with jax.numpy_rank_promotion("allow"):  # The reader's own code need not be as strict as ours.
        exec(reuse, {})
    assert capsys.readouterr().out.startswith("(1, ")


def test_commands(folder: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("afjax ")]
    run = [line for line in lines if "DATA" not in line]
    commands = {
        "train",
        "eval",
        "predict",
        "adapterdrop",
        "prune",
        "store",
        "bench",
        "data",
        "export",
        "import",
        "table",
    }
    assert {shlex.split(line)[1] for line in run} == commands
    for line in run:
        words = shlex.split(line.replace("minilm", str(tiny_trunk_folder)))[1:]
        if words[0] == "train":
            words += [f"--config.trunk={tiny_trunk_folder}", "--config.train.max_steps=1"]
            words += [f"--config.sources.{name}.train.max_steps=1" for name in ("entail", "paraphrase", "target")]
        assert main(words) == 0, (line, capsys.readouterr().err)
    assert len((folder / "predictions.jsonl").read_text().splitlines()) == 2


def test_files_named_in_the_readme_exist() -> None:
    for name in re.findall(r"`((?:afjax|configs|docs|bench|launch)/[\w./]+)`", README):
        assert (ROOT / name).exists(), name
