"""The documentation site builds offline without warnings, and mistakes in its pages fail the build."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def build(source: Path, output: Path) -> subprocess.CompletedProcess[str]:
    """Builds a site as launch/docs.sh does, with a nonexistent proxy to block network access."""
    flags = ["--fresh-env", "--fail-on-warning", "--keep-going", "--quiet"]
    environment = {**os.environ, "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "sphinx", *flags, str(source), str(output)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    done = build(DOCS, tmp_path / "site")
    assert (done.returncode, done.stderr) == (0, "")
    sources = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    pages = {str(path.relative_to(DOCS).with_suffix(".html")) for path in sources}
    assert {page for page in pages if not (tmp_path / "site" / page).exists()} == set()
    page = (tmp_path / "site" / "reference" / "api" / "training.html").read_text(encoding="utf-8")
    assert 'id="afjax.train_single"' in page


def test_mistakes_fail_the_build(tmp_path: Path) -> None:
    site = tmp_path / "docs"
    site.mkdir()
    (site / "conf.py").write_text(f"import sys\nsys.path.insert(0, {str(DOCS)!r})\nfrom conf import *\n")
    (site / "_static").mkdir()
    (site / "index.md").write_text(
        "# Title\n\n[missing](missing.md)\n\n[no heading](index.md#nothing)\n\n"
        "```{eval-rst}\n.. autofunction:: afjax.fuse\n```\n\n```{command} eval\n```\n\n```{config} single\n```\n"
    )
    (site / "lost.md").write_text("# A page that no other page lists\n")
    done = build(site, tmp_path / "site")
    assert done.returncode == 1
    problems = done.stderr.splitlines()

    def found(*words: str) -> bool:
        return any(all(word in line for word in words) for line in problems)

    assert found("index.md:3", "missing.md")
    assert found("index.md:5", "nothing")
    assert found("lost.md", "toctree")
    assert found("public name", "afjax.pal")
    assert not found("public name", "afjax.fuse")
    assert found("command", "store ls")
    assert not found("command eval")
    assert found("config", "quickstart")
    assert not found("config single")
