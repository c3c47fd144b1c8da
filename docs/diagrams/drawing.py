"""Draws shapes and text for the diagrams.

A :class:`Drawing` collects SVG elements. It takes colors from a :class:`Palette`, so each diagram's geometry is written
once for both themes. Text may contain subscripts: ``u_{n}``.
"""

import math
import re
from typing import Any, Literal, NamedTuple
from xml.sax.saxutils import escape

from palettes import Palette

WIDTH = 560
BODY, SMALL = 17, 15  # Font sizes. At a width of 390 pixels they are 12 and 10 pixels.
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', monospace"

Style = Literal["frozen", "trained", "plain"]
Point = tuple[float, float]


class Box(NamedTuple):
    """A rectangle, given by its left and upper edges and its size."""

    x: float
    y: float
    width: float
    height: float

    @property
    def top(self) -> Point:
        return self.x + self.width / 2, self.y

    @property
    def bottom(self) -> Point:
        return self.x + self.width / 2, self.y + self.height

    @property
    def left(self) -> Point:
        return self.x, self.y + self.height / 2

    @property
    def right(self) -> Point:
        return self.x + self.width, self.y + self.height / 2


class Drawing:
    """An SVG document with width ``WIDTH``.

    Args:
      name: The diagram's name, used as a prefix for ids.
      height: The height, in the same units as ``WIDTH``.
      title, description: Texts for screen readers.
      palette: The theme's colors.
    """

    def __init__(self, name: str, height: float, title: str, description: str, palette: Palette) -> None:
        self.palette = palette
        self._lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-labelledby="{name}-title {name}-desc" font-family="{SANS}">',
            f'<title id="{name}-title">{escape(title)}</title>',
            f'<desc id="{name}-desc">{escape(description)}</desc>',
        ]

    def svg(self) -> str:
        """Returns the document as SVG."""
        return "\n".join([*self._lines, "</svg>"]) + "\n"

    def color(self, name: str) -> str:
        return getattr(self.palette, name)

    def element(self, tag: str, content: str = "", **attributes: float | str) -> None:
        """Adds an element. Underscores in attribute names become hyphens."""
        values = "".join(f' {key.replace("_", "-")}="{_number(value)}"' for key, value in attributes.items())
        self._lines.append(f"<{tag}{values}>{content}</{tag}>" if content else f"<{tag}{values}/>")

    def label(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = BODY,
        anchor: Literal["start", "middle", "end"] = "middle",
        color: str = "text",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """Adds a line of text whose vertical center is ``y``."""
        style = {"font_weight": "600"} if bold else {}
        if mono:
            style["font_family"] = MONO
        self.element(
            "text",
            _spans(text, size),
            x=x,
            y=y + 0.35 * size,  # In most fonts, capital letters are 0.7 em high.
            font_size=size,
            text_anchor=anchor,
            fill=self.color(color),
            **style,
        )

    def labels(self, x: float, y: float, lines: list[str], *, leading: float = 20, **options: Any) -> None:
        """Adds lines of text. The first line is vertically centered at ``y``.

        The options are the same as for :meth:`label`.
        """
        for number, line in enumerate(lines):
            self.label(x, y + number * leading, line, **options)

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, style: Style = "frozen", icon: bool = True
    ) -> Box:
        """Adds a box with centered text. The first line is larger than the others.

        A frozen box has a thin outline and a snowflake; a trained box has a thick outline and a flame.
        """
        box = Box(x, y, width, height)
        self._shape("rect", style, x=x, y=y, width=width, height=height, rx=18 if style == "plain" else 6)
        middle, first = x + width / 2, y + height / 2 - 10 * (len(lines) - 1)
        if icon and style != "plain":
            self.icon(x + 15, y + height / 2, style)
            middle += 9
        for number, line in enumerate(lines):
            self.label(middle, first + 20 * number, line, size=SMALL if number else BODY)
        return box

    def file(self, x: float, y: float, width: float, name: str) -> Box:
        """Adds a box with the name of a file or folder."""
        self._shape("rect", "plain", x=x, y=y, width=width, height=30, rx=4)
        self.label(x + width / 2, y + 15, name, size=SMALL, mono=True)
        return Box(x, y, width, 30)

    def bottleneck(
        self, x: float, y: float, width: float, height: float, *lines: str, style: Style, waist: float
    ) -> Box:
        """Adds an hourglass: a down-projection, an activation, and an up-projection."""
        near, far = x + (width - waist) / 2, x + (width + waist) / 2
        upper, lower = y + 0.36 * height, y + 0.64 * height
        right, bottom = x + width, y + height
        corners = [(x, y), (right, y), (far, upper), (far, lower), (right, bottom), (x, bottom), (near, lower)]
        self._shape("polygon", style, points=_points([*corners, (near, upper)]), stroke_linejoin="round")
        step = height / len(lines)
        for number, line in enumerate(lines):
            if line:
                self.label(x + width / 2, y + height / 2 + (number - (len(lines) - 1) / 2) * step, line, size=SMALL)
        return Box(x, y, width, height)

    def plus(self, x: float, y: float) -> Box:
        """Adds a circle with a plus sign, centered at ``(x, y)``."""
        self._shape("circle", "plain", cx=x, cy=y, r=11)
        self.stroke(f"M{_number(x - 6)},{_number(y)}h12M{_number(x)},{_number(y - 6)}v12", width=1.8)
        return Box(x - 11, y - 11, 22, 22)

    def panel(self, x: float, y: float, width: float, height: float) -> Box:
        """Adds an outline around a group."""
        self.element(
            "rect", x=x, y=y, width=width, height=height, rx=10, fill="none", stroke=self.color("panel"), stroke_width=1
        )
        return Box(x, y, width, height)

    def cylinder(self, x: float, y: float, width: float, height: float) -> Box:
        """Adds a cylinder, the symbol for a store."""
        curve = 14
        left, right, bottom = _number(x), _number(x + width), _number(y + height - curve)
        arc = f"A{_number(width / 2)},{curve} 0 0"
        sides = f"M{left},{_number(y + curve)}V{bottom}{arc} 0 {right},{bottom}V{_number(y + curve)}"
        lid = f"M{left},{_number(y + curve)}{arc} 1 {right},{_number(y + curve)}{arc} 1 {left},{_number(y + curve)}"
        self._shape("path", "plain", d=f"{sides}{arc} 0 {left},{_number(y + curve)}z")
        self._shape("path", "plain", d=lid)
        return Box(x, y, width, height)

    def arrow(
        self, *points: Point, color: str = "line", dashed: bool = False, head: bool = True, width: float = 1.8
    ) -> None:
        """Adds an arrow through points, with rounded corners."""
        points = tuple((float(x), float(y)) for x, y in points)
        if head:
            (x0, y0), (x1, y1) = points[-2:]
            length = math.hypot(x1 - x0, y1 - y0)
            dx, dy = (x1 - x0) / length, (y1 - y0) / length
            base = (x1 - 9 * dx, y1 - 9 * dy)
            sides = [(base[0] - 4.5 * dy, base[1] + 4.5 * dx), (base[0] + 4.5 * dy, base[1] - 4.5 * dx)]
            self.element("polygon", points=_points([(x1, y1), *sides]), fill=self.color(color))
            points = (*points[:-1], (x1 - 7 * dx, y1 - 7 * dy))
        self.stroke(_rounded(points), color=color, dashed=dashed, width=width)

    def stroke(self, path: str, *, color: str = "line", dashed: bool = False, width: float = 1.8) -> None:
        """Adds an outline along an SVG path."""
        dashes = {"stroke_dasharray": "5 4"} if dashed else {}
        self.element("path", d=path, fill="none", stroke=self.color(color), stroke_width=width, **dashes)

    def icon(self, x: float, y: float, style: Style) -> None:
        """Adds a snowflake or a flame, centered at ``(x, y)``."""
        if style == "trained":
            path = (
                "m0,-8c1.2,3 5.2,5 5.2,9.6c0,3.4 -2.3,6 -5.2,6c-2.9,0 -5.2,-2.6 -5.2,-6c0,-2.2 1,-3.6 2.2,-5"
                "c0.2,1.4 0.8,2.2 1.6,2.6c-0.3,-2.6 0,-5 1.4,-7.2z"
            )
            self.element("path", d=f"M{_number(x)},{_number(y)}{path}", fill=self.color("trained"))
            return
        parts = []
        for turn in range(6):
            angle = math.radians(60 * turn + 30)
            tip = (x + 8 * math.cos(angle), y + 8 * math.sin(angle))
            fork = (x + 4.6 * math.cos(angle), y + 4.6 * math.sin(angle))
            parts.append(f"M{_number(x)},{_number(y)}L{_points([tip])}")
            for side in (-1, 1):
                end = (fork[0] + 3.2 * math.cos(angle + side), fork[1] + 3.2 * math.sin(angle + side))
                parts.append(f"M{_points([fork])}L{_points([end])}")
        self.stroke("".join(parts), color="frozen", width=1.3)

    def legend(self, x: float, y: float, *, plain: str = "no parameters") -> None:
        """Adds a legend for the outlines, in one row."""
        for style, text, left in (("frozen", "frozen", 0), ("trained", "trained", 118), ("plain", plain, 240)):
            box = self.box(x + left, y - 12, 30, 24, style=style, icon=False)
            if style != "plain":
                self.icon(box.x + 15, y, style)
            self.label(x + left + 40, y, text, size=SMALL, anchor="start", color="muted")

    def _shape(self, tag: str, style: Style, **attributes: float | str) -> None:
        colors = {"fill": self.color(f"{style}_fill"), "stroke": self.color(style)}
        self.element(tag, **attributes, **colors, stroke_width=3 if style == "trained" else 1.4)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):g}"


def _points(points: list[Point]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _rounded(points: tuple[Point, ...], radius: float = 8) -> str:
    """Returns the SVG path of a polyline with rounded corners."""
    parts = [f"M{_points([points[0]])}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        near, far = _along(corner, before, radius), _along(corner, after, radius)
        parts.append(f"L{_points([near])}Q{_points([corner, far])}")
    return "".join([*parts, f"L{_points([points[-1]])}"])


def _along(start: Point, end: Point, distance: float) -> Point:
    """Returns the point at a distance from ``start``, at most halfway to ``end``."""
    length = math.hypot(end[0] - start[0], end[1] - start[1])
    share = min(distance / length, 0.5)
    return start[0] + share * (end[0] - start[0]), start[1] + share * (end[1] - start[1])


def _spans(text: str, size: float) -> str:
    """Converts text with subscripts to XML."""
    parts = re.split(r"_\{(.*?)\}", text)
    spans, shift = [escape(parts[0])], 0.22 * size
    for subscript, following in zip(parts[1::2], parts[2::2], strict=True):
        spans.append(f'<tspan dy="{_number(shift)}" font-size="{_number(0.76 * size)}">{escape(subscript)}</tspan>')
        if following:  # Moves the baseline back.
            spans.append(f'<tspan dy="{_number(-shift)}">{escape(following)}</tspan>')
    return "".join(spans)
