"""The examples in the README and in a tutorial run as written, with a tiny trunk and few steps."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import afjax
from afjax.cli.main import main
from afjax.data.sources.builtin import builtin_rows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
AT_THE_TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PAGES = (*(ROOT / name for name in AT_THE_TOP), *sorted((ROOT / "docs").rglob("*.md")))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    words, labels = ("all", "some", "no", "most"), ("yes", "no")
    reviews = [f"{word} cats and {other} dogs,{labels[word == other]}\n" for word in words for other in words]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(reviews))
    (tmp_path / "new.csv").write_text("text\nall cats\nno dogs\n")
    return tmp_path


def test_python_example(folder: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (training,) = blocks("README.md", "python")
    assert len([line for line in training.splitlines() if line.strip()]) <= 15
    program = training.replace('"minilm"', repr(str(tiny_trunk_folder)))
    names: dict = {}
    exec(re.sub(r"epochs=\w+", "max_steps=2", program), names)
    accuracy, label = capsys.readouterr().out.split(maxsplit=1)
    assert float(accuracy) == names["fused"].evaluate(afjax.load_task(names["task"])["dev"])["accuracy"]
    assert label.strip() in [f"['{name}']" for name in builtin_rows("target", "train").label_names]


def test_building_blocks(folder: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    training, module = blocks("docs/tutorials/training_loop.md", "python")
    lines = [line for line in training.splitlines() if line.strip() and not line.startswith("import")]
    assert len(lines) <= 30
    trunk = repr(str(tiny_trunk_folder))
    few = 'load_task(task); rows["train"] = rows["train"].take(range(64))'
    names: dict = {}
    exec(training.replace('"minilm"', trunk).replace("load_task(task)", few), names)
    assert float(capsys.readouterr().out) == names["model"].evaluate(names["rows"]["dev"])["accuracy"]
    assert np.isfinite(names["value"])
    found = afjax.load_task_model("store", names["trunk"], head="entail", adapter="entail").evaluate(
        names["rows"]["dev"]
    )
    assert found == names["model"].evaluate(names["rows"]["dev"])
    exec(module.replace('"minilm"', trunk), names)
    assert names["scores"].shape == (1,)


def test_commands(folder: Path, tiny_trunk_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("README.md", "bash") for line in block.splitlines() if line.startswith("afjax ")]
    assert [shlex.split(line)[1] for line in lines] == ["train", "predict"]
    for line in lines:
        words = shlex.split(line)[1:]
        if words[0] == "train":
            words += [f"--config.trunk={tiny_trunk_folder}", "--config.train.max_steps=1"]
        assert main(words) == 0, (line, capsys.readouterr().err)
    assert len((folder / "predictions.jsonl").read_text().splitlines()) == 2


def test_files_named_in_pages_exist() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:afjax|bench|configs|docs|launch|tests)/[\w./]+)`", text):
            assert "NAME" in name or (ROOT / name).exists(), (page.name, name)


def test_links_between_pages_are_valid() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            if target.startswith(("http", "mailto")):
                continue
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page
            assert linked.exists(), (page.name, target)
            if anchor:
                headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE)
                anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
                assert anchor in anchors, (page.name, target)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 130
