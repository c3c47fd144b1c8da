"""Builds HTML and escapes everything except :class:`Markup`."""

import dataclasses
import html
import re
from collections.abc import Sequence

from afjax.display.words import first_of

# Characters that browsers cannot display: control characters and unpaired surrogates.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Markup:
    """HTML that is inserted into a page without escaping."""

    html: str


Content = Markup | str


def tag(element: str, /, *content: Content, **attributes: str) -> Markup:
    """Builds an HTML element.

    Args:
      element: The element's name, such as "p".
      content: Markup, or text to escape.
      attributes: The element's attributes. Their values are escaped. In their names, trailing underscores (``class_``)
        are dropped and other underscores become hyphens.
    """
    pairs = (f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    opened = f"<{element}{''.join(pairs)}>"
    return Markup(opened if element in ("img", "meta", "link") else f"{opened}{join(*content).html}</{element}>")


def join(*content: Content) -> Markup:
    """Concatenates markup and text, escaping the text."""
    return Markup("".join(part.html if isinstance(part, Markup) else text(part) for part in content))


def text(words: str) -> str:
    """Escapes text for use in an element or an attribute value."""
    return html.escape(_NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", words))


def table(
    header: Sequence[Content], rows: Sequence[Sequence[Content]], *, numbers: Sequence[int] = (), caption: Content = ""
) -> Markup:
    """Builds a table that scrolls horizontally if it is too wide.

    The first cell of each row is a row header.

    Args:
      header: Column titles.
      rows: Rows with one cell per column.
      numbers: Indices of numeric columns.
      caption: The table's caption.
    """
    kinds = ["number" if column in numbers else "" for column in range(len(header))]
    head = tag("tr", *(tag("th", cell, scope="col", class_=kind) for cell, kind in zip(header, kinds, strict=True)))
    body = []
    for first, *other_cells in rows:
        cells = (tag("td", cell, class_=kind, dir="auto") for cell, kind in zip(other_cells, kinds[1:], strict=True))
        body.append(tag("tr", tag("th", first, scope="row", dir="auto"), *cells))
    return scrolling(tag("table", tag("thead", head), tag("tbody", *body)), caption)


def scrolling(wide: Markup, caption: Content = "") -> Markup:
    """Wraps wide content so that it scrolls horizontally without scrolling the page.

    The content can also be scrolled with the keyboard. The caption stays in place.
    """
    scrolled = tag("div", wide, class_="scroll", tabindex="0")
    return tag("figure", tag("figcaption", caption), scrolled) if caption else scrolled


def shortened(words: str, limit: int) -> str:
    """Collapses whitespace and truncates the text to ``limit`` characters."""
    line = " ".join(words.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def listed(names: Sequence[str]) -> str:
    """Lists the first names, each truncated, and counts the others."""
    return first_of([shortened(name, 40) for name in names])
