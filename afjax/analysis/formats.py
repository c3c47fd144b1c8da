"""Formats tables as plain text, Markdown, LaTeX and CSV."""

from collections.abc import Callable, Mapping

from afjax.analysis.tables import Table
from afjax.display.tables import table_lines
from afjax.storage.writing import csv_text

# Characters that are special in LaTeX, or missing from its default fonts.
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "→": r"$\rightarrow$",
}


def to_text(table: Table) -> str:
    """Formats a table as aligned plain text, followed by its notes and commands."""
    lines = [table.title, "", *table_lines([table.header, *table.rows]), "", *table.notes]
    if table.commands:
        lines += ["", "To fill the gaps, run:", *(f"  {command}" for command in table.commands)]
    return "\n".join(lines) + "\n"


def to_markdown(table: Table) -> str:
    """Formats a table as GitHub Markdown with aligned source."""
    rows = [[_markdown(cell) for cell in row] for row in (table.header, *table.rows)]
    # A placeholder row makes each column wide enough for its rule, and is then replaced by the rules.
    header, rule, *body = table_lines([rows[0], ["----" for _ in table.header], *rows[1:]], separator=" | ")
    first, *numbers = (len(cell) for cell in rule.split(" | "))
    rule = " | ".join(["-" * first, *(f"{'-' * (width - 1)}:" for width in numbers)])
    lines = [f"| {line} |" for line in (header, rule, *body)]
    lines = [f"**{_markdown(table.title)}**", "", *lines, "", *(_markdown(note) for note in table.notes)]
    if table.commands:
        lines += ["", "To fill the gaps, run:", "", "```bash", *table.commands, "```"]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    r"""Formats a table as a LaTeX ``tabular`` with booktabs rules.

    Notes and commands become comments.
    """
    rows = [[_latex(cell) for cell in row] for row in (table.header, *table.rows)]
    lines = [f"{line} \\\\" for line in table_lines(rows, separator=" & ")]
    lines = [
        f"% {table.title}; \\usepackage{{booktabs}}",
        f"\\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        "\\toprule",
        lines[0],
        "\\midrule",
        *lines[1:],
        "\\bottomrule",
        "\\end{tabular}",
        *(f"% {note}" for note in table.notes),
        *(f"%   {command}" for command in table.commands),
    ]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """Formats a table's data as CSV at full precision.

    Each task and method has one line. Gaps are empty.
    """
    return csv_text([table.data_header, *table.data])


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "text": to_text,
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in _one_line(text))


def _markdown(text: str) -> str:
    # Escape characters that would end a cell, or begin emphasis, code, a link, a tag, an entity or a formula.
    return "".join(f"\\{sign}" if sign in "\\|*_`[]<>~&$" else sign for sign in _one_line(text))


def _one_line(text: str) -> str:
    return " ".join(text.split())
