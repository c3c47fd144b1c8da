"""Draws the documentation's diagrams as SVG files, in a light and a dark theme.

Run this script after you change a diagram:

    python docs/diagrams/make_diagrams.py
"""

import argparse
from pathlib import Path

import encoder_diagram
import fusion_diagram
import stages_diagram
import store_diagram
from palettes import PALETTES

DIAGRAMS = {
    "encoder": encoder_diagram.draw,
    "fusion": fusion_diagram.draw,
    "stages": stages_diagram.draw,
    "store": store_diagram.draw,
}


def make_diagrams(folder: Path) -> None:
    """Writes ``NAME_THEME.svg`` for every diagram and theme."""
    for name, draw in DIAGRAMS.items():
        for theme, palette in PALETTES.items():
            (folder / f"{name}_{theme}.svg").write_text(draw(palette), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draws the diagrams of the documentation.")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent, help="output folder")
    make_diagrams(parser.parse_args().folder)
