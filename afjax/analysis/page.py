"""Building blocks of HTML reports: style, sections, images and the page itself."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING

from afjax.analysis.figures import picture
from afjax.display.html import Content, Markup, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = Path(__file__).with_name("report.css").read_text(encoding="utf-8")


def section(identifier: str, title: str, *content: Content) -> Markup:
    heading = tag("h2", title, id=f"{identifier}-title")
    return tag("section", heading, *content, id=identifier, aria_labelledby=f"{identifier}-title")


def image(figure: "Figure", alternative: str, caption: Content) -> Markup:
    """Embeds a figure as an SVG data URI.

    The SVG can then load no resources, and its ids cannot clash with the page's.
    """
    source = f"data:image/svg+xml;base64,{base64.b64encode(picture(figure, '.svg')).decode()}"
    return tag("figure", tag("img", src=source, alt=alternative), tag("figcaption", caption))


def page(title: str, *content: Content) -> str:
    """Builds a self-contained HTML page. Its content security policy forbids requests."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(_STYLE)),
    )
    document = tag("html", head, tag("body", *content), lang="en")
    return f"<!DOCTYPE html>\n{document.html}\n"
