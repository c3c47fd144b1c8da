"""The documentation's diagrams are up to date, accessible, and the same in both themes."""

import itertools
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from afjax import store

FOLDER = Path(__file__).parents[2] / "docs" / "diagrams"
NAMES = ("encoder", "fusion", "stages", "store")
THEMES = ("light", "dark")
FILES = [f"{name}_{theme}.svg" for name, theme in itertools.product(NAMES, THEMES)]
SVG = "{http://www.w3.org/2000/svg}"


def parse(file: str) -> ET.Element:
    return ET.parse(FOLDER / file).getroot()


def texts(root: ET.Element) -> list[str]:
    """Returns a diagram's text, including the title and the description."""
    return ["".join(element.itertext()) for tag in ("title", "desc", "text") for element in root.iter(SVG + tag)]


def contrast(first: str, second: str) -> float:
    """Computes the WCAG 2.2 contrast ratio between two colors such as #1b1f24."""

    def luminance(color: str) -> float:
        parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    darker, lighter = sorted((luminance(first), luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def test_the_script_generates_the_committed_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, FOLDER / "make_diagrams.py", tmp_path], check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    assert sorted(path.name for path in FOLDER.glob("*.svg")) == sorted(FILES)
    for file in FILES:
        committed = (FOLDER / file).read_text(encoding="utf-8")
        assert (tmp_path / file).read_text(encoding="utf-8") == committed, (
            f"{file} is outdated. Run python docs/diagrams/make_diagrams.py"
        )


@pytest.mark.parametrize("file", FILES)
def test_a_diagram_has_a_title_and_a_description_for_screen_readers(file: str) -> None:
    root = parse(file)
    assert root.tag == SVG + "svg"
    assert root.get("role") == "img"
    parts = [root.find(SVG + tag) for tag in ("title", "desc")]
    assert all(part is not None and part.text for part in parts)
    assert root.get("aria-labelledby", "").split() == [part.get("id") for part in parts if part is not None]


@pytest.mark.parametrize("file", FILES)
def test_a_diagram_scales_with_the_page_and_has_no_small_text(file: str) -> None:
    root = parse(file)
    assert root.get("width") is None
    width = float(root.get("viewBox", "").split()[2])
    sizes = [float(text.get("font-size", 0)) for text in root.iter(SVG + "text")]
    assert min(sizes) * 390 / width >= 10


@pytest.mark.parametrize("name", NAMES)
def test_both_themes_have_the_same_texts(name: str) -> None:
    light, dark = (texts(parse(f"{name}_{theme}.svg")) for theme in THEMES)
    assert light == dark


@pytest.mark.parametrize("theme", THEMES)
def test_colors_have_enough_contrast(theme: str) -> None:
    palette = runpy.run_path(str(FOLDER / "palettes.py"))["PALETTES"][theme]
    fills = [palette.background, palette.frozen_fill, palette.trained_fill, palette.plain_fill]
    assert min(contrast(palette.text, fill) for fill in fills) >= 4.5
    assert contrast(palette.muted, palette.background) >= 4.5
    lines = [palette.line, palette.panel, palette.frozen, palette.trained, palette.plain]
    assert min(contrast(line, palette.background) for line in lines) >= 3
    assert contrast(palette.frozen, palette.frozen_fill) >= 3
    assert contrast(palette.trained, palette.trained_fill) >= 3
    assert contrast(palette.line, palette.plain_fill) >= 3


def test_the_store_diagram_has_the_folders_of_a_store() -> None:
    assert {f"{kind}/" for kind in store.KINDS} <= set(texts(parse("store_light.svg")))
