"""HTML that is safe by construction: whatever is not markup that was made here is text, and is escaped."""

import dataclasses
import html
import re
from collections.abc import Sequence

# No text of a browser's: control characters, and halves of surrogate pairs.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Markup:
    """HTML that may stand in a page as it is."""

    html: str


Content = Markup | str


def tag(element: str, /, *content: Content, **attributes: str) -> Markup:
    """An element.

    Args:
      element: Its name, such as "p".
      content: Text, which is escaped, and markup.
      attributes: Their values are escaped; a trailing ``_`` of a name is dropped (``class_``), others are hyphens.
    """
    pairs = (f' {key.rstrip("_").replace("_", "-")}="{text(value)}"' for key, value in attributes.items())
    opened = f"<{element}{''.join(pairs)}>"
    return Markup(opened if element in ("img", "meta", "link") else f"{opened}{join(*content).html}</{element}>")


def join(*content: Content) -> Markup:
    """Content side by side."""
    return Markup("".join(part.html if isinstance(part, Markup) else text(part) for part in content))


def text(words: str) -> str:
    """Text, escaped for elements and attributes alike."""
    return html.escape(_NO_TEXT.sub("\N{REPLACEMENT CHARACTER}", words))


def table(
    header: Sequence[Content], rows: Sequence[Sequence[Content]], *, numbers: Sequence[int] = (), caption: Content = ""
) -> Markup:
    """A table that scrolls in itself where it is too wide; each row begins with its header.

    Args:
      header: Titles of the columns.
      rows: As many cells each.
      numbers: Indices of the columns of numbers.
      caption: The table's caption.
    """
    kind = ["number" if column in numbers else "" for column in range(len(header))]
    head = tag("tr", *(tag("th", cell, scope="col", class_=of) for cell, of in zip(header, kind, strict=True)))
    body = []
    for first, *rest in rows:
        cells = (tag("td", cell, class_=of, dir="auto") for cell, of in zip(rest, kind[1:], strict=True))
        body.append(tag("tr", tag("th", first, scope="row", dir="auto"), *cells))
    return scrolling(tag("table", tag("thead", head), tag("tbody", *body)), caption)


def scrolling(wide: Markup, caption: Content = "") -> Markup:
    """Something wide, which scrolls in itself, also by keyboard; its caption stands where it is."""
    scrolled = tag("div", wide, class_="scroll", tabindex="0")
    return tag("figure", tag("figcaption", caption), scrolled) if caption else scrolled


def shortened(words: str, limit: int) -> str:
    """Text on one line, cut to a number of characters."""
    line = " ".join(words.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def listed(names: Sequence[str], *, most: int = 6) -> str:
    """The first names, and how many more there are.

    Example:
      >>> listed(["a", "b", "c"], most=2)
      'a, b and 1 more'
    """
    shown = ", ".join(shortened(name, 40) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
