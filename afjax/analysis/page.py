"""Building blocks of HTML reports: style, sections, images and the page itself."""

import base64
from typing import TYPE_CHECKING

from afjax.analysis.figures import picture
from afjax.display.html import Content, Markup, tag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --quiet: #595959; --line: #c9c9c9; --shade: #f1f3f5;
  --accent: #0b5394; --cell: 11, 83, 148; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181b; --quiet: #a9adb2; --line: #43474d;
  --shade: #22262b; --accent: #8ab8ff; --cell: 138, 184, 255; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 62rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
a { color: var(--accent); }
nav ul { list-style: none; margin: 1rem 0; padding: 0; display: flex; flex-wrap: wrap; gap: .25rem 1rem; }
.scroll { overflow-x: auto; margin: .5rem 0 1rem; }
table { border-collapse: collapse; min-width: min(100%, 34rem); font-size: .875rem;
  font-variant-numeric: tabular-nums; overflow-wrap: normal; }
th, td { text-align: start; vertical-align: top; padding: .25rem .75rem .25rem 0;
  border-bottom: 1px solid var(--line); }
thead th { border-bottom: 2px solid var(--line); }
tbody th { font-weight: 600; white-space: nowrap; }
.number { text-align: end; white-space: nowrap; }
.code { font-family: ui-monospace, monospace; font-size: .8125rem; }
.heat { min-width: 0; }
.heat td { text-align: center; padding: .35rem .6rem; border: 1px solid var(--line); }
.heat .diagonal { outline: 2px solid currentColor; outline-offset: -3px; }
.quiet { color: var(--quiet); }
.key { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .75rem; margin: 1rem 0; }
.key div { background: var(--shade); padding: .6rem .8rem; border-radius: .4rem; }
.key dt { font-size: .8125rem; color: var(--quiet); }
.key dd { margin: 0; font-size: 1.125rem; font-weight: 600; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 18rem), 1fr)); gap: 1rem; }
figure { margin: 0; }
figure img { display: block; width: 100%; max-width: 34rem; height: auto; background: #fff; padding: .25rem; }
.figures.wide { grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
figcaption { font-size: .875rem; color: var(--quiet); }
details { margin: .75rem 0; }
summary { cursor: pointer; padding: .25rem 0; }
ol.mistakes { padding: 0; list-style: none; }
ol.mistakes > li { background: var(--shade); border-radius: .4rem; margin: .75rem 0; padding: .6rem .8rem; }
ol.mistakes dl { margin: 0; display: grid; grid-template-columns: minmax(4.5rem, auto) 1fr; gap: .2rem .8rem; }
ol.mistakes dt { color: var(--quiet); font-size: .875rem; }
ol.mistakes dd { margin: 0; white-space: pre-wrap; unicode-bidi: isolate; }
"""


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
        tag("style", Markup(STYLE)),
    )
    document = tag("html", head, tag("body", *content), lang="en")
    return f"<!DOCTYPE html>\n{document.html}\n"
