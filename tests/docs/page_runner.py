"""Runs the code blocks of a documentation page, with a tiny trunk and few steps.

Every ``python`` and ``bash`` block runs in page order, in one folder and one Python namespace. In ``bash`` blocks, only
the ``afjax`` commands run. A comment before a block changes this:

- ``<!-- not run: REASON -->`` excludes the block.
- ``<!-- file: PATH -->`` writes a block in any language to this file, so that later blocks can read it.
"""

import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

from afjax.cli.main import main

ROOT = Path(__file__).parents[2]
LANGUAGES = ("python", "bash")
# Lines in bash blocks that start with these words are skipped, because they do not run afjax.
NOT_OURS = ("pip ", "cat ", "cd ", "git ", "head ", "python ", "python3 ")


@dataclasses.dataclass(frozen=True)
class Block:
    """A code block on a page.

    Attributes:
      language: The word after the opening fence.
      code: The text between the fences.
      line: The line number of the code's first line in the page.
      reason: Why the block is not run, or an empty string.
      path: The file to write the block to, or an empty string.
    """

    language: str
    code: str
    line: int
    reason: str
    path: str

    @property
    def runs(self) -> bool:
        """Whether to run the block: it is neither excluded nor a file, and its language can be run."""
        return not (self.reason or self.path) and self.language in LANGUAGES


def blocks(page: Path) -> list[Block]:
    """Finds all code blocks on a page."""
    text = page.read_text(encoding="utf-8")
    comment = r"(?:<!-- (?:not run: (?P<reason>[^>]+)|file: (?P<path>[^>]+)) -->\n)?"
    pattern = rf"{comment}^```(?P<language>[\w-]+)\n(?P<code>.*?)^```$"
    return [
        Block(
            match["language"],
            match["code"],
            text[: match.start("code")].count("\n") + 1,
            match["reason"] or "",
            match["path"] or "",
        )
        for match in re.finditer(pattern, text, flags=re.DOTALL | re.MULTILINE)
    ]


def run_page(page: Path, trunk: Path) -> dict[str, Any]:
    """Runs a page's blocks in the current folder.

    Args:
      page: The Markdown file.
      trunk: The trunk folder to use instead of minilm.

    Returns:
      The Python names that the page defines.
    """
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.path:
            path = Path(block.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
        if not block.runs:
            continue
        if block.language == "python":
            # Prepend blank lines, so that tracebacks have the page's line numbers.
            code = "\n" * (block.line - 1) + short_program(block.code, trunk)
            exec(compile(code, str(page), "exec"), names)
        else:
            for line in block.code.replace("\\\n", " ").splitlines():
                run_line(line, trunk, where=f"{page.name}:{block.line}")
    return names


def short_program(code: str, trunk: Path) -> str:
    """Makes a program use a small trunk and train for two steps, with one compiled program."""
    code = re.sub(r", buckets=\([\d,]+\)", "", code)
    code = re.sub(r"\b(epochs|max_steps)=[\d.]+", "max_steps=2, buckets=(32,)", code)
    code = re.sub(r"max_length=\d+", "max_length=32", code)
    return code.replace('"minilm"', repr(str(trunk)))


def run_line(line: str, trunk: Path, *, where: str) -> None:
    """Runs one line of a ``bash`` block."""
    line = line.partition("  #")[0].strip()
    if not line or line.startswith(("#", *NOT_OURS)):
        return
    program, *words = shlex.split(line.replace("=minilm", f"={trunk}"))
    assert program == "afjax", f"{where}: the tests cannot run {program}"
    if words[0] in ("train", "sweep"):
        words += [f"--config.trunk={trunk}", "--config.train.max_steps=2", "--config.train.buckets=(32,)"]
        if "--config=quickstart" in words:
            words += [f"--config.sources.{name}.train.max_steps=2" for name in ("entail", "paraphrase", "target")]
    if words[0] == "sweep":
        # Run only the first combination: the first value of each setting, and the first seed.
        words = [word.partition(",")[0] if word.startswith(("--grid.", "--seeds=")) else word for word in words]
    try:
        code = main(words)
    except SystemExit as end:  # --version and --help
        code = end.code or 0
    assert code == 0, f"{where}: {line} ended with code {code}"
