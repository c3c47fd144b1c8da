"""The code on user-facing pages runs as written, with a tiny trunk and few steps."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_runner import ROOT, blocks, run_line, run_page

import afjax

pytestmark = pytest.mark.slow

FOLDERS = ("get_started", "tutorials", "how_to")
# tests/interop/test_reuse.py and tests/test_readme.py run these pages' blocks.
TESTED_ELSEWHERE = ("reuse", "training_loop")
PAGES = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / "docs" / folder).glob("*.md"))
    if path.stem not in TESTED_ELSEWHERE
] + [ROOT / "docs" / "index.md"]
WITH_CODE = [page for page in PAGES if any(block.runs for block in blocks(page))]
QUICKSTART = "runs/quickstart"


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory, tiny_trunk_folder: Path) -> Path:
    """Trains the quickstart, and returns its working folder."""
    folder = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        line = f"afjax train --config=quickstart --workdir={QUICKSTART}"
        run_line(line, tiny_trunk_folder, where="the quickstart")
    return folder


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates a page's working folder, with reviews.csv (texts and labels) and new.csv (texts)."""
    monkeypatch.chdir(tmp_path)
    words, labels = ("all", "some", "no", "most"), ("positive", "negative")
    reviews = [f"{word} cats and {other} dogs,{labels[word == other]}\n" for word in words for other in words]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(reviews))
    (tmp_path / "new.csv").write_text("text\nall cats\nno dogs\n")
    return tmp_path


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_page_runs(page: Path, folder: Path, quickstart: Path, tiny_trunk_folder: Path) -> None:
    if page.parent.name == "how_to" and QUICKSTART in page.read_text(encoding="utf-8"):
        shutil.copytree(quickstart / QUICKSTART, folder / QUICKSTART)
    names = run_page(page, tiny_trunk_folder)
    if page.stem in CHECKS:
        CHECKS[page.stem](names)


def check_several_tasks(names: dict[str, Any]) -> None:
    models = names["models"]
    for name, model in models.items():
        evaluated = model.evaluate(names["rows"][name]["dev"])
        assert model.metrics == {**evaluated, "step": model.metrics["step"]}
    assert models["entail"].trunk.sha256 == models["paraphrase"].trunk.sha256 != names["trunk"].sha256


def check_export(names: dict[str, Any]) -> None:
    """Checks the exported program's logits and labels, and the digest of the exported trunk."""
    store, name = f"{QUICKSTART}/store", "target-fusion"
    model = afjax.load_task_model(store, names["trunk"], head=name, fusion=name)
    batch = {key: names[key] for key in ("tokens", "types", "mask")}
    apply, params = model.for_inference()
    np.testing.assert_allclose(names["logits"], apply(params, batch).logits, rtol=1e-4, atol=1e-5)
    assert names["labels"] == [model.labels[index] for index in names["logits"].argmax(-1)]
    assert afjax.load_trunk("entail-trunk").sha256 == names["model"].merged().trunk.sha256


# ``{page: function}``. Each function checks the Python names that its page defines.
CHECKS = {"several_tasks": check_several_tasks, "export": check_export}


def test_a_failing_block_is_reported_with_its_line(tmp_path: Path, tiny_trunk_folder: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nvalue = 1\n```\n\n```python\nvalue.missing\n```\n")
    with pytest.raises(AttributeError) as raised:
        run_page(page, tiny_trunk_folder)
    assert raised.traceback[-1].lineno + 1 == 8


@pytest.mark.parametrize("line", ["afjax stor ls", "curl example.org"])
def test_a_failing_command_is_reported(line: str, tmp_path: Path, tiny_trunk_folder: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```bash\n{line}\n```\n")
    with pytest.raises(AssertionError, match=r"page\.md:2"):
        run_page(page, tiny_trunk_folder)


def test_excluded_block_has_a_reason_and_does_not_run(tmp_path: Path, tiny_trunk_folder: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"<!-- not run: needs a TPU -->\n```python\nraise ValueError\n```\n{json.dumps('text')}\n")
    assert [block.reason for block in blocks(page)] == ["needs a TPU"]
    run_page(page, tiny_trunk_folder)
