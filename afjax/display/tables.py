"""Plain-text tables."""

from collections.abc import Sequence

import tabulate

from afjax.display.terminal import wrapped


def table_lines(rows: Sequence[Sequence[str]], *, separator: str = "  ", num_texts: int = 1) -> list[str]:
    """Formats a table with aligned columns, based on display width.

    Args:
      rows: Rows of cells, starting with the header. All rows have the same length.
      separator: The text between columns.
      num_texts: Number of leading text columns, which are left-aligned. The remaining columns are right-aligned.

    Example:
      >>> table_lines([("label", "rows"), ("yes", "12")])
      ['label  rows', 'yes      12']
    """
    if not rows:
        return []
    alignment = ["left" if column < num_texts else "right" for column in range(len(rows[0]))]
    table = tabulate.tabulate(
        rows,
        tablefmt=tabulate.simple_separated_format(separator),
        colalign=alignment,
        disable_numparse=True,
        preserve_whitespace=True,
    )
    return table.splitlines()


def fitting_table(rows: Sequence[Sequence[str]], width: int | None, *, first: int) -> list[str]:
    """Formats a text table to fit the terminal.

    If a row is wider than the terminal, all rows are split over two lines.

    Args:
      rows: Rows of cells, starting with the header. All rows have the same length.
      width: The terminal's width in columns, or None for one line per row.
      first: Number of columns on a row's first line when rows are split. The rest form the second line, which is
        indented and wrapped.

    Example:
      >>> rows = [("name", "about"), ("cola", "Acceptable English."), ("rte", "Entailment.")]
      >>> fitting_table(rows, 15, first=1)
      ['name', '  about', 'cola', '  Acceptable', '  English.', 'rte', '  Entailment.']
    """
    lines = table_lines(rows, num_texts=len(rows[0]))
    if width is None or max(len(line.rstrip()) for line in lines) <= width:
        return lines
    upper = table_lines([row[:first] for row in rows], num_texts=first)
    lower = table_lines([row[first:] for row in rows], num_texts=len(rows[0]) - first)
    return [
        part
        for line, rest in zip(upper, lower, strict=True)
        for part in (line.rstrip(), *wrapped(f"  {rest.rstrip()}", width))
    ]
