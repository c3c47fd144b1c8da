"""Tables as aligned lines of text."""

from collections.abc import Sequence

import tabulate


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
