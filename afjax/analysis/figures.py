"""Common figure style and output: PNG and SVG images, with their data as CSV.

Figures are legible at a paper's column width. Colors are safe for color-blind readers (cividis for amounts, the
Okabe-Ito palette for categories), and categories also differ in marker or hatch.
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

# matplotlib's warning about a character that the font lacks. matplotlib draws it as a box.
_LACKING = "Glyph .* missing from font"
# Widths of a column and of a two-column page, in inches.
COLUMN_WIDTH, PAGE_WIDTH = 3.4, 7.0
COLORS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
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
    # Keep text as text, and make the output reproducible.
    "svg.fonttype": "none",
    "svg.hashsalt": "afjax",
    # Names of tasks, adapters and tokens may contain dollar signs.
    "text.parse_math": False,
    "axes.unicode_minus": True,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Applies the common figure style. Works as a context manager and as a decorator."""
    from matplotlib import rc_context

    with rc_context(_STYLE):
        yield


def legend_label(name: str) -> str:
    """Returns a label for a legend. matplotlib leaves out labels that begin with an underscore."""
    return f" {name}" if name.startswith("_") else name


def new_figure(
    width: float = COLUMN_WIDTH, height: float = 2.6, *, rows: int = 1, columns: int = 1, **options: Any
) -> "tuple[Figure, list[Axes]]":
    """Creates a figure in the common style, and its axes in row-major order.

    Args:
      width, height: The size of the figure in inches.
      rows, columns: The number of rows and columns of axes.
      options: Arguments of matplotlib's ``Figure.subplots``, such as ``sharey``.
    """
    from matplotlib.figure import Figure

    with style():
        # pyplot would need a window system, and would keep every figure alive.
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, list(axes.ravel())


def check_output(output: Path) -> None:
    """Checks, before a long computation, that a figure can be written to a path.

    Args:
      output: The output path, with one of ``SUFFIXES`` or none.

    Raises:
      UserError: One of the files cannot be written.
    """
    stem = _stem(output)
    if stem.is_dir() and not output.suffix:
        raise UserError(f"{output} is a folder; set --output to a file in it, without a suffix.")
    if output.exists() and not output.is_file() and not output.is_dir():
        raise UserError(
            f"{output} is a device or a pipe; set --output to a path without a suffix, for the files "
            f"{', '.join(SUFFIXES)}."
        )
    for path in _targets(output):
        writing.check_output(path, make_folder=True)


def save_figure(
    figure: "Figure", output: str | Path, header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> list[Path]:
    """Writes a figure as PNG and SVG, and its data as CSV.

    Args:
      figure: A figure from :func:`new_figure`.
      output: The output path, with one of ``SUFFIXES`` or none. A missing folder is created.
      header: The column names of the data.
      rows: The rows of the data. Numbers are written at full precision.

    Returns:
      The paths of the files, in the order of ``SUFFIXES``.

    Raises:
      UserError: There are no rows of data, or a file cannot be written.
    """
    output, lines = Path(output), [list(row) for row in rows]
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
    """Renders a figure reproducibly. The suffix is ``.png`` or ``.svg``."""
    buffer = io.BytesIO()
    with style(), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _LACKING)
        figure.savefig(buffer, format=suffix[1:], **_PICTURES[suffix])
    other_warnings = [warning for warning in caught if not re.match(_LACKING, str(warning.message))]
    # SVGs keep their text, so the viewer's fonts may have these characters.
    if suffix == ".png" and len(other_warnings) < len(caught):
        print("The PNG shows boxes for characters that its font lacks; the CSV and SVG contain them.", file=sys.stderr)
    for warning in other_warnings:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return buffer.getvalue()


def draw_spread(
    axes: "Axes", places: Sequence[float], lows: Sequence[float | None], highs: Sequence[float | None], color: str
) -> None:
    """Draws a band between the lows and highs of a line, skipping points without them.

    An isolated point gets an error bar, because a band needs two points.
    """
    points = [(place, low, high) for place, low, high in zip(places, lows, highs, strict=True)]
    for has_spread, group in itertools.groupby(points, lambda point: point[1] is not None):
        part = np.array(list(group), float).T
        if has_spread and part.shape[1] > 1:
            axes.fill_between(*part, color=color, alpha=0.18, linewidth=0, zorder=2)
        elif has_spread:
            middle, half = (part[2] + part[1]) / 2, (part[2] - part[1]) / 2
            axes.errorbar(part[0], middle, yerr=half, fmt="none", ecolor=color, capsize=2, elinewidth=1, zorder=3)


def note_one_seed(figure: "Figure") -> None:
    """Notes below the axes that points without a band or bar have a single seed."""
    figure.supxlabel("Points without a band or bar have one seed", fontsize=7, color="0.35")


def _stem(output: Path) -> Path:
    # Names may contain dots, so strip only known suffixes.
    return output.with_suffix("") if output.suffix in SUFFIXES else output


def _targets(output: Path) -> list[Path]:
    stem = _stem(output)
    return [stem.with_name(stem.name + suffix) for suffix in SUFFIXES]
