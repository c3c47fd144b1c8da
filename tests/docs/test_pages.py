"""The code on the pages for beginners runs as written, with a tiny trunk and few steps."""

import json
from pathlib import Path

import pytest
from page_runner import LANGUAGES, ROOT, blocks, run_page

pytestmark = pytest.mark.slow

FOLDERS = ("get_started", "tutorials")
# Other how-to pages need data, machines or the quickstart's store.
GUIDES = ("data", "classification", "regression", "multiple_choice", "span", "multi_label", "tagging")
PAGES = [
    *sorted(path for folder in FOLDERS for path in (ROOT / "docs" / folder).glob("*.md")),
    *(ROOT / "docs" / "how_to" / f"{name}.md" for name in GUIDES),
]
WITH_CODE = [page for page in PAGES if any(block.language in LANGUAGES for block in blocks(page))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> Path:
    """The current folder of the page: it has reviews.csv with two columns, and new.csv without labels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AFJAX_CACHE", str(cache_folder))
    words, labels = ("all", "some", "no", "most"), ("positive", "negative")
    reviews = [f"{word} cats and {other} dogs,{labels[word == other]}\n" for word in words for other in words]
    (tmp_path / "reviews.csv").write_text("text,label\n" + "".join(reviews))
    (tmp_path / "new.csv").write_text("text\nall cats\nno dogs\n")
    return tmp_path


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_page_runs(page: Path, folder: Path, tiny_trunk_folder: Path) -> None:
    run_page(page, tiny_trunk_folder)


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
