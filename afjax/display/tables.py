"""Tables as aligned lines of text."""

from collections.abc import Sequence

import tabulate

from afjax.display.terminal import wrapped


def table_lines(rows: Sequence[Sequence[str]], *, separator: str = "  ", num_texts: int = 1) -> list[str]:
    """Aligns the cells of a table in columns, by their width on a terminal.

    Args:
      rows: Cells, the header first. Every row has the same number of cells.
      separator: The text between columns.
      num_texts: Number of leading columns with text, aligned left. The other columns hold numbers, aligned right.

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
    """Aligns the cells of a table of texts, if necessary with two lines per row.

    A row gets a second line if one line is too long for the terminal.

    Args:
      rows: Cells, the header first. Every row has the same number of cells.
      width: The terminal's number of columns. None for one line per row.
      first: Number of columns in the first line of a row. The other columns are in the second line, which is indented
        and wrapped.

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
