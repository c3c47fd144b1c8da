"""Prints the curves of ``afjax adapterdrop`` and ``afjax prune``."""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from afjax.cli.parsers import add_source_flags, add_split_flag, local_file
from afjax.display.terminal import print_line
from afjax.storage.writing import csv_text, write_output

if TYPE_CHECKING:
    from afjax.analysis.adapterdrop import CurvePoint


def add_curve_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags for the rows to score and the output file."""
    add_source_flags(parser)
    add_split_flag(parser)
    parser.add_argument("--output", type=local_file, help="CSV file for the curve")


def show_curve(points: "Iterable[CurvePoint]", metric: str, output: Path | None) -> "list[CurvePoint]":
    """Prints each point of a curve once it is measured.

    If ``output`` is not None, the curve is also written to this file as CSV.

    Returns:
      The points.
    """
    measured: list[CurvePoint] = []
    lines, first = [["what", "kept", metric, "rows_per_second", "flops_per_row"]], 0.0
    for point in points:
        if not first:
            print(f"{'':40} {'kept':>6} {metric:>10} {'rows/s':>10} {'speed':>7} {'MFLOP/row':>10}")
            first = point.rows_per_second
        score, speed, flops = point.scores[metric], point.rows_per_second, point.flops_per_row
        start = f"{point.what:40} {point.kept:6.0%} {score:10.4f} {speed:10.1f} {speed / first:6.2f}x"
        print(f"{start} {flops / 1e6:10.1f}", flush=True)
        measured.append(point)
        lines.append([point.what, f"{point.kept:.4f}", f"{score:.6f}", f"{speed:.3f}", f"{flops:.0f}"])
    if output is not None:
        write_output(output, csv_text(lines))
        print_line(f"Written to {output}")
    return measured
