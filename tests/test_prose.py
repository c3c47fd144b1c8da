"""Prose that people read (docs, docstrings, comments, messages) avoids phrases that readers have to decode."""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("afjax", "bench", "configs", "docs", "launch", "tests")
# Word lists for the built-in tasks, and this file, because it lists the phrases.
SKIPPED = ("afjax/data/sources/builtin_words.py", "tests/test_prose.py")
SUFFIXES = (".py", ".md", ".sh", ".ipynb")
# Each phrase, and what to write instead.
PHRASES = {
    r"(?<!let )(?<!stand )\balone\b(?! in\b)": "only",
    r"\bas (it|they) (is|are|was|were)\b": "unchanged, or name the state",
    r"\bbehind\b": "after, or slower or worse than",
    r"\bbut for\b": "except",
    r"\bcan be had\b": "is available",
    r"\bgiven again\b": "repeated",
    r"\b(go|goes|going|went) on\b": "continue or resume",
    r"\bin front of\b": "before",
    r"(?<!there )\bis no (?!longer\b|more\b|less\b|better\b|worse\b|such\b|need\b)": "is not a",
    r"\b(bytes|examples|lines|rows|seconds|steps|tokens) a \w": "per",
    r"\b(of|by|from) which\b": "start a new sentence, and repeat the noun",
    r"\b(tell|tells|told) of\b": "report or describe",
    r"\b(that|those) of (a|an|all|its|one|the|their)\b": "repeat the noun",
    r"\bto the bit\b": "bit-identical",
    r"\btowards\b": "to, or with respect to",
    r"\b[Ww]hat (it|they) (is|are|was|were|gave|has|have|had|takes?)\b": "a noun",
}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the prose of a file, as ``(line, text)``.

    In a Python file, prose is every comment, and every string with a space: docstrings, messages and help texts. Code
    blocks in Markdown are skipped. Notebook lines are numbered across all Markdown cells.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join(
            "".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"
        )
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                for number, line in enumerate(node.value.splitlines()):
                    yield node.lineno + number, line
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
        return
    in_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, re.sub(r"`[^`]*`", "``", line)


def habits(text: str) -> Iterator[tuple[str, str]]:
    """Yields the phrases in a text, each with what to write instead."""
    for pattern, better in PHRASES.items():
        for match in re.finditer(pattern, text, flags=re.IGNORECASE):
            yield match.group(), better


def files() -> list[Path]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    found += [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "setup.py")]
    return sorted(path for path in found if str(path.relative_to(ROOT)) not in SKIPPED and path.is_file())


def test_prose_avoids_phrases_that_readers_have_to_decode() -> None:
    found = [
        f'{path.relative_to(ROOT)}:{line}: "{phrase}" ({better})'
        for path in files()
        for line, text in prose(path)
        for phrase, better in habits(text)
    ]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("32 tokens a row", "tokens a r"),
        ("x is no folder", "is no "),
        ("those of the trunk", "those of the"),
        ("What it is depends on the trunk.", "What it is"),
        ("The run goes on.", "goes on"),
    ],
)
def test_phrases_are_found(text: str, phrase: str) -> None:
    assert [found for found, _ in habits(text)] == [phrase]


@pytest.mark.parametrize(
    "text", ["There is no folder x", "32 tokens per row", "the trunk's leaves", "is no longer read"]
)
def test_plain_english_is_accepted(text: str) -> None:
    assert not [*habits(text)]


def test_comments_docstrings_and_markdown_are_prose(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text('"""One two.\n\nThree four."""\nx = f"five {1} six"  # seven\ny = "eight"\n')
    assert [*prose(tmp_path / "a.py")] == [
        (1, "One two."),
        (2, ""),
        (3, "Three four."),
        (4, "five "),
        (4, " six"),
        (4, "# seven"),
    ]
    (tmp_path / "a.ipynb").write_text(
        '{"cells": [{"cell_type": "code", "source": ["a b"]}, {"cell_type": "markdown", "source": ["c d\\n", "e"]}]}'
    )
    assert [*prose(tmp_path / "a.ipynb")] == [(1, "c d"), (2, "e")]
    (tmp_path / "a.md").write_text("One\n```\ntwo\n```\nthree `four`\n")
    assert [*prose(tmp_path / "a.md")] == [(1, "One"), (5, "three ``")]
