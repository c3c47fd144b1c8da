"""How every figure looks and is kept: a picture as PNG and SVG, and what it shows as CSV beside them.

Figures are legible at the size of a paper's column. Colours are told apart without colour vision (cividis for amounts,
Okabe and Ito's for kinds), and kinds by their markers or hatching too.
"""

import contextlib
import io
import itertools
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from afjax.errors import UserError
from afjax.storage import writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What matplotlib says of a character that is drawn as a box.
_LACKING = "Glyph .* missing from font"
# Inches; that of a column, and of a page with two.
COLUMN_WIDTH, PAGE_WIDTH = 3.4, 7.0
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
AMOUNTS = "cividis"
SUFFIXES = (".png", ".svg", ".csv")
_PICTURES: Any = {".png": {"dpi": 300}, ".svg": {"metadata": {"Date": None}}}
_STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "hatch.linewidth": 0.6,
    # Text stays text, and equal data are equal bytes.
    "svg.fonttype": "none",
    "svg.hashsalt": "afjax",
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """The common style for what is drawn within, or by the function that this decorates: lines, legends, titles."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        yield


def new_figure(
    width: float = COLUMN_WIDTH, height: float = 2.6, *, rows: int = 1, columns: int = 1, **options: Any
) -> "tuple[Figure, list[Axes]]":
    """A figure in the common style, and its axes row by row.

    Args:
      width, height: Inches.
      rows, columns: Of axes.
      options: Of matplotlib's ``Figure.subplots``, such as ``sharey``.
    """
    from matplotlib.figure import Figure

    with style():
        # Without pyplot: no window system, and no figures kept by the library.
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.ravel())


def check_output(output: Path) -> None:
    """Raises UserError where a figure cannot be written there, before anything long is computed.

    Args:
      output: The files' common name, with one of ``SUFFIXES`` or none.
    """
    stem = _stem(output)
    if stem.is_dir() and not output.suffix:
        raise UserError(f"{output} is a folder; give --output a file's name in it, without a suffix.")
    if output.exists() and not output.is_file() and not output.is_dir():
        raise UserError(
            f"{output} is a device or a pipe; give --output the common name of {', '.join(SUFFIXES)} files."
        )
    for path in _targets(output):
        writing.check_output(path, make_folder=True)


def save_figure(figure: "Figure", output: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[Path]:
    """Writes a figure and its data.

    Args:
      figure: Of :func:`new_figure`.
      output: The files' common name, with one of ``SUFFIXES`` or none; its folder is made where it is missing.
      header: Names of the columns of the data.
      rows: The data, a row a line; numbers are written in full.

    Returns:
      The files.

    Raises:
      UserError: There is nothing to show, or a file cannot be written.
    """
    lines = [list(row) for row in rows]
    if not lines:
        raise UserError(f"There is nothing to show in {output}.")
    check_output(output)
    contents = {".csv": writing.csv_text([header, *lines]).encode()}
    for suffix in _PICTURES:
        contents[suffix] = picture(figure, suffix)
    paths = _targets(output)
    for path in paths:
        writing.write_output(path, contents[path.suffix], make_folder=True)
    return paths


def picture(figure: "Figure", suffix: str) -> bytes:
    """The figure as a file, ``.png`` or ``.svg``; the same bytes for the same figure."""
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _LACKING)
        figure.savefig(buffer, format=suffix[1:], **_PICTURES[suffix])
    others = [each for each in caught if not re.match(_LACKING, str(each.message))]
    # Of an SVG's text the reader's own font shows what this one lacks.
    if suffix == ".png" and len(others) < len(caught):
        print("The PNG has boxes for characters that its font lacks; the CSV and the SVG have them.", file=sys.stderr)
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return buffer.getvalue()


def draw_spread(
    axes: "Axes", places: Sequence[float], lows: Sequence[float | None], highs: Sequence[float | None], colour: str
) -> None:
    """A band from the lows to the highs of a line's points, with gaps at points that have None.

    A point between gaps has a bar, as a band needs two.
    """
    points = [(at, low, high) for at, low, high in zip(places, lows, highs, strict=True)]
    for known, group in itertools.groupby(points, lambda point: point[1] is not None):
        part = np.array(list(group), float).T
        if known and part.shape[1] > 1:
            axes.fill_between(*part, color=colour, alpha=0.18, linewidth=0, zorder=2)
        elif known:
            middle, half = (part[2] + part[1]) / 2, (part[2] - part[1]) / 2
            axes.errorbar(part[0], middle, yerr=half, fmt="none", ecolor=colour, capsize=2, elinewidth=1, zorder=3)


def note_one_seed(figure: "Figure") -> None:
    """Says below the axes what :func:`draw_spread` leaves out."""
    figure.supxlabel("Points without a band or bar have one seed", fontsize=7, color="0.35")


def _stem(output: Path) -> Path:
    # A name may have dots that begin no suffix of ours.
    return output.with_suffix("") if output.suffix in SUFFIXES else output


def _targets(output: Path) -> list[Path]:
    stem = _stem(output)
    return [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
